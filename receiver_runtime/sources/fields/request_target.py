"""Say whether a request's path and query are text, for every HTTP server of Forebay's.

What is no UTF-8 would be altered where it is decoded, and a NUL is in no name that a file system or Postgres has. It
must never decide which path there is.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote_to_bytes


def unreadable_target(scope: Any) -> str | None:  # noqa: ANN401  an ASGI scope: a leaf imports no server
    """Return why the path or the query of an ASGI request is no text, and what to do; None: both are."""
    path = scope.get("raw_path") or scope["path"].encode(errors="surrogatepass")
    for what, data in (("path", path), ("query", scope["query_string"])):
        if b"%" not in data and b"\0" not in data and data.isascii():
            continue
        found = unquote_to_bytes(data)
        try:
            found.decode()
        except UnicodeDecodeError as error:
            return f"{what}: it is no UTF-8 at byte {error.start}, without its escapes: percent-encode UTF-8"
        if b"\0" in found:
            return f"{what}: it has a NUL character: leave it out"
    return None

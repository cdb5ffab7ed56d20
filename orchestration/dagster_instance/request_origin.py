"""Tell requests of a server's own pages and of programs from those that another site's page sends.

Programs send neither `Sec-Fetch-Site` nor `Origin`; browsers always send one of them with a request that could change
something. It answers no request, and knows no path.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import Scope

_OWN_SITES = frozenset({b"same-origin", b"none"})  # none: the address was typed, or is a bookmark
_JSON = re.compile(rb'application/json(?:[ \t]*;[ \t]*charset="?utf-8"?)?', re.IGNORECASE)


class RequestHeaders:
    """Hold a request's headers by name, with all values of each."""

    def __init__(self, scope: Scope) -> None:
        """Take the headers of an ASGI scope."""
        self._values: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            self._values.setdefault(name.lower(), []).append(value.strip())

    def all(self, name: bytes) -> Sequence[bytes]:
        """Return the values of a header, in order."""
        return self._values.get(name, ())

    def only(self, name: bytes) -> bytes | None:
        """Return the value of a header that came once, else None."""
        values = self.all(name)
        return values[0] if len(values) == 1 else None


def foreign_site(headers: RequestHeaders) -> str | None:
    """Return what says that the page of another site sends this, from `Sec-Fetch-Site`; None: nothing does."""
    foreign = [site for site in headers.all(b"sec-fetch-site") if site not in _OWN_SITES]
    return f"Sec-Fetch-Site: {_shown(foreign[0])}" if foreign else None


def foreign_origin(headers: RequestHeaders) -> str | None:
    """Return what says that a page of another origin than this server's sends this; None: nothing does."""
    own = (headers.only(b"host") or b"").lower()
    for origin in headers.all(b"origin"):
        if origin.lower() not in {b"http://" + own, b"https://" + own}:
            return f"Origin: {_shown(origin)}"
    return None


def not_json(headers: RequestHeaders) -> str | None:
    """Return why the body is not taken as JSON, or None if its type is `application/json`.

    A page can send a body of another type without the browser asking the server first.
    """
    kind = headers.only(b"content-type") or b""
    return None if _JSON.fullmatch(kind) else f"Content-Type: {_shown(kind)} is not taken: send application/json"


def _shown(value: bytes) -> str:
    return f"{value.decode('latin-1')!r:.200}"

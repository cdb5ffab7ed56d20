"""Check which host a request asks for, and whether another site's page sends it: the rules of all our HTTP servers.

A browser on a server's machine sends what any page tells it to. Programs send neither `Sec-Fetch-Site` nor `Origin`;
browsers always send one of them with a request that could change something. A page could also have its own name
resolve to this machine (DNS rebinding), so a `Host` must be checked where a server listens on loopback.

Owns what is read of these headers. It answers no request, knows no path, and never reads a body.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from receiver_runtime.sources.fields.loopback import host_name, is_written_as_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    Headers = Iterable[tuple[bytes, bytes]]

_OWN_SITES = frozenset({b"same-origin", b"none"})  # none: the address was typed, or is a bookmark
_JSON = re.compile(rb'application/json(?:[ \t]*;[ \t]*charset="?utf-8"?)?', re.IGNORECASE)


def all_values(headers: Headers, name: bytes) -> Sequence[bytes]:
    """Return the values of a header, in order."""
    return [value.strip() for other, value in headers if other.lower() == name]


def only_value(headers: Headers, name: bytes) -> bytes | None:
    """Return the value of a header that came once, else None."""
    values = all_values(headers, name)
    return values[0] if len(values) == 1 else None


def not_one_host(headers: Headers) -> str | None:
    """Return why a request without exactly one Host is refused (RFC 9112, 3.2), or None if it has one."""
    count = len(all_values(headers, b"host"))
    return None if count == 1 else f"Host: it came {count} times: send it once"


def asks_for_loopback(headers: Headers) -> bool:
    """Return whether the request's one Host is a name of this machine's loopback."""
    host = only_value(headers, b"host")
    return host is not None and _is_loopback(host)


def foreign_site(headers: Headers) -> str | None:
    """Return what says that the page of another site sends this, from `Sec-Fetch-Site`; None: nothing does."""
    foreign = [site for site in all_values(headers, b"sec-fetch-site") if site not in _OWN_SITES]
    return f"Sec-Fetch-Site: {shown(foreign[0])}" if foreign else None


def foreign_origin(headers: Headers, *, on_loopback: bool = False, allowed: Iterable[str] = ()) -> str | None:
    """Return what says that the page of another origin than this server's sends this; None: nothing does.

    `on_loopback`: the server's own origin must be a name of loopback. `allowed`: other sites that may send, or "*".
    """
    origins = all_values(headers, b"origin")
    if not origins:
        return None  # most senders are no browsers
    host = only_value(headers, b"host")
    own: set[bytes] = set()
    if host is not None and (not on_loopback or _is_loopback(host)):
        own = {b"http://" + host.lower(), b"https://" + host.lower()}
    others = {site.lower() for site in allowed}
    for origin in origins:
        site = origin.lower().partition(b"://")[2].decode("latin-1")
        if origin.lower() not in own and site not in others and "*" not in others:
            return f"Origin: {shown(origin)}"
    return None


def not_json(headers: Headers) -> str | None:
    """Return why the body is not taken as JSON, or None if its type is `application/json`.

    A page can send a body of another type without the browser asking the server first.
    """
    kind = only_value(headers, b"content-type") or b""
    return None if _JSON.fullmatch(kind) else f"Content-Type: {shown(kind)} is not taken: send application/json"


def shown(value: bytes) -> str:
    """Return a header's value for a message: quoted, and not longer than a line."""
    return f"{value.decode('latin-1')!r:.200}"


def _is_loopback(host: bytes) -> bool:
    return is_written_as_loopback(host_name(host.decode("latin-1")))

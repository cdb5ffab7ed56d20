"""Let a browser send a server's token: a link with the token sets a cookie, and leads to the same page without it.

Owns how the token travels: the link, the cookie, and `Authorization: Bearer TOKEN` of programs. It decides nothing
about a request that has no token, and the cookie never holds the token itself.
"""

from __future__ import annotations

import hashlib
import hmac
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode

from starlette.responses import Response

from receiver_runtime.sources.fields.request_peer import all_values, only_value

if TYPE_CHECKING:
    from starlette.types import Scope

COOKIE_SECONDS = 30 * 24 * 3600  # how long a browser keeps the cookie; as long as Jupyter's
TOKEN_PARAMETER = "token"  # noqa: S105  a name
_READS = frozenset({"GET", "HEAD"})


def link_with_token(url: str, token: str | None) -> str:
    """Return the link that a person opens in a browser; without a token, the address itself."""
    return url if token is None else f"{url}?{TOKEN_PARAMETER}={quote(token, safe='')}"


class BrowserToken:
    """Check requests for the token of one server, and answer links that have it.

    Args:
        token: what a client must have.
        cookie: the cookie's name, unique on the host: a browser sends cookies to all ports of it.
    """

    def __init__(self, token: str, *, cookie: str) -> None:
        self._token = token.encode()
        self._cookie_name = cookie.encode()
        # Not the token itself, which is good for programs too.
        self._cookie = hmac.new(self._token, b"cookie", hashlib.sha256).hexdigest().encode()

    def link(self, scope: Scope) -> Response | None:
        """Return the answer to a link with the token, or None if the request is none."""
        if scope["method"] not in _READS:
            return None
        asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in asked if name == TOKEN_PARAMETER]
        if not any(hmac.compare_digest(value.encode(), self._token) for value in given):
            return None
        left = urlencode([(name, value) for name, value in asked if name != TOKEN_PARAMETER])
        path = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1")
        # Two slashes would begin another host's name.
        target = "/" + path.lstrip("/") + (f"?{left}" if left else "")
        answer = Response(status_code=HTTPStatus.SEE_OTHER)
        answer.headers["location"] = target
        answer.headers["cache-control"] = "no-store"
        answer.headers["referrer-policy"] = "no-referrer"
        answer.headers["set-cookie"] = (
            f"{self._cookie_name.decode()}={self._cookie.decode()}; HttpOnly; Max-Age={COOKIE_SECONDS}; Path=/; "
            "SameSite=Lax"
        )
        return answer

    def is_sent(self, scope: Scope) -> bool:
        """Return whether a request has the token in its one Authorization header, or its cookie."""
        given = only_value(scope["headers"], b"authorization")
        if given is not None and hmac.compare_digest(given, b"Bearer " + self._token):
            return True
        cookies = [
            value.strip()
            for line in all_values(scope["headers"], b"cookie")
            for name, _, value in (part.partition(b"=") for part in line.split(b";"))
            if name.strip() == self._cookie_name
        ]
        return any(hmac.compare_digest(value, self._cookie) for value in cookies)

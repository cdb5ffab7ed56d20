"""Let requests through to Dagster's webserver only if they come from its own pages, or from a program of its owner.

Dagster's webserver itself checks nothing: any web page that a browser on this machine shows could launch and end runs,
and so could every other account. This ASGI middleware refuses

- a `Host` that is no name of this machine (DNS rebinding), that is missing, or that comes twice;
- what another page sends, by `Sec-Fetch-Site` and `Origin`; a link to a page of the UI is allowed;
- a path or a query that is no text;
- a body of any other type than `application/json`, which only such requests can have that browsers ask about first;
- a GraphQL query by GET;
- with a token: requests that have it neither as `Authorization: Bearer TOKEN` nor as the cookie that
  `/?token=TOKEN` sets.

It knows nothing of Dagster except the path of GraphQL, and which paths end with a name. It never reads a body.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse, Response

from orchestration.dagster_instance.browser_token import BrowserToken
from receiver_runtime.sources.fields.request_peer import (
    all_values,
    asks_for_loopback,
    foreign_origin,
    foreign_site,
    not_json,
    not_one_host,
    only_value,
    shown,
)
from receiver_runtime.sources.fields.request_target import unreadable_target
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from receiver_runtime.sources.fields.request_peer import Headers

_GRAPHQL = "/graphql"
# What Dagster answers 500 where nothing has the name behind it.
_BY_NAME = ("/logs/", "/download_debug/")
_READS = frozenset({"GET", "HEAD"})
_POLICY_VIOLATION = 1008  # the code with which a WebSocket is refused


@dataclass(frozen=True, slots=True)
class _Refusal:
    """Say why a request is refused, and what to do about it."""

    status: HTTPStatus
    detail: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self) -> Response:
        return PlainTextResponse(f"{self.detail}\n", int(self.status), dict(self.headers))


class WebserverAccess:
    """Pass allowed requests on to the webserver, and refuse the others; see the module.

    Args:
        app: what is protected; gets the requests that are allowed, unchanged.
        token: what a client must have; None: every account of this machine is allowed.
        port: the webserver's, which makes the cookie's name unique: a browser sends cookies to all ports of a host.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, port: int) -> None:
        self._app = app
        self._token = None if token is None else BrowserToken(token, cookie=f"forebay_{port}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as an ASGI application."""
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        headers = scope["headers"]
        refusal = _check_host(headers) or _check_page(scope, headers)
        if refusal is None and scope["type"] == "http":
            refusal = _check_request(scope, headers)
            if refusal is None and self._token is not None and (link := self._token.link(scope)) is not None:
                await link(scope, receive, send)
                return
        if refusal is None and self._token is not None and not self._token.is_sent(scope):
            refusal = _NO_TOKEN
        if refusal is None:
            await self._pass_on(scope, receive, _without_frames(send))
        elif scope["type"] == "http":
            await refusal.response()(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": shortened(refusal.detail, 120)})

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have Dagster answer. What it fails to find by a name is 404, in place of its 500 with a traceback."""
        if not scope["path"].startswith(_BY_NAME):
            await self._app(scope, receive, send)
            return
        failed: list[Message] = []

        async def sending(message: Message) -> None:
            if failed or message.get("status") == HTTPStatus.INTERNAL_SERVER_ERROR:
                failed.append(message)
            else:
                await send(message)

        try:
            await self._app(scope, receive, sending)
        except (AttributeError, LookupError, ValueError):
            if not failed:
                raise
            failed.clear()
            await PlainTextResponse("path: nothing has this name\n", HTTPStatus.NOT_FOUND)(scope, receive, send)
        finally:
            for message in failed:
                await send(message)


_NO_TOKEN = _Refusal(
    HTTPStatus.UNAUTHORIZED,
    "Open the link that `forebay up` printed, or send Authorization: Bearer TOKEN, "
    "with the token in dagster/token below FOREBAY_HOME",
    {"www-authenticate": "Bearer"},
)


def _check_host(headers: Headers) -> _Refusal | None:
    if (why := not_one_host(headers)) is not None:
        return _Refusal(HTTPStatus.BAD_REQUEST, why)
    if asks_for_loopback(headers):
        return None
    [host] = all_values(headers, b"host")
    return _Refusal(
        HTTPStatus.FORBIDDEN,
        f"Host: {shown(host)} is no name of this machine's loopback: ask for 127.0.0.1 or "
        "localhost, from another machine through ssh -L",
    )


def _check_page(scope: Scope, headers: Headers) -> _Refusal | None:
    """Refuse what another site's page sends."""
    foreign = foreign_site(headers)
    if foreign is not None and _is_link(scope, headers):
        foreign = None
    said = foreign or foreign_origin(headers)
    if said is not None:
        return _Refusal(HTTPStatus.FORBIDDEN, f"{said}: only Dagster's own pages may send this")
    return None


def _is_link(scope: Scope, headers: Headers) -> bool:
    """Return whether a browser follows a link in its window: the page that has the link can't see the answer."""
    return (
        scope["type"] == "http"
        and scope["method"] in _READS
        and only_value(headers, b"sec-fetch-mode") == b"navigate"
        and only_value(headers, b"sec-fetch-dest") == b"document"
    )


def _check_request(scope: Scope, headers: Headers) -> _Refusal | None:
    """Refuse what is no text, and forms in which a request could change something without being JSON."""
    if (why := unreadable_target(scope)) is not None:
        return _Refusal(HTTPStatus.BAD_REQUEST, why)
    method = scope["method"]
    if method == "POST":
        if (why := not_json(headers)) is not None:
            return _Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, why)
    elif method not in _READS:
        return _Refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"method: {method!r:.20}: GET or POST", {"allow": "GET, POST"})
    elif scope["path"] == _GRAPHQL and b"text/html" not in (only_value(headers, b"accept") or b""):
        # Dagster would also execute mutations that come in the query string.
        return _Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "method: POST queries as JSON", {"allow": "POST"})
    return None


def _without_frames(send: Send) -> Send:
    """Forbid other sites to show the pages in frames, where they could lead a person's clicks."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (b"x-frame-options", b"SAMEORIGIN")]
        await send(message)

    return sending

"""Ask an ASGI application for an answer, without a connection of HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.types import ASGIApp, Receive

    from receiver_runtime.receivers.http.requests.pushed import Headers


@dataclass(slots=True)
class Asked:
    """Hold an application's answer to one request."""

    status: int = 0
    headers: Sequence[tuple[bytes, bytes]] = ()
    body: bytes = b""

    def header(self, name: bytes) -> bytes | None:
        """Return a header's value, or None."""
        return next((value for known, value in self.headers if known == name), None)

    async def take(self, message: Any) -> None:  # noqa: ANN401  a message of ASGI
        """Take what the application sends; see ASGI's ``send``."""
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], message["headers"]
        else:
            self.body += message.get("body", b"")


def scope_of(method: str, path: str, headers: Headers) -> dict[str, Any]:
    """Return the scope of a request."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(errors="surrogateescape"),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
    }


async def ask(application: ASGIApp, scope: dict[str, Any], receive: Receive) -> Asked:
    """Return the application's answer. The body is asked of ``receive`` only when the application wants it."""
    asked = Asked()
    await application(scope, receive, asked.take)
    return asked

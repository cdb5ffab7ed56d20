"""Define a NATS client that hands on each message as it arrived, whatever is in it.

nats-py decodes subjects and parses headers while it reads. A message that it can't decode ends its reading without an
error: delivered again and again, it would block all others. And nats-py takes a message for one of the server's if its
sender has set a header ``Status``. So the two methods that do this are replaced here, and ``reader`` itself requests
messages. forebay_contrib/nats/tests/test_conformance.py sends such messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nats.aio.client import Client
from nats.aio.msg import Msg

if TYPE_CHECKING:
    from collections.abc import Mapping


class NatsError(ConnectionError):
    """NATS ended the connection, or what was asked of it."""


class RawHeaders(dict[str, str]):
    """Headers as nats-py parses them, empty if it can't; and in ``raw`` as they arrived."""

    raw: bytes = b""


class TolerantClient(Client):
    """Hand on any message; see the module."""

    async def _process_headers(self, headers: bytes) -> Any:  # noqa: ANN401  as its parent's
        if not headers:
            return None
        parsed: Mapping[str, str] | None = None
        try:
            parsed = await super()._process_headers(headers)
        except Exception:  # noqa: BLE001  a sender may put anything there
            parsed = None
        made = RawHeaders(parsed or {})
        made.raw = bytes(headers)
        return made

    def _build_message(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: Any) -> Msg:  # noqa: ANN401
        return Msg(
            subject=subject.decode(errors="surrogateescape"),
            reply=reply.decode(errors="surrogateescape"),
            data=bytes(data),
            headers=headers,
            _client=self,
            _sid=sid,
        )

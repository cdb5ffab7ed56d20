"""The NATS client that hands out each message as it came, whatever is in it.

nats-py decodes a subject and parses headers while it reads, and a message that it can't make sense of ends its reading
without a word: delivered again and again, it would hold up all others. And a sender's own header ``Status`` makes a
message one of the server's for it. So the two methods that do that are replaced here, and messages are asked for by
``reader`` itself. tests/conformance/test_nats.py sends such messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nats.aio.client import Client
from nats.aio.msg import Msg

if TYPE_CHECKING:
    from collections.abc import Mapping


class RawHeaders(dict[str, str]):
    """As nats-py has them, where it can; and as they came."""

    raw: bytes = b""


class TolerantClient(Client):
    """See the module."""

    async def _process_headers(self, headers: bytes) -> Any:  # noqa: ANN401  as its parent's
        if not headers:
            return None
        parsed: Mapping[str, str] | None = None
        try:
            parsed = await super()._process_headers(headers)
        except Exception:  # noqa: BLE001  whatever a sender has put there
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

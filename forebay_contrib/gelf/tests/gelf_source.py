"""GELF for the conformance suite: a sender over TCP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay_contrib.gelf.declaration import Gelf
from tests.conformance.listener_sender import ListenerSender

if TYPE_CHECKING:
    from collections.abc import Mapping


class GelfSender(ListenerSender):
    """See the module."""

    def source(self, **changes: Any) -> Gelf:  # noqa: ANN401  fields of the source
        return Gelf(**{"listen": "127.0.0.1:0", "transports": ("tcp",), **changes})

    def _numbered(self, number: int) -> bytes:
        return b'{"version":"1.1","host":"h","short_message":"message %d"}' % number

    def send_odd(self) -> int:
        """Send messages without a host, with blanks around, over two lines, of another alphabet, and a large one."""
        odd = [
            b'{"short_message":"no host"}',
            b' {"message":"of an old sender"}\r\n',
            b'{"short_message":"a",\n"_x":[{}]}',
            '{"short_message":"\u00fc\u20ac"}'.encode(),
            b'{"short_message":"%b"}' % (b"x" * 1_000_000),
        ]
        return self._send_all(odd)

    def _framed(self, message: bytes) -> bytes:
        return message + b"\0"

    def _message_of(self, row: Mapping[str, Any]) -> bytes:
        value: str = row["value"]
        return value.encode()

"""Syslog for the conformance suite: a sender over TCP, in both framings, which works like rsyslog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay_contrib.syslog.declaration import Syslog
from tests.conformance.listener_sender import ListenerSender

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.testing.source_rig import SourceRig


class SyslogSender(ListenerSender):
    """See the module."""

    def source(self, **changes: Any) -> Syslog:  # noqa: ANN401  fields of the source
        return Syslog(**{"listen": "127.0.0.1:0", "transports": ("tcp",), **changes})

    def _numbered(self, number: int) -> bytes:
        return b"<13>1 2026-01-01T00:00:00Z host app - - - message %d" % number

    def send_odd(self) -> int:
        """Send messages without priority, without text, not in UTF-8, with a newline inside, and nearly the largest."""
        odd = [b"<13>plain", b"", b"no priority", b"\xff\x00 \xfe", b"<13>two\nlines", b"<13>" + b"x" * 65_000]
        return self._send_all(odd)

    def check(self, rig: SourceRig) -> None:
        """Check what came, and the columns."""
        super().check(rig)
        for row in rig.rows():
            assert row["raw"].endswith(row["message"].encode()) or row["parse_error"] == "not UTF-8"

    def _framed(self, message: bytes) -> bytes:
        # A message with a newline inside needs octet counting; some others use it too.
        if b"\n" in message or message.endswith((b"1", b"2", b"5")):
            return b"%d %b" % (len(message), message)
        return message + b"\n"

    def _message_of(self, row: Mapping[str, Any]) -> bytes:
        raw: bytes = row["raw"]
        return raw

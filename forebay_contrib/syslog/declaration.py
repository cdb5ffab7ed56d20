"""Declare a syslog source: RFC 5424 and 3164 messages from any sender, over UDP, TCP and TLS (RFC 5426, 6587, 5425).

Only the declaration and its checks; ``forebay_contrib.syslog.receiver`` opens the sockets.
"""

from __future__ import annotations

import zoneinfo
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator

from receiver_runtime.receivers.sockets.transport_source import TransportSource
from receiver_runtime.sources.fields.multiline import MultilineField  # noqa: TC001  pydantic evaluates it
from receiver_runtime.sources.fields.units import parse_bytes


class Syslog(TransportSource):
    """Listens for syslog messages; one row per message, with its parts, its raw bytes, and its sender.

    **At most once.** Syslog has no acknowledgements: a sender does not learn what has arrived, and sends nothing again.

    A message that can't be parsed is a row too, with ``parse_error`` and its raw bytes; the rules are in
    ``forebay_contrib/syslog/README.md``. On TCP each message may be framed either way: by its length before it, or by
    the newline after it. The other arguments are ``TransportSource``'s: where it listens, and its limits.

    Args:
        timezone: the time zone of times in RFC 3164 messages, which do not name one, as ``"Europe/Berlin"``.
        max_record_bytes: a longer message becomes a dead letter; ``"64KiB"`` or a number.
        multiline: which messages of one connection (by UDP: sender), host, application and process belong together:
            ``"java"``, ``"python"`` or ``"go"`` joins the lines of stack traces, and ``Multiline(start=...)`` or
            ``Multiline(continuation=...)`` those of a pattern on their texts. By default each is a record.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = (
        ("received_at", "timestamp[us, tz=UTC]"),
        ("sender", "string"),
        ("priority", "int32"),
        ("facility", "int32"),
        ("severity", "int32"),
        ("version", "int32"),
        ("timestamp", "timestamp[us, tz=UTC]"),
        ("hostname", "string"),
        ("app_name", "string"),
        ("proc_id", "string"),
        ("msg_id", "string"),
        ("structured_data", "string"),
        ("message", "string"),
        ("parse_error", "string"),
        ("raw", "binary"),
    )
    record_column: ClassVar[str] = "message"
    receiver_class: ClassVar[str] = "forebay_contrib.syslog.receiver:SyslogReceiver"

    kind: Literal["syslog"] = "syslog"
    timezone: str = "UTC"
    max_record_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(ge=1, le=64 * 2**20)] = 2**16
    multiline: MultilineField | None = None

    @field_validator("timezone")
    @classmethod
    def _check_timezone(cls, timezone: str) -> str:
        try:
            zoneinfo.ZoneInfo(timezone)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(
                f"{timezone!r} is no time zone: give one by its name, as 'Europe/Berlin' or 'UTC'"
            ) from None
        return timezone

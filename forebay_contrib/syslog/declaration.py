"""Declare a syslog source: RFC 5424 and 3164 messages from any sender, over UDP, TCP and TLS (RFC 5426, 6587, 5425).

Only the declaration and its checks; ``forebay_contrib.syslog.receiver`` opens the sockets.
"""

from __future__ import annotations

import zoneinfo
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from receiver_runtime.sources.fields.multiline import MultilineField  # noqa: TC001  pydantic evaluates it
from receiver_runtime.sources.fields.several import Transports  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.fields.tcp import Tls, check_transports, parse_listen, parse_tls
from receiver_runtime.sources.fields.units import parse_bytes, parse_duration
from receiver_runtime.sources.source import Guarantee, Source


class Syslog(Source):
    """Listens for syslog messages; one row per message, with its parts, its raw bytes, and its sender.

    **At most once.** Syslog has no acknowledgements: a sender does not learn what has arrived, and sends nothing again.

    A message that can't be parsed is a row too, with ``parse_error`` and its raw bytes; the rules are in
    ``forebay_contrib/syslog/README.md``.

    Args:
        listen: the address, as ``"0.0.0.0:514"`` or ``"[::]:6514"``.
        transports: ``"udp"``, ``"tcp"``, or both at one port. On TCP each message may be framed either way: by its
            length before it, or by the newline after it.
        tls: ``True``, or a ``Tls`` with ``certificate_file`` and ``key_file``; for TCP only.
        timezone: the time zone of times in RFC 3164 messages, which do not name one, as ``"Europe/Berlin"``.
        max_record_bytes: a longer message becomes a dead letter; ``"64KiB"`` or a number.
        multiline: which messages of one connection (by UDP: sender), host, application and process belong together:
            ``"java"``, ``"python"`` or ``"go"`` joins the lines of stack traces, and ``Multiline(start=...)`` or
            ``Multiline(continuation=...)`` those of a pattern on their texts. By default each is a record.
        receive_buffer: how many bytes of unread datagrams the kernel is asked to keep. A datagram that arrives when
            the buffer is full is lost, counted and reported. Linux allows at most ``net.core.rmem_max``.
        connect_timeout: how long a TLS handshake may take; ``"10s"`` or seconds.
        max_connections: at most this many connections at once; the next one is refused, and reported.
        max_connections_per_peer: at most this many of them from one peer, which is a host, or an IPv6 network of 64
            bits; by default four fifths of ``max_connections``, so that no host can take all.
        idle_timeout: a connection on which nothing came for this long (``connect_timeout`` where nothing came at all)
            gives its place to a new one when there is no other place. Until then it stays open; ``"60s"`` or seconds.
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
    guarantee: ClassVar[Guarantee] = Guarantee.AT_MOST_ONCE
    receiver_class: ClassVar[str] = "forebay_contrib.syslog.receiver:SyslogReceiver"

    kind: Literal["syslog"] = "syslog"
    listen: str
    transports: Transports = ("udp", "tcp")
    tls: Annotated[Tls | None, BeforeValidator(parse_tls)] = None
    timezone: str = "UTC"
    max_record_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(ge=1, le=64 * 2**20)] = 2**16
    multiline: MultilineField | None = None
    receive_buffer: Annotated[int, BeforeValidator(parse_bytes), Field(ge=2**12, le=2**30)] = 8 * 2**20
    connect_timeout: Annotated[float, BeforeValidator(parse_duration), Field(gt=0)] = 10.0
    max_connections: Annotated[int, Field(ge=1, le=100_000)] = 500
    max_connections_per_peer: Annotated[int | None, Field(ge=1)] = None
    idle_timeout: Annotated[float, BeforeValidator(parse_duration), Field(gt=0)] = 60.0

    @property
    def address(self) -> str:
        """Return where it listens."""
        return self.listen

    @property
    def listen_address(self) -> tuple[str, int]:
        """Return where it listens, as (host, port)."""
        return parse_listen(self.listen)

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, listen: str) -> str:
        parse_listen(listen)
        return listen

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

    @model_validator(mode="after")
    def _check_transports(self) -> Self:
        check_transports(self.listen, self.transports, self.tls)
        return self

"""Declare a GELF source: messages from any sender, over UDP in chunks, and over TCP with a NUL behind each.

Only the declaration and its checks; ``forebay_contrib.gelf.receiver`` opens the sockets. GELF over HTTP is a protocol
of the ``Http`` source (``forebay_contrib.gelf.protocol``).
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from receiver_runtime.sources.fields.several import Transports  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.fields.tcp import Tls, check_transports, parse_listen, parse_tls
from receiver_runtime.sources.fields.units import parse_bytes, parse_duration
from receiver_runtime.sources.source import Guarantee, Source


class Gelf(Source):
    """Listens for messages in the Graylog Extended Log Format; one row per message, with its JSON as it was sent.

    **At most once.** GELF over UDP and TCP has no acknowledgements: a sender does not learn what has arrived, and sends
    nothing again. Over HTTP it has: ``Http(protocols="gelf")``.

    What is no message, or lacks what Graylog requires, is a dead letter; the rules are in
    ``forebay_contrib/gelf/README.md``.

    Args:
        listen: the address, as ``"0.0.0.0:12201"`` or ``"[::]:12201"``.
        transports: ``"udp"``, ``"tcp"``, or both at one port.
        tls: ``True``, or a ``Tls`` with ``certificate_file`` and ``key_file``; for TCP only.
        max_record_bytes: a longer message, after decompression, becomes a dead letter; ``"1MiB"`` or a number.
        chunk_timeout: how long to wait for all chunks of a message after its first one; then those that came become a
            dead letter. GELF says 5 seconds; ``"5s"`` or seconds.
        max_chunk_bytes: at most this many bytes of chunks wait for the rest of their messages, half of them of one
            peer; beyond that the oldest message is given up.
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
        ("value", "string"),
    )
    record_column: ClassVar[str] = "value"
    guarantee: ClassVar[Guarantee] = Guarantee.AT_MOST_ONCE
    receiver_class: ClassVar[str] = "forebay_contrib.gelf.receiver:GelfReceiver"
    letter_judge: ClassVar[str] = "forebay_contrib.gelf.messages:judge_letters"

    kind: Literal["gelf"] = "gelf"
    listen: str
    transports: Transports = ("udp", "tcp")
    tls: Annotated[Tls | None, BeforeValidator(parse_tls)] = None
    max_record_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(ge=1, le=64 * 2**20)] = 2**20
    chunk_timeout: Annotated[float, BeforeValidator(parse_duration), Field(gt=0, le=3600)] = 5.0
    max_chunk_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(ge=2**18, le=2**30)] = 32 * 2**20
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

    @model_validator(mode="after")
    def _check_transports(self) -> Self:
        check_transports(self.listen, self.transports, self.tls)
        return self

"""Declare what the sources that listen by UDP, TCP or both have: where, how, and the limits of their senders."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from receiver_runtime.sources.fields.several import Transports  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.fields.tcp import Listen, Tls, check_transports, parse_listen, parse_tls
from receiver_runtime.sources.fields.units import parse_bytes, parse_duration
from receiver_runtime.sources.source import Guarantee, Source


class TransportSource(Source):
    """Listens by UDP, by TCP, or by both at one port, to any sender.

    **At most once.** Neither transport has acknowledgements: a sender does not learn what has arrived, and sends
    nothing again.

    Args:
        listen: the address, as ``"0.0.0.0:514"`` or ``"[::]:6514"``.
        transports: ``"udp"``, ``"tcp"``, or both at one port.
        tls: ``True``, or a ``Tls`` with ``certificate_file`` and ``key_file``; for TCP only.
        receive_buffer: how many bytes of unread datagrams the kernel is asked to keep. A datagram that arrives when
            the buffer is full is lost, counted and reported. Linux allows at most ``net.core.rmem_max``.
        connect_timeout: how long a TLS handshake may take; ``"10s"`` or seconds.
        max_connections: at most this many connections at once; the next one is refused, and reported.
        max_connections_per_peer: at most this many of them from one peer, which is a host, or an IPv6 network of 64
            bits; by default four fifths of ``max_connections``, so that no host can take all.
        idle_timeout: a connection on which nothing came for this long (``connect_timeout`` where nothing came at all)
            gives its place to a new one when there is no other place. Until then it stays open; ``"60s"`` or seconds.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.AT_MOST_ONCE

    listen: Listen
    transports: Transports = ("udp", "tcp")
    tls: Annotated[Tls | None, BeforeValidator(parse_tls)] = None
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

    @model_validator(mode="after")
    def _check_transports(self) -> Self:
        check_transports(self.listen, self.transports, self.tls)
        return self

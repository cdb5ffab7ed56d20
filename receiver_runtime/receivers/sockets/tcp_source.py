"""Declare what the sources on a plain TCP connection share: where to connect or to listen, and their limits."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator, Field, model_validator

from receiver_runtime.sources.fields.tcp import Host, Listen, Tls, address_of, check_server_tls, parse_listen, parse_tls
from receiver_runtime.sources.fields.units import parse_bytes, parse_duration
from receiver_runtime.sources.source import Guarantee, Source


class TcpSource(Source):
    """Reads records from a TCP server that it connects to, or from the senders that connect to it.

    **At most once.** A sender on a plain socket does not learn what has arrived, and sends nothing again: data in
    flight when a connection or a receiver fails is lost, as in the original.

    Give ``host`` and ``port``, or ``listen``.

    Args:
        host: name or address of the server to connect to.
        port: the server's port, 1 to 65535.
        listen: the address to listen on, as ``"0.0.0.0:9999"`` or ``"[::]:9999"``; port 0 takes any that is free.
        tls: ``True``, or a ``Tls``; no TLS by default.
        max_record_bytes: a longer record becomes a dead letter; ``"1MiB"`` or a number.
        connect_timeout: how long one attempt to connect, and a TLS handshake, may take; ``"10s"`` or seconds.
        max_connections: at most this many connections at once when listening; the next one is refused, and reported.
        max_connections_per_peer: at most this many of them from one peer, which is a host, or an IPv6 network of 64
            bits; by default four fifths of ``max_connections``, so that no host can take all.
        idle_timeout: a connection on which nothing came for this long (``connect_timeout`` where nothing came at all)
            gives its place to a new one when there is no other place. Until then it stays open; ``"60s"`` or seconds.
    """

    guarantee: ClassVar[Guarantee] = Guarantee.AT_MOST_ONCE

    host: Host | None = None
    port: Annotated[int | None, Field(ge=1, le=65_535)] = None
    listen: Listen | None = None
    tls: Annotated[Tls | None, BeforeValidator(parse_tls)] = None
    max_record_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(ge=1, le=256 * 2**20)] = 2**20
    connect_timeout: Annotated[float, BeforeValidator(parse_duration), Field(gt=0)] = 10.0
    max_connections: Annotated[int, Field(ge=1, le=100_000)] = 500
    max_connections_per_peer: Annotated[int | None, Field(ge=1)] = None
    idle_timeout: Annotated[float, BeforeValidator(parse_duration), Field(gt=0)] = 60.0

    @property
    def address(self) -> str:
        """Return ``host:port`` of the server, or where it listens; an IPv6 address in brackets."""
        return self.listen if self.listen is not None else address_of(self.host or "", self.port or 0)

    @property
    def listen_address(self) -> tuple[str, int]:
        """Return where it listens, as (host, port). Raises ValueError for a source that connects."""
        if self.listen is None:
            raise ValueError(f"{self.address} is connected to, not listened on: give listen")
        return parse_listen(self.listen)

    @model_validator(mode="after")
    def _check_side(self) -> Self:
        connects = self.host is not None or self.port is not None
        if connects == (self.listen is not None):
            raise ValueError(
                "connects to host and port, or listens: give host and port, or listen='0.0.0.0:9999', and not both"
            )
        if connects and self.host is None:
            raise ValueError("a port without its host: give host too, or listen='0.0.0.0:9999' to listen")
        if connects and self.port is None:
            raise ValueError("a host without its port: give port too")
        if self.listen is not None:
            check_server_tls(self.tls)
        return self

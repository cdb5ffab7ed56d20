"""Declare a Redis Streams source: stream keys, read by a consumer group of any number of receivers (X11).

Only the declaration and its checks; ``receiver_runtime.receivers.redis`` connects, and needs the extra
``forebay[redis]``.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from receiver_runtime.sources.fields.dialects import BLANKS, Dialect
from receiver_runtime.sources.fields.secret import Secret  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.fields.several import Several  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.fields.tcp import Host, Tls, address_of, parse_tls
from receiver_runtime.sources.fields.units import parse_duration
from receiver_runtime.sources.source import Guarantee, Source

#: Keys of Redis, which are read by name.
_KEYS = Dialect((BLANKS, (r"[*?]", "keys are read by name: give each, as streams=['orders:1', 'orders:2']")))


class RedisStreams(Source):
    """Reads stream keys of a Redis server; one row per entry, with its fields as a map.

    **At least once, deduplicated**: an entry is acknowledged (``XACK``) after the block that holds it is registered.
    An entry that Redis delivers again is recognised by its stream key, id and fields, and left out, within the
    stream's ``key_window``.

    Args:
        host: the server's name or address.
        port: the server's port.
        streams: the stream keys.
        group: the consumer group; it is created if it is missing. Each Forebay stream needs one of its own.
        consumer: the beginning of the receivers' names in the group; the receiver's number follows.
        start: where a newly created group begins: ``"earliest"``, with every entry there, or ``"latest"``.
        claim_after: entries that another consumer got this long ago, and has not acknowledged, are taken over.
        in_flight: each receiver may hold at most this many unacknowledged entries.
        database: the database's number.
        connect_timeout: how long a connection, and each answer, may take.
        username: an ACL user to log in as; and
        password: by reference (``EnvVar("NAME")``, ``"env:NAME"``, ``"file:/PATH"``).
        tls: ``True``, or a ``Tls``; no TLS by default.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = (
        ("stream", "string"),
        ("id", "string"),
        ("timestamp", "timestamp[ms, tz=UTC]"),
        ("fields", "map<string, binary>"),
    )
    no_record: ClassVar[str] = (
        "an entry is no single text: it has fields. Leave out records=, and take them by name in the output, as "
        "fields['item']"
    )
    needs_extra: ClassVar[str | None] = "redis"
    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE_DEDUPLICATED
    receiver_class: ClassVar[str] = "forebay_contrib.redis.receiver:RedisStreamsReceiver"

    kind: Literal["redis_streams"] = "redis_streams"
    host: Host
    port: Annotated[int, Field(ge=1, le=65_535)] = 6379
    streams: Several
    group: Annotated[str, Field(min_length=1, max_length=255)]
    consumer: Annotated[str, Field(min_length=1, max_length=200)] = "forebay"
    start: Literal["earliest", "latest"] = "earliest"
    claim_after: Annotated[float, BeforeValidator(parse_duration), Field(ge=1)] = 60.0
    in_flight: Annotated[int, Field(ge=1, le=1_000_000)] = 50_000
    database: Annotated[int, Field(ge=0)] = 0
    connect_timeout: Annotated[float, BeforeValidator(parse_duration), Field(gt=0)] = 4.0
    username: str | None = None
    password: Secret | None = None
    tls: Annotated[Tls | None, BeforeValidator(parse_tls)] = None

    @property
    def address(self) -> str:
        """Return the server, the database and the stream keys."""
        return f"{address_of(self.host, self.port)}/{self.database}/{','.join(self.streams)}"

    @field_validator("streams")
    @classmethod
    def _check_streams(cls, streams: tuple[str, ...]) -> tuple[str, ...]:
        if not streams or "" in streams:
            raise ValueError("no stream key is named: give at least one, as 'orders'")
        if len(set(streams)) != len(streams):
            raise ValueError("a stream key is named twice: name it once")
        _KEYS.check(*streams)
        return streams

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if self.username is not None and self.password is None:
            raise ValueError("a username without its password: give password too")
        if self.tls is not None and self.tls.server_hostname is not None:
            raise ValueError("tls: server_hostname: the certificate must have the name in host: give that as host")
        return self

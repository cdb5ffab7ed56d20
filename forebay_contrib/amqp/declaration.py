"""Declare an AMQP 0-9-1 source: queues of RabbitMQ, which the broker shares out among any number of receivers (X11).

Only the declaration and its checks; ``receiver_runtime.receivers.amqp`` connects, and needs the extra
``forebay[amqp]``.
"""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from receiver_runtime.sources.fields.secret import Secret  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.fields.several import Several  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.fields.tcp import Host, Tls, address_of, parse_tls
from receiver_runtime.sources.fields.units import parse_bytes, parse_duration
from receiver_runtime.sources.source import Guarantee, Source

_PORT = 5672
_TLS_PORT = 5671
_MOST_NAME_BYTES = 255  # AMQP's limit for a queue's name
_KEY = re.compile(r"message_id|header:.+", re.DOTALL)


class Amqp(Source):
    """Reads queues of a RabbitMQ broker, classic or quorum; one row per message, with its properties and headers.

    **At least once**: a message is acknowledged after the block that holds it is registered. A message that the broker
    delivers again is stored again, unless ``key`` identifies messages: then the repeat is left out.

    The queues must exist: Forebay neither declares nor binds them. A stream of RabbitMQ's is refused, because it would
    be read from its end at each start: bind a quorum queue to the same exchange.

    Args:
        host: the broker's name or address.
        port: by default 5672, and 5671 with TLS.
        virtual_host: the broker's virtual host that has the queues.
        queues: their names; each receiver consumes all of them.
        key: what identifies a message: ``"message_id"``, the property, or ``"header:NAME"``.
        prefetch: the broker delivers at most this many unacknowledged messages of each queue to a receiver. The
            receiver holds them in memory, which may take this number times the size of the largest message.
        heartbeat: broker and receiver check at least this often that the other one is still there.
        connect_timeout: how long one attempt to connect may take.
        username: the user to log in as; RabbitMQ's ``guest`` may connect only from the broker's own host.
        password: by reference (``EnvVar("NAME")``, ``"env:NAME"``, ``"file:/PATH"``).
        tls: ``True``, or a ``Tls``; no TLS by default.
        max_record_bytes: a larger message becomes a dead letter; ``"1MiB"`` or a number.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = (
        ("queue", "string"),
        ("value", "binary"),
        ("exchange", "string"),
        ("routing_key", "string"),
        ("redelivered", "bool"),
        ("message_id", "string"),
        ("correlation_id", "string"),
        ("content_type", "string"),
        ("timestamp", "timestamp[s, tz=UTC]"),
        ("headers", "list<item: struct<key: string, value: string>>"),
        ("content_encoding", "string"),
        ("type", "string"),
        ("app_id", "string"),
        ("reply_to", "string"),
    )
    record_column: ClassVar[str] = "value"
    needs_extra: ClassVar[str | None] = "amqp"
    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE
    receiver_class: ClassVar[str] = "forebay_contrib.amqp.receiver:AmqpReceiver"

    kind: Literal["amqp"] = "amqp"
    host: Host
    port: Annotated[int | None, Field(ge=1, le=65_535)] = None
    virtual_host: str = "/"
    queues: Several
    key: str | None = None
    prefetch: Annotated[int, Field(ge=1, le=65_535)] = 2000
    heartbeat: Annotated[float, BeforeValidator(parse_duration), Field(ge=1, le=65_535)] = 60.0
    connect_timeout: Annotated[float, BeforeValidator(parse_duration), Field(gt=0)] = 10.0
    username: str = "guest"
    password: Secret | None = None
    tls: Annotated[Tls | None, BeforeValidator(parse_tls)] = None
    max_record_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(ge=1, le=256 * 2**20)] = 2**20

    @classmethod
    def guarantees(cls) -> tuple[Guarantee, ...]:
        """Return the guarantee without a key, then the one with a key."""
        return (Guarantee.AT_LEAST_ONCE, Guarantee.AT_LEAST_ONCE_DEDUPLICATED)

    @property
    def address(self) -> str:
        """Return the broker and the queues."""
        host = "" if self.virtual_host == "/" else f"{self.virtual_host}/"
        return f"{address_of(self.host, self.broker_port)}/{host}{','.join(self.queues)}"

    @property
    def broker_port(self) -> int:
        """Return the port given, or the standard one."""
        return self.port or (_PORT if self.tls is None else _TLS_PORT)

    @field_validator("queues")
    @classmethod
    def _check_queues(cls, queues: tuple[str, ...]) -> tuple[str, ...]:
        if not queues:
            raise ValueError("no queue is named: give at least one")
        for queue in queues:
            if not queue or len(queue.encode()) > _MOST_NAME_BYTES:
                raise ValueError(f"{queue!r} is no name of a queue: give 1 to {_MOST_NAME_BYTES} bytes")
        if len(set(queues)) != len(queues):
            raise ValueError("a queue is named twice: name it once")
        return queues

    @field_validator("key")
    @classmethod
    def _check_key(cls, key: str | None) -> str | None:
        if key is not None and not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is no key: use 'message_id' or 'header:NAME'")
        return key

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if self.password is None and self.username != "guest":
            raise ValueError(f"username={self.username!r} without a password: give one by reference, as EnvVar('NAME')")
        return self

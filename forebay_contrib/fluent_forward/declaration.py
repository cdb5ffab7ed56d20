"""Declare a source of Fluent Forward: Fluentd, Fluent Bit, Docker and the Fluent loggers send it, over TCP and TLS.

Only the declaration and its checks; ``forebay_contrib.fluent_forward.receiver`` listens.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from receiver_runtime.sources.fields.secret import Secret  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.fields.several import Secrets  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.fields.tcp import Listen, Tls, check_server_tls, parse_listen, parse_tls
from receiver_runtime.sources.fields.units import parse_bytes, parse_duration
from receiver_runtime.sources.source import Guarantee, Source, SourceRule

_MOST_HOSTNAME = 255
_Size = Annotated[int, BeforeValidator(parse_bytes), Field(ge=1, le=256 * 2**20)]
_Seconds = Annotated[float, BeforeValidator(parse_duration), Field(gt=0)]


class FluentForward(Source):
    """Listens for records of Fluentd, Fluent Bit and Fluent loggers; one row per record, with its tag and time.

    **At least once, deduplicated** for a sender that asks for acknowledgements (``require_ack_response``): a chunk is
    acknowledged when the block that holds its records is registered. A chunk that comes again is recognised by its id
    and its content, and left out, within the stream's ``key_window``. **At most once** for a sender that does not ask.

    Args:
        listen: the address, as ``"0.0.0.0:24224"`` or ``"[::]:24224"``; port 0 takes any that is free.
        shared_key: what senders must know, by reference (``EnvVar("NAME")``, ``"env:NAME"``, ``"file:/PATH"``), one or
            several; each holds a key, or several, one per line. None by default: anyone may send.
        users: passwords by user name, by reference: with a shared key, a sender must also be one of these users.
        hostname: the name that the receiver gives itself to senders with a shared key. It must be none of theirs.
        tls: a ``Tls`` with ``certificate_file`` and ``key_file``; no TLS by default.
        key_from: ``"chunk"``: a chunk that comes again with the same content is stored once. None: it is stored again.
        udp_heartbeat: answer heartbeats at the same port of UDP, as old senders want.
        max_message_bytes: a larger message closes its connection, and is not acknowledged; also when decompressed,
            where it becomes a dead letter.
        max_record_bytes: a longer record becomes a dead letter.
        max_connections: at most this many connections at once; the next one is refused, and reported.
        max_connections_per_peer: at most this many of them from one peer, which is a host, or an IPv6 network of 64
            bits; by default four fifths of ``max_connections``, so that no host can take all.
        max_waiting_bytes: at most this many bytes of all connections wait for the end of their messages, and half of
            it of one peer. At most this many, and 1 GiB, are the rows of one message, each with its tag.
        connect_timeout: how long a TLS handshake may take, and then the sender's authentication.
        idle_timeout: how long a message may stop before its end; and a connection on which nothing came for this long
            gives its place to a new one when there is no other place.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = (
        ("tag", "string"),
        ("time", "timestamp[us, tz=UTC]"),
        ("time_unix_nano", "int64"),
        ("record", "string"),
        ("metadata", "string"),
        ("sender", "string"),
        ("received_at", "timestamp[us, tz=UTC]"),
    )
    record_column: ClassVar[str] = "record"
    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE_DEDUPLICATED
    receiver_class: ClassVar[str] = "forebay_contrib.fluent_forward.receiver:FluentForwardReceiver"
    letter_judge: ClassVar[str] = "forebay_contrib.fluent_forward.records:judge_letters"

    kind: Literal["fluent_forward"] = "fluent_forward"
    listen: Listen
    shared_key: Secrets = ()
    users: dict[str, Secret] = Field(default_factory=dict)
    hostname: Annotated[str, Field(min_length=1, max_length=_MOST_HOSTNAME)] = "forebay"
    tls: Annotated[Tls | None, BeforeValidator(parse_tls)] = None
    key_from: Literal["chunk"] | None = "chunk"
    udp_heartbeat: bool = False
    max_message_bytes: _Size = 16 * 2**20
    max_record_bytes: _Size = 2**20
    max_connections: Annotated[int, Field(ge=1, le=100_000)] = 500
    max_connections_per_peer: Annotated[int | None, Field(ge=1)] = None
    max_waiting_bytes: Annotated[int, BeforeValidator(parse_bytes), Field(ge=1)] = 64 * 2**20
    connect_timeout: _Seconds = 10.0
    idle_timeout: _Seconds = 60.0

    @classmethod
    def guarantees(cls) -> tuple[Guarantee, ...]:
        """Return the guarantees of chunks with ``key_from``, of chunks without, and of what asks for no answer."""
        return (Guarantee.AT_LEAST_ONCE_DEDUPLICATED, Guarantee.AT_LEAST_ONCE, Guarantee.AT_MOST_ONCE)

    @property
    def source_rule(self) -> SourceRule:
        """Return the rule of records that are not acknowledged. Each block of chunks has its own rule."""
        return SourceRule.NOT_SENT_AGAIN

    @property
    def address(self) -> str:
        """Return where it listens."""
        return self.listen

    @property
    def listen_address(self) -> tuple[str, int]:
        """Return where it listens, as (host, port)."""
        return parse_listen(self.listen)

    @property
    def transports(self) -> tuple[str, ...]:
        """Return the transports of the address, as ``forebay validate`` tries them."""
        return ("tcp", "udp") if self.udp_heartbeat else ("tcp",)

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.users and not self.shared_key:
            raise ValueError("users: the protocol asks for a user only beside a shared key: give shared_key too")
        check_server_tls(self.tls)
        if self.max_waiting_bytes < self.max_message_bytes:
            raise ValueError(
                f"max_waiting_bytes ({self.max_waiting_bytes}) has no room for one message of max_message_bytes "
                f"({self.max_message_bytes}): give more of it"
            )
        if self.udp_heartbeat and self.listen_address[1] == 0:
            raise ValueError(f"listen: {self.listen!r} takes any free port, and UDP another one: name a port")
        return self

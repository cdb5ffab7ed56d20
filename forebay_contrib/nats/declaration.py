"""Declare a NATS JetStream source: a stream, read through a durable pull consumer by any number of receivers (X11).

Only the declaration and its checks; ``receiver_runtime.receivers.nats`` connects, and needs the extra
``forebay[nats]``.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from receiver_runtime.sources.fields.dialects import Dialect
from receiver_runtime.sources.fields.loopback import are_loopback
from receiver_runtime.sources.fields.secret import Secret  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.fields.tcp import Servers, Tls, parse_tls
from receiver_runtime.sources.fields.units import parse_duration
from receiver_runtime.sources.source import Guarantee, Source

_NAME = re.compile(r"[^\s.*>/\\]+")


#: Subjects of NATS: a wildcard is a whole word.
_SUBJECTS = Dialect(
    (
        (r"(^|\.)[#+](\.|$)", "'*' stands for one word, and '>' for the rest"),
        (r"[^.]\*|\*[^.]", "'*' stands for one whole word, as 'orders.*.paid'"),
        (r"[^.]>|>.", "'>' stands for all the last words, as 'orders.>'"),
        ("\0", "leave out the NUL"),
    )
)


class NatsJetStream(Source):
    """Reads a stream of NATS JetStream; one row per message, with its subject, headers and sequence.

    **At least once, deduplicated**: a message is acknowledged after the block that holds it is registered. A message
    that the server delivers again is recognised by its sequence in the stream and its time, and left out, within the
    Forebay stream's ``key_window``.

    Args:
        servers: ``"host:port"``, or several of a cluster with commas between them.
        stream: JetStream's name of the stream.
        durable: the name of the consumer; it is created if it is missing. Each Forebay stream needs one of its own.
        subject: read only messages of subjects that match, as ``"orders.>"``; by default the whole stream.
        start: where a newly created consumer begins: ``"earliest"`` or ``"latest"``.
        ack_wait: a message is delivered again when the receiver that has it gives no sign of life for this long.
        in_flight: all receivers together may hold at most this many unacknowledged messages.
        connect_timeout: how long a connection, and each answer, may take.
        username: the user to log in as; and
        password: by reference (``EnvVar("NAME")``, ``"env:NAME"``, ``"file:/PATH"``); or
        token: by reference; or
        credentials_file: the absolute path of a file with a user's JWT and its seed.
        tls: ``True``, or a ``Tls``; no TLS by default.
    """

    columns: ClassVar[tuple[tuple[str, str], ...]] = (
        ("subject", "string"),
        ("value", "binary"),
        ("headers", "list<item: struct<key: string, value: string>>"),
        ("stream", "string"),
        ("sequence", "int64"),
        ("timestamp", "timestamp[us, tz=UTC]"),
    )
    record_column: ClassVar[str] = "value"
    needs_extra: ClassVar[str | None] = "nats"
    any_server_suffices: ClassVar[bool] = True
    guarantee: ClassVar[Guarantee] = Guarantee.AT_LEAST_ONCE_DEDUPLICATED
    receiver_class: ClassVar[str] = "forebay_contrib.nats.receiver:NatsJetStreamReceiver"

    kind: Literal["nats_jetstream"] = "nats_jetstream"
    servers: Servers
    stream: str
    durable: str
    subject: str | None = None
    start: Literal["earliest", "latest"] = "earliest"
    ack_wait: Annotated[float, BeforeValidator(parse_duration), Field(ge=1)] = 30.0
    in_flight: Annotated[int, Field(ge=1, le=1_000_000)] = 20_000
    connect_timeout: Annotated[float, BeforeValidator(parse_duration), Field(gt=0)] = 4.0
    username: str | None = None
    password: Secret | None = None
    token: Secret | None = None
    credentials_file: str | None = None
    tls: Annotated[Tls | None, BeforeValidator(parse_tls)] = None

    @property
    def is_bound_to_host(self) -> bool:
        """Return whether all servers are on the host where the receiver runs."""
        return are_loopback(self.servers)

    @property
    def address(self) -> str:
        """Return the servers, the stream and the subject."""
        return f"{self.servers}/{self.stream}" + ("" if self.subject is None else f"/{self.subject}")

    @field_validator("stream", "durable")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name: leave blanks, '.', '*', '>', '/' and '\\' out")
        return name

    @field_validator("subject")
    @classmethod
    def _check_subject(cls, subject: str | None) -> str | None:
        if subject is not None and (not subject or re.search(r"\s", subject) or "" in subject.split(".")):
            raise ValueError(f"{subject!r} is no subject: words with dots between, '*' for one word, '>' for the rest")
        _SUBJECTS.check(*([] if subject is None else [subject]))
        return subject

    @field_validator("credentials_file")
    @classmethod
    def _check_path(cls, path: str | None) -> str | None:
        if path is not None and not PurePath(path).is_absolute():
            raise ValueError(f"{path!r} is no whole path: give one from the root")
        return path

    @model_validator(mode="after")
    def _check_login(self) -> Self:
        if (self.username is None) is not (self.password is None):
            raise ValueError("a username and its password go together: give both, or neither")
        if sum(one is not None for one in (self.username, self.token, self.credentials_file)) > 1:
            raise ValueError("give one of username with password, token, and credentials_file")
        return self

"""Declare an Apache Kafka source: topics, read by a consumer group of any number of receivers (X03 to X05, W01).

Only the declaration and its checks; ``receiver_runtime.receivers.kafka`` connects, and needs the extra
``forebay[kafka]``.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from receiver_runtime.sources.fields.loopback import are_loopback
from receiver_runtime.sources.fields.secret import Secret
from receiver_runtime.sources.fields.several import Several  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.fields.tcp import Servers  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.source import Source

if TYPE_CHECKING:
    from collections.abc import Iterable

if TYPE_CHECKING:
    from collections.abc import Mapping

_TOPIC = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
#: Options that are secrets: accepted only by reference.
_SECRET_OPTIONS = frozenset(
    {
        "sasl.oauthbearer.client.secret",
        "sasl.password",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.password",
    }
)
#: Options that Forebay sets itself, and what to use instead.
_OURS: Mapping[str, str] = {
    "auto.offset.reset": "start and out_of_range",
    "bootstrap.servers": "bootstrap_servers",
    "enable.auto.commit": "guarantee",
    "enable.auto.offset.store": "guarantee",
    "enable.partition.eof": "nothing: it is not needed",
    "group.id": "group",
    "group.instance.id": "nothing: each receiver would need one of its own",
    "group.protocol": "nothing: groups are of the classic protocol",
    "metadata.broker.list": "bootstrap_servers",
}

Option = str | int | float | bool


# What Python's regular expressions have and POSIX's have not, or read otherwise: the client matches topics by POSIX's.
_NOT_POSIX = re.compile(
    r"\\[A-Za-z0-9]|\(\?|[*+?}][?+]|\[\^?\]?[^\]]*\\|\[\[?:|\{(?!\d{1,3}(?:,\d{0,3})?\})|\(\||\|\)|\|\||^\||\|$"
)

# In a pattern, without its classes and counts: what no topic's name has, and a name's begin or end in its middle.
_IN_NO_TOPIC = re.compile(r"\\[^A-Za-z0-9._-]|[^A-Za-z0-9._\-^$()|*+?\\]|(?<=[^(|^])\^|\$(?=[^)|$])|^[\^$()|]*$")
_CLASSES_AND_COUNTS = re.compile(r"\[\^?\]?[^\]]*\]|\{\d+,?\d*\}")

_WHOLE = re.compile(r"\s*-?\d+\s*")
_WHOLE_NUMBERS = (".ms", ".bytes", ".kbytes", ".messages")


def _check_numbers(options: Iterable[tuple[str, object]]) -> None:
    """Raise ValueError for a number with a unit: librdkafka takes `"10s"` of milliseconds for 10."""
    for name, value in options:
        if name.endswith(_WHOLE_NUMBERS) and not _WHOLE.fullmatch(str(value)):
            unit = name.rpartition(".")[2]
            raise ValueError(f"options: {name}={value!r} is no whole number of {unit}, which is all that it takes")


class Kafka(Source):
    """Reads topics of Apache Kafka; one row per record, with its key, position, time and headers.

    **Exactly once**, from the topic to registered blocks: each partition's position is in the driver log, and moves in
    the transaction that registers the records. It is committed to the broker afterwards, only for monitoring. With
    ``guarantee="at_most_once"`` the client commits by itself what it has read, whether or not it is stored.

    Args:
        bootstrap_servers: ``"host:port"``, or several with commas between them.
        topics: topics by name; or
        pattern: a regular expression that matches a topic's whole name, of those that Python and POSIX both read alike;
            topics that are created later are read too.
        group: the consumer group. Each stream needs one of its own: the group's receivers share the partitions out.
        start: where to begin in a partition of which nothing was read before: ``"earliest"``, ``"latest"``, or a time
            with its zone, to begin with the first record from that time on. A partition or a matching topic that did
            not exist when the stream began is read from its beginning.
        out_of_range: what to do when the next offset is not on the broker: deleted, or beyond the end of its log.
            ``"earliest"`` continues at the oldest record there, ``"latest"`` after the newest, ``"stop"`` ends the
            receiver as FAILED. Skipped offsets are counted, in the driver log and by an event.
        options: librdkafka's options, by their names, as ``{"security.protocol": "SASL_SSL"}``. A password is given by
            reference: ``{"sasl.password": EnvVar("NAME")}``, ``"env:NAME"`` or ``"file:/PATH"``.
        guarantee: ``"exactly_once"``, or ``"at_most_once"``.
        max_rate_per_partition: at most this many records per second of each partition, in addition to the stream's
            ``receiver_max_rate`` (spark.streaming.kafka.maxRatePerPartition); 0: no limit. Only for exactly once.
        fetch: ``"columns"`` gathers a batch's fields at once, by librdkafka's C interface, if the installed client is a
            release whose layout is known; ``"objects"`` asks each record for each field.
    """

    partition_columns: ClassVar[tuple[str, ...]] = ("topic", "partition")
    columns: ClassVar[tuple[tuple[str, str], ...]] = (
        ("key", "binary"),
        ("value", "binary"),
        ("topic", "string"),
        ("partition", "int32"),
        ("offset", "int64"),
        ("timestamp", "timestamp[ms, tz=UTC]"),
        ("headers", "list<item: struct<key: string, value: binary>>"),
    )
    record_column: ClassVar[str] = "value"
    needs_extra: ClassVar[str | None] = "kafka"
    any_server_suffices: ClassVar[bool] = True
    receiver_class: ClassVar[str] = "receiver_runtime.receivers.kafka.receiver:KafkaReceiver"

    kind: Literal["kafka"] = "kafka"
    bootstrap_servers: Servers
    topics: Several = ()
    pattern: str | None = None
    group: Annotated[str, Field(min_length=1, max_length=255)]
    start: Literal["earliest", "latest"] | datetime = "earliest"
    out_of_range: Literal["earliest", "latest", "stop"] = "earliest"
    options: dict[str, Option] = Field(default_factory=dict)
    # The values are those of ``base.Guarantee``, as text in declarations.
    guarantee: Literal["exactly_once", "at_most_once"] = "exactly_once"  # type: ignore[assignment, misc]
    max_rate_per_partition: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    fetch: Literal["columns", "objects"] = "columns"

    @property
    def is_bound_to_host(self) -> bool:
        """Return whether all servers are on the host where the receiver runs."""
        return are_loopback(self.bootstrap_servers)

    @property
    def address(self) -> str:
        """Return the servers, and the topics or the pattern."""
        return f"{self.bootstrap_servers}/{','.join(self.topics) or self.pattern}"

    @property
    def exactly_once(self) -> bool:
        """Return whether positions move in the transactions that register blocks."""
        return self.guarantee == "exactly_once"

    @property
    def subscription(self) -> list[str]:
        """Return the topics, or the pattern, as librdkafka takes them: it starts with ``^`` and matches whole names."""
        return list(self.topics) if self.pattern is None else [f"^({self.pattern})$"]

    def resolved_options(self) -> dict[str, Option]:
        """Return the options, with secrets resolved now. Raises SecretError."""
        return {
            name: Secret(str(value)).resolve() if name in _SECRET_OPTIONS else value
            for name, value in self.options.items()
        }

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        for topic in topics:
            if not _TOPIC.fullmatch(topic):
                raise ValueError(f"{topic!r} is no topic's name: letters, digits, '.', '_' and '-', or give pattern")
        if len(set(topics)) != len(topics):
            raise ValueError("a topic is named twice: name it once")
        return topics

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            if (beyond := _NOT_POSIX.search(pattern)) is not None:
                raise ValueError(
                    f"{pattern!r} has {beyond[0]!r} at {beyond.start()}, which librdkafka matches otherwise than "
                    "Python (it takes POSIX extended expressions): write [0-9] for \\d and [A-Za-z0-9_] for \\w, put "
                    "what is special in a class as [.], and leave out (?…), lazy repeats and empty alternatives"
                )
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
            if (beyond := _IN_NO_TOPIC.search(_CLASSES_AND_COUNTS.sub("a", pattern))) is not None:
                raise ValueError(
                    f"{pattern!r} matches no topic, for its {beyond[0]!r}: a name has letters, digits, '.', '_' and "
                    "'-' alone, and several names are written a|b"
                )
        return pattern

    @field_validator("start")
    @classmethod
    def _check_start(cls, start: str | datetime) -> str | datetime:
        if isinstance(start, datetime) and start.tzinfo is None:
            raise ValueError(f"the time {start.isoformat()} has no zone: add one, as '2026-01-31T12:00:00+00:00'")
        return start

    @field_validator("options", mode="before")
    @classmethod
    def _check_options(cls, options: Any) -> Any:  # noqa: ANN401  whatever was given
        if not isinstance(options, dict):
            return options
        checked = {}
        for name, value in options.items():
            if name in _OURS:
                raise ValueError(f"options: {name} is not to be set here: use {_OURS[name]}")
            # A secret is kept as its reference; a literal is refused.
            checked[name] = Secret.of(value).reference if name in _SECRET_OPTIONS else value
        _check_numbers(checked.items())
        return checked

    @model_validator(mode="after")
    def _check_what(self) -> Self:
        if bool(self.topics) == (self.pattern is not None):
            raise ValueError("reads topics by name or by a pattern: give topics=['orders'], or pattern='orders-.*'")
        if self.max_rate_per_partition and not self.exactly_once:
            raise ValueError(
                f"max_rate_per_partition={self.max_rate_per_partition:g} needs guarantee='exactly_once': with "
                "'at_most_once' limit the stream by receiver_max_rate"
            )
        return self

"""Keep the tokens of committed batches in a compacted topic, and find one again.

A token says that an attempt's rows are committed: it is a record of the same transaction. Its key names the output and
the batch, so that compaction keeps the newest one of each batch. Its time is the batch time. By it a look-up begins:
what it reads are the tokens of this batch and of later ones, which for the newest batch are a few, however many the
topic holds. All tokens are in partition 0, because a look-up by a key's hash would miss the earlier ones when somebody
adds partitions.

The topic that this module makes deletes tokens `TOKENS_KEPT` after their batch time: 8,640 batches a day are some 3 MB
a day. A batch that is older counts as one that may have been published. A topic that deletes earlier is refused.

A look-up never waits for the transactions of other outputs, unless one of them is open before a token of this batch:
it first reads all records, whatever becomes of them, and only if one has the key, the committed ones.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka import (
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import ConfigResource, NewTopic, OffsetSpec, ResourceType  # type: ignore[attr-defined]

from forebay_contrib.kafka.cluster import ANSWER_SECONDS, topic_right
from orchestration.declarations.sink import TargetUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import TracebackType

    from confluent_kafka import Message

    from forebay_contrib.kafka.cluster import Cluster

#: Tokens of older batches may be gone.
TOKENS_KEPT: Final = timedelta(days=30)
_KEPT_MS: Final = round(TOKENS_KEPT.total_seconds() * 1000)
#: The topic's settings, as it is made.
SETTINGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact,delete",
    "message.timestamp.type": "CreateTime",
    "retention.bytes": "-1",
    "retention.ms": str(_KEPT_MS),
}
# A look-up begins this many milliseconds before its batch: what is rounded on the way is less.
_MARGIN_MS: Final = 1000
# How old a record's time may be, as brokers before 3.6 and since call it.
_OLDEST: Final = ("message.timestamp.difference.max.ms", "message.timestamp.before.max.ms")
# librdkafka's own name is that of brokers whose versions it knows.
_NOT_SUPPORTED: Final = (KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE)  # noqa: SLF001
_PARTITION: Final = 0
_RECORDS: Final = 10_000
_POLL_SECONDS: Final = 0.02
_OF_TOKENS = ("Describe", "Read", "Write")


@dataclass(frozen=True, slots=True)
class Token:
    """Hold the commit of an attempt: its run, and how many rows are where."""

    attempt: int
    run: str
    rows: int
    location: str

    def encoded(self) -> bytes:
        """Return it as a record's value."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decoded(cls, value: bytes) -> Self:
        """Return the token of a record's value."""
        fields = json.loads(value)
        return cls(int(fields["attempt"]), str(fields["run"]), int(fields["rows"]), str(fields["location"]))


class UndecidedTokenError(TargetUnavailableError):
    """This batch has a token in a transaction that is open, or behind one."""


class Tokens:
    """Read the tokens of one topic. ``with Tokens(...) as tokens``."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster, self.topic = cluster, topic
        self.right = topic_right(topic, *_OF_TOKENS)
        self._place = TopicPartition(topic, _PARTITION)
        self.consumer: Consumer

    def __enter__(self) -> Self:
        with self._cluster.failures("its options"):
            self.consumer = self._cluster.consumer(committed=False)
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.consumer.close()

    def exist(self) -> bool:
        """Return whether there is the topic."""
        return self._cluster.topic(self.consumer, self.topic, self.right) is not None

    def make(self) -> None:
        """Make the topic; another process may do so at the same time."""
        right = topic_right(self.topic, "Create", *_OF_TOKENS)
        # Its answers come as long as it is there.
        admin = self._cluster.admin()
        [made] = admin.create_topics([NewTopic(self.topic, 1, config=dict(SETTINGS))]).values()
        with self._cluster.failures(f"the topic {self.topic} can't be made", right), _unless_it_exists():
            made.result(ANSWER_SECONDS)
        self._cluster.created_topic(self.consumer, self.topic, self.right)

    @property
    def command(self) -> str:
        """Return the command that makes the topic."""
        settings = " ".join(f"--config {name}={value}" for name, value in SETTINGS.items())
        return f"kafka-topics --create --topic {self.topic} --partitions 1 {settings}"

    def misfits(self, settings: Mapping[str, str]) -> list[str]:
        """Return by which settings the topic would lose tokens, or not give their times back."""
        wrong = []
        if "delete" in settings.get("cleanup.policy", ""):
            kept, most = int(settings.get("retention.ms", -1)), int(settings.get("retention.bytes", -1))
            if 0 <= kept < _KEPT_MS:
                wrong.append(f"retention.ms={kept}, and tokens are needed for {TOKENS_KEPT.days} days ({_KEPT_MS})")
            if most >= 0:
                wrong.append(f"retention.bytes={most}, and each token is needed: let it be -1")
        wrong += [
            f"{name}={settings[name]}, and a token's time is that of its batch: at least {_KEPT_MS}"
            for name in _OLDEST
            if int(settings.get(name, _KEPT_MS)) < _KEPT_MS
        ]
        if settings.get("message.timestamp.type", "CreateTime") != "CreateTime":
            wrong.append("message.timestamp.type=LogAppendTime, and a token's time is that of its batch: CreateTime")
        return wrong

    def settings_of(self, *topics: str) -> dict[str, Mapping[str, str]]:
        """Return the settings of topics; none of one if the user may not ask for them."""
        if not topics:
            return {}
        asked = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
        found: dict[str, Mapping[str, str]] = {}
        # As above.
        admin = self._cluster.admin()
        for topic, answer in admin.describe_configs(asked, request_timeout=ANSWER_SECONDS).items():
            with self._cluster.failures(f"the settings of the topic {topic.name}"):
                try:
                    settings = answer.result(ANSWER_SECONDS)
                except KafkaException as error:
                    if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                        raise
                    settings = {}
            found[topic.name] = {name: str(entry.value) for name, entry in settings.items()}
        return found

    def is_empty(self, topic: str, partitions: Iterable[int]) -> bool:
        """Return whether no record was ever written to a topic."""
        with self._cluster.failures(f"the ends of the topic {topic}", topic_right(topic, "Describe", "Read")):
            ends = [
                self.consumer.get_watermark_offsets(TopicPartition(topic, one), ANSWER_SECONDS) for one in partitions
            ]
        return all(end is not None and end[1] == 0 for end in ends)

    def find(self, key: bytes, batch_id: int, *, wait_seconds: float) -> Token | None:
        """Return the newest committed token of a batch.

        Raises UndecidedTokenError if an open transaction is in front of one for `wait_seconds`.
        """
        with self._cluster.failures(f"the topic {self.topic} can't be read", self.right):
            asked = TopicPartition(self.topic, _PARTITION, batch_id - _MARGIN_MS)
            [begin] = self.consumer.offsets_for_times([asked], ANSWER_SECONDS)
            if begin.error is not None:
                raise KafkaException(begin.error)
            at = begin.offset
            if at == OFFSET_END:
                # The brokers look into one segment: the first that had a record of this time or a later one, which
                # compaction may have removed. Tokens behind it are not found by their time then.
                if self._newest_time() < asked.offset:
                    return None
                at = self._ends(self.consumer)[0]
            ours = [_offset(one) for one in self._read(self.consumer, at, self._end(self.consumer)) if one.key() == key]
            if not ours:
                return None
            with contextlib.closing(self._cluster.consumer(committed=True)) as committed:
                give_up_at = time.monotonic() + wait_seconds
                while (end := self._end(committed)) <= ours[-1]:
                    if time.monotonic() > give_up_at:
                        raise UndecidedTokenError(
                            f"{self._cluster.where}: a transaction is open in the topic {self.topic}, before offset "
                            f"{ours[-1]}: it ends with its process, or at its transaction.timeout.ms"
                        )
                    time.sleep(_POLL_SECONDS)
                found = [one.value() for one in self._read(committed, ours[0], end) if one.key() == key]
        return Token.decoded(found[-1]) if found and found[-1] is not None else None

    def _newest_time(self) -> float:
        """Return the latest time that a record of the topic had, removed ones too; infinity if brokers can't say it."""
        # Its answers come as long as it is there.
        admin = self._cluster.admin()
        [answer] = admin.list_offsets(
            {self._place: OffsetSpec.max_timestamp()},  # type: ignore[no-untyped-call]
            request_timeout=ANSWER_SECONDS,
        ).values()
        try:
            found = answer.result(ANSWER_SECONDS)
        except KafkaException as error:
            # Brokers before 3.0.
            if error.args[0].code() not in _NOT_SUPPORTED:
                raise
            return math.inf
        # They name none also for a batch of records that compaction has emptied.
        return float(found.timestamp) if found.timestamp >= 0 else math.inf

    def _end(self, consumer: Consumer) -> int:
        """Return the offset after the last record that a consumer gets."""
        return self._ends(consumer)[1]

    def _ends(self, consumer: Consumer) -> tuple[int, int]:
        """Return the offsets of the first record, and after the last one that a consumer gets."""
        ends = consumer.get_watermark_offsets(self._place, ANSWER_SECONDS)
        if ends is None or ends[1] is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001  librdkafka's own name
        return int(ends[0]), int(ends[1])

    def _read(self, consumer: Consumer, begin: int, end: int) -> Iterator[Message]:
        """Yield the records from `begin` up to `end`, as far as the consumer gets them."""
        consumer.assign([TopicPartition(self.topic, _PARTITION, begin)])
        give_up_at = time.monotonic() + ANSWER_SECONDS
        at = begin
        while at < end:
            for message in consumer.consume(_RECORDS, _POLL_SECONDS):
                error, offset = message.error(), _offset(message)
                if error is None:
                    give_up_at = time.monotonic() + ANSWER_SECONDS
                    at = offset + 1
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001  librdkafka's own name
                    # Behind the last record there may be marks of transactions alone.
                    at = max(at, offset)
                elif error.code() in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError._ALL_BROKERS_DOWN):  # noqa: SLF001
                    # It needs no group.
                    continue
                elif not error.retriable():
                    raise KafkaException(error)
            if time.monotonic() > give_up_at:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001  librdkafka's own name
        consumer.unassign()


def _offset(message: Message) -> int:
    return int(message.offset() or 0)


@contextlib.contextmanager
def _unless_it_exists() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise

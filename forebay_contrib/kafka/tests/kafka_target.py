"""Provide topics of Kafka to test their sink on, and what readers of committed records see."""

from __future__ import annotations

import contextlib
import json
import math
import time
import uuid
from collections import Counter
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType  # type: ignore[attr-defined]

from forebay import KafkaSink
from forebay.testing.sinks import SinkTarget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Message
    from pyspark.sql.types import DataType


_SHOWN_SECONDS = 2.0


class KafkaTarget(SinkTarget):
    """A topic of one's own, and one for its tokens, which keeps those of any time. `options`: those of the sink."""

    def __init__(self, address: str, *, partitions: int = 3, **options: Any) -> None:  # noqa: ANN401
        self.address, self.options = address, options
        self.topic = f"t-{uuid.uuid4().hex[:10]}"
        self.commits = f"{self.topic}-commits"
        self.admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        self.make(self.topic, partitions)
        self.make(self.commits, 1, **{"cleanup.policy": "compact"})

    def make(self, topic: str, partitions: int = 1, **settings: str) -> None:
        [made] = self.admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]).values()
        made.result(30)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(30)

    def settings(self, topic: str) -> dict[str, str]:
        [found] = self.admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
        return {name: str(entry.value) for name, entry in found.result(30).items()}

    def ends(self) -> list[Any]:
        """Return the first offset of each partition, and the one after what readers of committed records get."""
        with contextlib.closing(self._reader(committed=True)) as consumer:
            return list(_ends(consumer, self.topic).values())

    def sink(self, **options: Any) -> KafkaSink:  # noqa: ANN401
        given = {"topic": self.topic, "commits_topic": self.commits, **self.options, **options}
        return KafkaSink(bootstrap_servers=self.address, **given)

    def messages(self, topic: str | None = None) -> list[Message]:
        """Return the committed records, as readers get them now."""
        return list(self._messages(topic or self.topic))

    def values(self, topic: str | None = None) -> list[Any]:
        return [json.loads(message.value() or b"null") for message in self.messages(topic)]

    def read(self) -> list[dict[str, Any]]:
        """Return the rows as a reader has them that follows the tokens: of each batch the newest attempt's."""
        newest: dict[bytes, int] = {}
        for token in self._messages(self.commits):
            newest[(token.key() or b"").split(b" ", 1)[1]] = json.loads(token.value() or b"")["attempt"]
        rows = []
        for message in self._messages(self.topic):
            headers: dict[str, Any] = dict(message.headers() or [])
            if newest[headers["forebay_batch"]] == int(headers["forebay_attempt"]):
                rows.append(json.loads(message.value() or b""))
        return rows

    def stored(self, value: Any, kind: DataType) -> Any:  # noqa: ANN401  any value of a column
        """Return a value as JSON has it."""
        del kind
        return _jsonable(value)

    def _reader(self, *, committed: bool) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "readers",
                "isolation.level": "read_committed" if committed else "read_uncommitted",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                "log_level": 0,
            }
        )

    def _messages(self, topic: str) -> Iterator[Message]:
        with (
            contextlib.closing(self._reader(committed=True)) as consumer,
            contextlib.closing(self._reader(committed=False)) as of_all,
        ):
            # A transaction that was committed shows a moment later, and one that is open does not.
            shows_at = time.monotonic() + _SHOWN_SECONDS
            while (ends := _ends(consumer, topic)) != _ends(of_all, topic) and time.monotonic() < shows_at:
                time.sleep(0.02)
            left = {one for one, (low, high) in ends.items() if high > low}
            consumer.assign([TopicPartition(topic, one, ends[one][0]) for one in left])
            give_up_at = time.monotonic() + 60
            while left:
                assert time.monotonic() < give_up_at, f"the end of {left} does not come"
                for message in consumer.consume(10_000, 0.02):
                    error = message.error()
                    if error is None:
                        yield message
                    else:
                        assert error.code() == KafkaError._PARTITION_EOF, error
                        left.discard(message.partition())


def _ends(consumer: Consumer, topic: str) -> dict[int, Any]:
    known = consumer.list_topics(topic, timeout=10).topics[topic]
    return {one: consumer.get_watermark_offsets(TopicPartition(topic, one), 10) for one in known.partitions}


def counted(target: KafkaTarget) -> Counter[tuple[Any, Any]]:
    """Return how often a reader of committed records gets each word and number."""
    return Counter((row["word"], row["n"]) for row in target.values())


def _jsonable(one: Any) -> Any:  # noqa: ANN401
    match one:
        case list():
            pairs = one and all(isinstance(pair, tuple) for pair in one)
            return {str(key): _jsonable(item) for key, item in one} if pairs else [_jsonable(item) for item in one]
        case dict():
            return {name: _jsonable(item) for name, item in one.items()}
        case bytes():
            return one.hex()
    return _as_text(one)


def _as_text(one: Any) -> Any:  # noqa: ANN401
    match one:
        case Decimal():
            return f"{one:f}"
        case float() if not math.isfinite(one):
            return "NaN" if math.isnan(one) else "Infinity" if one > 0 else "-Infinity"
        case datetime():
            return one.replace(tzinfo=None).isoformat(" ", "microseconds") + ("Z" if one.tzinfo else "")
        case date():
            return one.isoformat()
    return one

"""Kafka for the conformance suite and its own tests: topics, numbered records, and the expected output."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic  # type: ignore[attr-defined]

from forebay.testing.sending import Sending
from receiver_runtime.receivers.kafka.declaration import Kafka
from tests.support.brokers.kafka import MockKafka

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from confluent_kafka import Message

    from forebay.testing.source_rig import SourceRig
    from tests.support.brokers.kafka import AnyKafka

# Short timeouts, so that the group soon drops a member that was killed.
FAST = {"session.timeout.ms": 2000, "heartbeat.interval.ms": 200, "topic.metadata.refresh.interval.ms": 500}
# The mock cluster makes a group wait 3 s for its first members, and drops members it doesn't hear from meanwhile.
MOCK = {"session.timeout.ms": 6000}

Place = tuple[str, int, int]


class KafkaTopic:
    """A topic of its own on a broker, and every record that was acknowledged to its producer."""

    def __init__(
        self,
        broker: AnyKafka,
        *,
        partitions: int = 3,
        name: str | None = None,
        replicas: int | None = None,
        **settings: object,
    ) -> None:
        self.broker = broker
        self.name = name or f"t-{uuid.uuid4().hex[:10]}"
        self.sent: dict[Place, bytes | None] = {}
        self._admin = AdminClient({"bootstrap.servers": broker.address})
        self._settings = settings
        self._replicas = replicas or broker.replicas
        self._producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "linger.ms": 2,
                "enable.idempotence": True,
                "topic.metadata.refresh.interval.ms": 500,
            }
        )
        self._number = 0
        self.create(partitions)

    def create(self, partitions: int) -> None:
        if isinstance(self.broker, MockKafka):
            self.broker.make(self.name)
            return
        config = {name.replace("_", "."): str(value) for name, value in self._settings.items()}
        topic = NewTopic(self.name, num_partitions=partitions, replication_factor=self._replicas, config=config)
        self._admin.create_topics([topic])[self.name].result(30)

    def delete(self) -> None:
        self._admin.delete_topics([self.name])[self.name].result(30)

    def add_partitions(self, total: int) -> None:
        self._admin.create_partitions([NewPartitions(self.name, total)])[self.name].result(30)

    def delete_records(self, partition: int, before: int) -> None:
        for future in self._admin.delete_records([TopicPartition(self.name, partition, before)]).values():
            future.result(30)

    def source(self, **changes: Any) -> Kafka:  # noqa: ANN401  fields of the source
        options = {**FAST, **({} if self.broker.is_real else MOCK), **changes.pop("options", {})}
        given: dict[str, Any] = {
            "bootstrap_servers": self.broker.address,
            "group": f"g-{self.name}",
            "options": options,
            **({} if "pattern" in changes else {"topics": [self.name]}),
            **changes,
        }
        return Kafka(**given)

    def send(self, records: int, *, partition: int | None = None, **more: Any) -> None:  # noqa: ANN401  as `produce` takes it
        """Send numbered records, to one partition or to all in turn; return when all are acknowledged."""
        for _ in range(records):
            value = b"%d" % self._number
            self._number += 1
            chosen = {} if partition is None else {"partition": partition}
            self._produce(value, key=value, **chosen, **more)
        assert self._producer.flush(60) == 0

    def send_values(self, values: Sequence[bytes | None], *, partition: int) -> None:
        """Send these values; return when all are acknowledged."""
        for value in values:
            self._produce(value, key=b"k", partition=partition)
        assert self._producer.flush(60) == 0

    def send_pairs(self, pairs: Sequence[tuple[bytes | None, bytes | None]], *, partition: int) -> None:
        """Send these keys and values; return when all are acknowledged."""
        for key, value in pairs:
            self._produce(value, key=key, partition=partition)
        assert self._producer.flush(60) == 0

    def _produce(self, value: bytes | None, **more: Any) -> None:  # noqa: ANN401  as `produce` takes it
        while True:
            try:
                self._producer.produce(self.name, value, on_delivery=self._delivered, **more)
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                # The partition is new: the producer will know it soon.
                if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                    raise
                self._producer.poll(0.1)
            else:
                break
        self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self.sent[str(message.topic()), int(message.partition() or 0), int(message.offset() or 0)] = message.value()

    def all_came(self, rig: SourceRig) -> bool:
        return rig.registered() >= len(self.sent)

    def send_odd(self) -> int:
        """Send a tombstone, empty bytes, headers of every kind, and nearly a megabyte."""
        self._produce(None, key=b"gone")
        self._produce(b"", key=None)
        self._produce(b"x", headers=[("a", b"1"), ("a", None), ("empty", b""), ("ü", b"\xff\x00")])
        self._produce(b"y" * 900_000)
        assert self._producer.flush(60) == 0
        return 4

    def sending(self) -> Sending:
        return Sending(lambda: self.send(50))

    @contextmanager
    def away(self) -> Iterator[None]:
        if isinstance(self.broker, MockKafka):
            pytest.skip("librdkafka's mock cluster can't be taken away: needs Apache Kafka")
        self.broker.kill()
        yield
        self.broker.start()

    def check(self, rig: SourceRig) -> None:
        self.check_each_came_once(rig)

    def check_each_came_once(self, rig: SourceRig) -> None:
        """Check that the blocks hold each acknowledged (topic, partition, offset) once, with its value, and no more."""
        check_places(rig.rows(), self.sent)
        assert rig.failed_checks() == []


def links_of(rig: SourceRig) -> list[Any]:
    """Return the links of the topics' partitions, without those kept for the topics themselves."""
    return [row for row in rig.links() if row.partition.isdigit()]


def check_places(rows: Sequence[dict[str, Any]], sent: dict[Place, bytes | None]) -> None:
    places = [(row["topic"], row["partition"], row["offset"]) for row in rows]
    assert len(places) == len(set(places)), f"{len(places) - len(set(places))} records came twice"
    missing = sorted(set(sent) - set(places))
    assert not missing, f"{len(missing)} records did not come, as {missing[:5]}"
    assert not set(places) - set(sent)
    for row in rows:
        assert row["value"] == sent[row["topic"], row["partition"], row["offset"]]


def check_dense(rig: SourceRig, partitions: set[tuple[str, int]], records: int) -> None:
    """Check that there are `records` numbered records: each offset of each partition from 0, and each number, once."""
    found = rig.columns(["topic", "partition", "offset", "value"])
    assert found.num_rows == records, f"{found.num_rows} records for {records} sent"
    places = found.group_by(["topic", "partition"]).aggregate(
        [("offset", "count_distinct"), ("offset", "min"), ("offset", "max")]
    )
    rows = places.to_pylist()
    assert {(row["topic"], row["partition"]) for row in rows} == partitions
    for row in rows:
        assert (row["offset_min"], row["offset_count_distinct"]) == (0, row["offset_max"] + 1)
    assert sum(row["offset_count_distinct"] for row in rows) == records
    assert len(found["value"].unique()) == records
    assert rig.failed_checks() == []

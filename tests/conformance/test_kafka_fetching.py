"""Records fetched as columns equal those fetched as objects, from any position; on Apache Kafka. ``make kafka``."""

from __future__ import annotations

import random
import threading
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from receiver_runtime.receivers.kafka.library import ColumnFetcher, open_library
from receiver_runtime.receivers.kafka.records import records_of
from tests.conformance.kafka_source import KafkaTopic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.brokers.kafka import AnyKafka, KafkaBroker

# In seconds. Each of a test's waits may take long on a busy machine.
pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

# In seconds. A killed broker must be back within this time.
_SECONDS = 180.0
_LARGEST = 8_000_000
_PARTITIONS = 3
_DENSE = 20_000
_ROUNDS = 60


def settings(broker: AnyKafka) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.address,
        "group.id": f"g-{uuid.uuid4().hex}",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "fetch.queue.backoff.ms": 10,
        "log_level": 0,
    }


@contextmanager
def fetching(broker: AnyKafka) -> Iterator[ColumnFetcher]:
    library = open_library()
    assert library is not None
    made = ColumnFetcher(library, settings(broker))
    try:
        yield made
    finally:
        made.close()


def columns(broker: AnyKafka, topic: str, rows: int) -> pa.Table:
    found: list[pa.RecordBatch] = []
    deadline = time.monotonic() + _SECONDS
    with fetching(broker) as fetcher:
        fetcher.read_from({(topic, 0): 0})
        while sum(batch.num_rows for batch in found) < rows:
            assert time.monotonic() < deadline
            fetched = fetcher.fetch(1000, 0.1)
            assert not fetched.faults
            found += [records.batch for records in fetched.records]
    # Build the table after the client is closed, to check that the columns are copies.
    return pa.Table.from_batches(found).combine_chunks()


def objects(broker: AnyKafka, topic: str, rows: int) -> pa.Table:
    consumer = Consumer(settings(broker))
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages: list[Message] = []
    deadline = time.monotonic() + _SECONDS
    while len(messages) < rows:
        assert time.monotonic() < deadline
        messages += consumer.consume(1000, 0.1)
    consumer.close()
    [found], _ = records_of(messages)
    return pa.Table.from_batches([found.batch])


def send_all_kinds(broker: AnyKafka, topic: str, **options: object) -> int:
    """Send transactions (some aborted), compressed and huge values, nulls, and thousands of headers."""
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "transactional.id": f"x-{uuid.uuid4().hex}",
            "message.max.bytes": 2 * _LARGEST,
            "linger.ms": 20,
            **options,
        }
    )
    producer.init_transactions(_SECONDS)
    rows = 0
    for transaction in range(6):
        producer.begin_transaction()
        for number in range(50):
            producer.produce(
                topic,
                (None, b"", b"v" * number, bytes(random.Random(number).randbytes(100 * number)))[number % 4],
                key=(None, b"", b"k%d" % number)[number % 3],
                partition=0,
                timestamp=(int(time.time() * 1000), 1)[number % 2],
                headers=[("a", b"1"), ("a", None), ("\u00fc", b"\xff")] if number % 5 == 0 else [],
            )
        producer.produce(topic, b"many", partition=0, headers=[(f"h{number}", b"x") for number in range(3000)])
        producer.produce(topic, b"y" * _LARGEST, partition=0)
        if transaction % 3 == 1:
            producer.flush(_SECONDS)
            producer.abort_transaction(_SECONDS)
        else:
            producer.commit_transaction(_SECONDS)
            rows += 52
    return rows


@pytest.mark.parametrize(
    ("codec", "stamped"), [("none", "LogAppendTime"), ("zstd", "CreateTime"), ("lz4", "CreateTime")]
)
def test_every_kind_of_record_is_the_same_as_columns_and_as_objects(
    kafka_broker: KafkaBroker, codec: str, stamped: str
) -> None:
    topic = KafkaTopic(
        kafka_broker,
        partitions=1,
        message_timestamp_type=stamped,
        message_timestamp_before_max_ms=2**62,
        max_message_bytes=3 * _LARGEST,
        retention_ms=-1,
    ).name
    rows = send_all_kinds(kafka_broker, topic, **{"compression.type": codec})
    by_columns = columns(kafka_broker, topic, rows)
    by_columns.validate(full=True)
    assert by_columns.num_rows == rows
    assert by_columns.equals(objects(kafka_broker, topic, rows))
    assert by_columns["headers"].null_count > 0
    assert max(len(one) for one in by_columns["headers"].to_pylist() if one) == 3000


def test_records_fetched_before_a_change_of_position_are_dropped_even_if_the_broker_is_killed(
    kafka_broker: KafkaBroker,
) -> None:
    """Change positions while the fetch queues are full. The topic has every offset: each fetch must resume exactly."""
    topic = KafkaTopic(kafka_broker).name
    producer = Producer({"bootstrap.servers": kafka_broker.address, "enable.idempotence": True, "log_level": 0})
    for number in range(_DENSE):
        for partition in range(_PARTITIONS):
            producer.produce(topic, b"%d" % number, partition=partition)
        producer.poll(0)
    assert producer.flush(_SECONDS) == 0
    chosen = random.Random(1)
    starting: threading.Thread | None = None
    with fetching(kafka_broker) as fetcher:
        for turn in range(_ROUNDS):
            if turn == _ROUNDS // 2:
                kafka_broker.kill()
                starting = threading.Thread(target=kafka_broker.start, daemon=True)
                starting.start()
            going = chosen.sample(range(_PARTITIONS), chosen.randint(1, _PARTITIONS))
            fetcher.leave([(topic, partition) for partition in going])
            next_ones = {partition: chosen.randrange(_DENSE - 2000) for partition in going}
            fetcher.read_from({(topic, partition): at for partition, at in next_ones.items()})
            others = set(range(_PARTITIONS)) - set(going)
            fetcher.leave([(topic, partition) for partition in others])
            _check_dense(fetcher, topic, next_ones, chosen.choice([1, 100, 1000]), wait=turn % 3 > 0)
    if starting is not None:
        starting.join(_SECONDS)


def _check_dense(fetcher: ColumnFetcher, topic: str, next_ones: dict[int, int], most: int, *, wait: bool) -> None:
    """Fetch some records and check them; without ``wait``, fetch only those that are already there."""
    deadline = time.monotonic() + _SECONDS
    rows = 0
    while rows < 500:
        assert time.monotonic() < deadline
        for records in fetcher.fetch(most, 0.1 if wait else 0).records:
            values = records.batch["value"].to_pylist()
            for run in records.runs:
                offsets = records.offsets[run.first : run.end].tolist()
                assert run.topic == topic
                assert offsets[0] == next_ones[run.partition]
                assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
                assert values[run.first : run.end] == [b"%d" % offset for offset in offsets]
                next_ones[run.partition] = offsets[-1] + 1
                rows += len(offsets)
        if not wait:
            return

"""Measure how fast the Kafka source is: from a topic to registered blocks.

Its peers, in the same run and on the same topic: a bare loop of the client that consumes and keeps nothing, the same
receiver with `fetch="objects"`, and Structured Streaming's Kafka source that writes Parquet
(`benchmarks.kafka_spark`; ``--no-spark`` leaves it out). Then records of Avro, whose schema a registry has: a stream
that parses them beside one that keeps them as they came (``--avro`` measures only that).

Run as ``python -m benchmarks.kafka [--json] [--quick] [--no-spark] [--avro]``. The broker is Apache Kafka itself on
loopback, which Maven downloads (``tests/support/brokers/kafka.py``); it shares the machine with what is measured.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import fastavro
import psutil
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.kafka_spark import CORES, StructuredStreaming, receive_with_spark
from benchmarks.report import Report, machine, rate_figure, time_figure
from benchmarks.server import running_server
from forebay_contrib.schema_records.avro import Avro
from receiver_runtime.receivers.kafka.declaration import Kafka
from receiver_runtime.sources.fields.schema_registry import Registry
from tests.conformance.source_rig import SourceRig
from tests.support.brokers.kafka import KafkaBroker
from tests.support.servers.schema_registry import registry_server

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from receiver_runtime.sources.records.declared import Records

_TOPIC, _AVRO_TOPIC = "records", "avro"
_PARTITIONS = 4
_RECORD_BYTES = 100
_AIM = 1.0
_PARSED_AT_LEAST = 0.5  # of what a stream receives that keeps the same records as they came
_DISTINCT_RECORDS = 100_000
# Ten fields, as an order may have them.
_SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": "string"},
        {"name": "pieces", "type": "int"},
        {"name": "price", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "shop", "type": ["null", "string"]},
        {"name": "discount", "type": ["null", "double"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "customer", "type": "long"},
    ],
}
_AT_ONCE = 10_000
_DEADLINE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Set how much is measured."""

    rounds: int
    records: int


_FULL = Sizes(rounds=5, records=3_000_000)
_QUICK = Sizes(rounds=1, records=500_000)


def fill(broker: KafkaBroker, name: str, value_of: Callable[[int], bytes], records: int) -> None:
    """Produce records without keys, whose values are made of their numbers, in turn to each partition."""
    topic = NewTopic(name, num_partitions=_PARTITIONS, replication_factor=1)
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([topic])[name].result(30)
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 20, "queue.buffering.max.messages": 500_000})
    for number in range(records):
        value = value_of(number)
        while True:
            try:
                producer.produce(name, value, partition=number % _PARTITIONS)
            except BufferError:
                producer.poll(0.05)
            else:
                break
        if not number % 1000:
            producer.poll(0)
    producer.flush(60)


@dataclass(frozen=True, slots=True)
class Received:
    """Hold the figures of one reader from its first to its last records; CPU in seconds per million records."""

    records_per_second: float
    cpu_per_million: float


def bare_loop(broker: KafkaBroker, records: int, number: int) -> Received:
    """Consume all records by the client alone, in this process."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address,
            "group.id": f"bare-{number}",
            "auto.offset.reset": "earliest",
            # The same as Forebay's receiver: by default the client waits for a second whenever its queue is full.
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.subscribe([_TOPIC])
    first, got = 0.0, 0
    begun, cpu = 0, 0.0
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while got < records:
        got += len(consumer.consume(_AT_ONCE, 0.2))
        if got and not begun:
            first, begun, cpu = time.perf_counter(), got, time.process_time()
        if time.monotonic() > deadline:
            raise RuntimeError(f"the bare loop got {got} of {records} records")
    rate = (got - begun) / (time.perf_counter() - first)
    cpu = (time.process_time() - cpu) / (got - begun) * 1e6
    consumer.close()
    return Received(rate, cpu)


def receive(
    broker: KafkaBroker, url: str, directory: Path, records: int, name: str, parsed_as: Records | None = None
) -> Received:
    """Measure one receiver with the defaults, from its first registered block to its last.

    ``name``: of its stream; one that begins with ``objects`` asks each record for each field.
    """
    fetch: Literal["columns", "objects"] = "objects" if name.startswith("objects") else "columns"
    topic = _AVRO_TOPIC if name.startswith(_AVRO_TOPIC) else _TOPIC
    source = Kafka(bootstrap_servers=broker.address, topics=(topic,), group=f"forebay-{name}", fetch=fetch)
    rig = SourceRig.make(url, directory / name, source, records=parsed_as, stream=name, block_interval="200ms")
    try:
        process = psutil.Process(rig.start().pid)
        deadline = time.monotonic() + _DEADLINE_SECONDS
        marks: list[tuple[int, float]] = []
        while (registered := rig.registered()) < records or not marks:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{registered} of {records} records are registered:\n{rig.logs()}")
            if registered and not marks:
                marks.append((registered, _cpu(process)))
            time.sleep(0.01)
        marks.append((registered, _cpu(process)))
        [(rate,)] = rig.execute(
            "SELECT (max(total_records) - min(total_records)) / extract(epoch FROM max(added_at) - min(added_at)) "
            "FROM forebay.blocks WHERE receiver_id = :id AND records > 0",
            id=rig.receiver_ids[0],
        )
        (before, cpu_before), (after, cpu_after) = marks
        return Received(float(rate), (cpu_after - cpu_before) / max(1, after - before) * 1e6)
    finally:
        rig.close()


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def measure(
    report: Report, broker: KafkaBroker, url: str, sizes: Sizes, directory: Path, *, with_spark: bool = True
) -> None:
    """Measure all of them in turn."""
    report.section(f"{sizes.records:,} records of {_RECORD_BYTES} bytes, {_PARTITIONS} partitions")
    fill(broker, _TOPIC, lambda number: b"%0*d" % (_RECORD_BYTES, number), sizes.records)
    bare: list[Received] = []
    ours: list[Received] = []
    objects: list[Received] = []
    spark: list[StructuredStreaming] = []
    for number in range(sizes.rounds):
        bare.append(bare_loop(broker, sizes.records, number))
        ours.append(receive(broker, url, directory, sizes.records, f"columns{number}"))
        objects.append(receive(broker, url, directory, sizes.records, f"objects{number}"))
        if with_spark:
            spark.append(receive_with_spark(broker.address, _TOPIC, directory / f"spark{number}", sizes.records))
    rates = [one.records_per_second for one in ours]
    report.add(
        rate_figure(
            "topic to registered blocks",
            rates,
            [one.records_per_second for one in bare],
            peer_name="bare consume loop",
            unit="records/s",
            aim=_AIM,
        ),
        rate_figure(
            "by columns beside by objects",
            rates,
            [one.records_per_second for one in objects],
            peer_name='our fetch="objects"',
            unit="records/s",
        ),
        time_figure(
            "CPU per million records", _middle(ours), _middle(bare), peer_name="bare consume loop", unit="CPU s"
        ),
        time_figure(
            "CPU, by columns beside by objects",
            _middle(ours),
            _middle(objects),
            peer_name='our fetch="objects"',
            unit="CPU s",
        ),
    )
    if spark:
        report.add(
            rate_figure(
                "beside Structured Streaming",
                rates,
                [one.records_per_second for one in spark],
                peer_name=f"Structured Streaming to Parquet, {CORES} tasks",
                unit="records/s",
            ),
            rate_figure(
                "records per CPU second",
                [1e6 / one.cpu_per_million for one in ours],
                [1e6 / one.cpu_per_million for one in spark],
                peer_name="Structured Streaming to Parquet",
                unit="records",
                aim=_AIM,
            ),
        )


def avro_values(number: int) -> list[bytes]:
    """Return records of ten fields, behind the header of a registry that has their schema as this number."""
    values = []
    for row in range(_DISTINCT_RECORDS):
        out = io.BytesIO(b"\0" + number.to_bytes(4, "big"))
        out.seek(0, io.SEEK_END)
        record = {
            "id": row * 7919,
            "item": f"kettle{row % 1000:03d}",
            "pieces": row % 100,
            "price": row / 8,
            "paid": row % 2 == 0,
            "at": 1_767_323_045_678 + row,
            "shop": None if row % 3 else "Bonn",
            "discount": None if row % 4 else 0.5,
            "kind": "NEW" if row % 5 else "OLD",
            "customer": row * 104_729,
        }
        fastavro.schemaless_writer(out, _SCHEMA, record)
        values.append(out.getvalue())
    return values


def measure_avro(report: Report, broker: KafkaBroker, url: str, sizes: Sizes, directory: Path) -> None:
    """Measure a stream that parses Avro, beside one that keeps the same records as they came."""
    with registry_server() as server:
        number = server.register(f"{_AVRO_TOPIC}-value", {"schema": json.dumps(_SCHEMA)})
        values = avro_values(number)
        size = sum(map(len, values)) // len(values)
        report.section(f"{sizes.records:,} records of Avro, ten fields, {size} bytes, {_PARTITIONS} partitions")
        fill(broker, _AVRO_TOPIC, lambda row: values[row % len(values)], sizes.records)
        raw: list[Received] = []
        parsed: list[Received] = []
        for one in range(sizes.rounds):
            raw.append(receive(broker, url, directory, sizes.records, f"{_AVRO_TOPIC}raw{one}"))
            avro = Avro(registry=Registry(server.url))
            parsed.append(receive(broker, url, directory, sizes.records, f"{_AVRO_TOPIC}parsed{one}", avro))
    report.add(
        rate_figure(
            "Avro of a registry to columns",
            [one.records_per_second for one in parsed],
            [one.records_per_second for one in raw],
            peer_name="the same, untyped",
            unit="records/s",
            aim=_PARSED_AT_LEAST,
        ),
        time_figure(
            "Avro: CPU per million records", _middle(parsed), _middle(raw), peer_name="the same, untyped", unit="CPU s"
        ),
    )


def _middle(found: Sequence[Received]) -> float:
    return sorted(one.cpu_per_million for one in found)[len(found) // 2]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="one short round: to see that it works")
    parser.add_argument("--avro", action="store_true", help="only records of Avro, which a stream parses")
    parser.add_argument("--no-spark", action="store_true", help="leave Structured Streaming out, which needs Maven")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="forebay-benchmark-") as name,
        running_server(Path(name)) as server,
    ):
        broker = KafkaBroker(Path(name) / "kafka")
        broker.start()
        try:
            report = Report("kafka", machine(postgres=server.version()))
            sizes = _QUICK if arguments.quick else _FULL
            if not arguments.avro:
                measure(report, broker, server.url, sizes, Path(name), with_spark=not arguments.no_spark)
            measure_avro(report, broker, server.url, sizes, Path(name))
        finally:
            broker.kill()
    report.print(as_json=arguments.json)


if __name__ == "__main__":
    main()

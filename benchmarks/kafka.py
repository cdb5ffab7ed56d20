"""How fast the Kafka source is: a topic to registered blocks, beside a bare loop that consumes and keeps nothing.

Run as ``python -m benchmarks.kafka [--json] [--quick]``. The broker is Apache Kafka itself on loopback, which Maven
brings (``tests/kafka_broker.py``); it shares the machine with what is measured.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from benchmarks.report import Report, machine, rate_figure, time_figure
from benchmarks.server import running_server
from receiver_runtime.sources.kafka import Kafka
from tests.conformance.source_rig import SourceRig
from tests.kafka_broker import KafkaBroker

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOPIC = "records"
_PARTITIONS = 4
_RECORD_BYTES = 100
_AIM = 1.0
_AT_ONCE = 10_000
_DEADLINE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    rounds: int
    records: int


_FULL = Sizes(rounds=5, records=3_000_000)
_QUICK = Sizes(rounds=1, records=500_000)


def fill(broker: KafkaBroker, records: int) -> None:
    """Records of 100 bytes without keys, in turn to each partition."""
    topic = NewTopic(_TOPIC, num_partitions=_PARTITIONS, replication_factor=1)
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.create_topics([topic])[_TOPIC].result(30)
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 20, "queue.buffering.max.messages": 500_000})
    for number in range(records):
        value = b"%0*d" % (_RECORD_BYTES, number)
        while True:
            try:
                producer.produce(_TOPIC, value, partition=number % _PARTITIONS)
            except BufferError:
                producer.poll(0.05)
            else:
                break
        if not number % 1000:
            producer.poll(0)
    producer.flush(60)


def bare_loop(broker: KafkaBroker, records: int, number: int) -> float:
    """Records per second, from the first that comes to the last."""
    consumer = Consumer(
        {"bootstrap.servers": broker.address, "group.id": f"bare-{number}", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([_TOPIC])
    first, got = 0.0, 0
    begun = 0
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while got < records:
        got += len(consumer.consume(_AT_ONCE, 0.2))
        if got and not begun:
            first, begun = time.perf_counter(), got
        if time.monotonic() > deadline:
            raise RuntimeError(f"the bare loop got {got} of {records} records")
    rate = (got - begun) / (time.perf_counter() - first)
    consumer.close()
    return rate


@dataclass(frozen=True, slots=True)
class Received:
    """What one receiver did; CPU in seconds per million records, its start included."""

    records_per_second: float
    cpu_per_million: float


def receive(broker: KafkaBroker, url: str, directory: Path, records: int, number: int) -> Received:
    """One receiver with the defaults, from its first registered block to its last."""
    source = Kafka(bootstrap_servers=broker.address, topics=(_TOPIC,), group=f"forebay-{number}")
    rig = SourceRig.make(url, directory / f"round-{number}", source, stream=f"round{number}", block_interval="200ms")
    try:
        process = psutil.Process(rig.start().pid)
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while rig.registered() < records:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{rig.registered()} of {records} records are registered:\n{rig.logs()}")
            time.sleep(0.05)
        times = process.cpu_times()
        [(rate,)] = rig.execute(
            "SELECT (max(total_records) - min(total_records)) / extract(epoch FROM max(added_at) - min(added_at)) "
            "FROM forebay.blocks WHERE receiver_id = :id AND records > 0",
            id=rig.receiver_ids[0],
        )
        return Received(float(rate), (times.user + times.system) / records * 1e6)
    finally:
        rig.close()


def measure(report: Report, broker: KafkaBroker, url: str, sizes: Sizes, directory: Path) -> None:
    """Both sides in turn."""
    report.section(f"{sizes.records:,} records of {_RECORD_BYTES} bytes, {_PARTITIONS} partitions")
    fill(broker, sizes.records)
    bare: list[float] = []
    ours: list[Received] = []
    for number in range(sizes.rounds):
        bare.append(bare_loop(broker, sizes.records, number))
        ours.append(receive(broker, url, directory, sizes.records, number))
    report.add(
        rate_figure(
            "topic to registered blocks",
            [one.records_per_second for one in ours],
            bare,
            peer_name="bare consume loop",
            unit="records/s",
            aim=_AIM,
        ),
        time_figure("CPU per million records", _middle(ours), None, peer_name="", unit="CPU s"),
    )


def _middle(ours: Sequence[Received]) -> float:
    return sorted(one.cpu_per_million for one in ours)[len(ours) // 2]


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kafka", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--quick", action="store_true", help="one short round: to see that it works")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="forebay-benchmark-") as name,
        running_server(Path(name)) as server,
    ):
        broker = KafkaBroker(Path(name) / "kafka")
        broker.start()
        try:
            report = Report("kafka", machine(postgres=server.version()))
            measure(report, broker, server.url, _QUICK if arguments.quick else _FULL, Path(name))
        finally:
            broker.kill()
    report.print(as_json=arguments.json)


if __name__ == "__main__":
    main()

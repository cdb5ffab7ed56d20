"""Send numbered records to a topic at a rate until standard input ends, in a process of its own.

Prints one JSON object: how many were acknowledged, and the rate that was reached.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from confluent_kafka import Producer

if TYPE_CHECKING:
    from types import TracebackType

_TICK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of a load."""

    records: int
    records_per_second: float


class KafkaLoad:
    """The load's process. ``with KafkaLoad(...) as load: ...``; then ``load.sent``."""

    def __init__(self, address: str, topic: str, *, partitions: int, rate: int) -> None:
        self._command = [
            sys.executable,
            "-m",
            "tests.support.brokers.kafka_load",
            address,
            topic,
            str(partitions),
            str(rate),
        ]
        self._process: subprocess.Popen[str]
        self.sent = Sent(0, 0.0)

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self._process.kill()
        said, _none = self._process.communicate(timeout=120)
        if error is None:
            assert self._process.returncode == 0
            self.sent = Sent(**json.loads(said))


def main(address: str, topic: str, partitions: int, rate: int) -> None:
    """Send until standard input ends."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 200_000,
            "topic.metadata.refresh.interval.ms": 500,
        }
    )
    refused: list[object] = []

    def on_delivery(error: object, _: object) -> None:
        if error is not None:
            refused.append(error)

    number = 0
    began = time.monotonic()
    while not select.select([sys.stdin], [], [], _TICK_SECONDS)[0]:
        due = int((time.monotonic() - began) * rate)
        while number < due:
            try:
                producer.produce(topic, b"%d" % number, partition=number % partitions, on_delivery=on_delivery)
            except BufferError:
                producer.poll(0.05)
            else:
                number += 1
            if not number % 500:
                producer.poll(0)
        producer.poll(0)
    reached = number / (time.monotonic() - began)
    assert producer.flush(60) == 0
    assert not refused, refused[:3]
    print(json.dumps({"records": number, "records_per_second": reached}))  # noqa: T201  the result


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))

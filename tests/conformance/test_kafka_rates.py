"""The rate of each partition, on Apache Kafka: kept, without slowing others down, and each record comes once.

``make kafka``.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from forebay.testing.receiver_processes import eventually
from forebay.testing.sources import stop
from tests.conformance.kafka_source import KafkaTopic

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.testing.source_rig import SourceRig
    from tests.support.brokers.kafka import KafkaBroker

# In seconds. Each of a test's waits may take long on a busy machine.
pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

_RATE = 200
# At its rate the busy partition takes 40 s: longer than the quiet one needs on a slow machine.
_BUSY, _QUIET = 8000, 100
# Records that may pass early: the permits that a reader has saved up, and those of blocks that were registered late.
_SAVED = 5 * _RATE
# Seconds: two looks and a heartbeat, on a busy machine.
_SOON = 15.0


@pytest.mark.parametrize("options", [{}, {"partition.assignment.strategy": "range"}], ids=["cooperative", "eager"])
@pytest.mark.parametrize("fetch", ["columns", "objects"])
def test_a_busy_partition_keeps_its_rate_and_a_quiet_one_does_not_wait(
    kafka_broker: KafkaBroker, make_rig: Callable[..., SourceRig], fetch: str, options: dict[str, str]
) -> None:
    topic = KafkaTopic(kafka_broker, partitions=2)
    topic.send(_BUSY, partition=0)
    topic.send(_QUIET, partition=1)
    rig = make_rig(topic.source(fetch=fetch, max_rate_per_partition=_RATE, options=options), max_block_bytes="64KiB")

    def registered(partition: int) -> int:
        [(position,)] = rig.execute(
            "SELECT coalesce(max(to_offset), 0) FROM forebay.block_offsets WHERE partition = :partition",
            partition=str(partition),
        )
        return int(position)

    process = rig.start()
    eventually(lambda: registered(1) == _QUIET, "the quiet partition")
    # Killed with records that wait: the next process reads them again.
    process.kill()
    process.wait(30)
    done = registered(0)
    assert done < _BUSY - _SAVED, "what is left must take its time at the rate"
    second = rig.start(assignment=2)
    topic.send(_QUIET, partition=1)
    eventually(lambda: registered(1) == 2 * _QUIET, "the quiet partition again")
    eventually(lambda: topic.all_came(rig), "everything")
    stop(second)
    topic.check_each_came_once(rig)
    [(seconds,)] = rig.execute(
        "SELECT extract(epoch FROM max(b.added_at) - min(b.added_at)) FROM forebay.blocks b "
        "JOIN forebay.block_offsets o ON o.receiver_id = b.receiver_id AND o.sequence = b.sequence "
        "WHERE o.partition = '0' AND o.from_offset >= :done",
        done=done,
    )
    assert float(seconds) >= (_BUSY - done - _SAVED) / _RATE


@pytest.mark.parametrize("fetch", ["columns", "objects"])
def test_a_throttled_receiver_says_exactly_what_the_broker_has(
    kafka_broker: KafkaBroker, make_rig: Callable[..., SourceRig], fetch: str
) -> None:
    """The client's queue is full all the time, so that it fetches rarely, and hears rarely how far the log goes."""
    topic = KafkaTopic(kafka_broker, partitions=1)
    topic.send(_BUSY)
    rig = make_rig(
        topic.source(fetch=fetch, options={"queued.min.messages": 10, "fetch.message.max.bytes": 4000}),
        receiver_max_rate=_RATE,
    )
    process = rig.start()

    def said() -> tuple[int, int, int, float]:
        """Return the registered position, the log's end, what is unread, and the oldest unread record's age."""
        found = rig.execute(
            "SELECT position, source_position, unread, extract(epoch FROM clock_timestamp() - oldest_unread_at) AS age "
            "FROM forebay.source_progress WHERE partition = '0'"
        )
        row = next(iter(found), (0, 0, 0, 0))
        return int(row[0]), int(row[1] or 0), int(row[2] or 0), float(row[3] or 0)

    eventually(lambda: said()[0] > 0 and said()[1] == _BUSY, "the log's end")
    sent = time.monotonic()
    topic.send(_QUIET)
    eventually(lambda: said()[1] == _BUSY + _QUIET, "the new end, while the queue is full")
    seconds = time.monotonic() - sent
    position, end, unread, age = said()
    assert seconds < _SOON
    assert 0 < position < _BUSY
    assert unread == end - position
    assert 0 < age < seconds + 60
    [(partitions, fetched)] = rig.execute("SELECT partitions, fetched_records FROM forebay.receiver_status")
    # As objects the records are in a client that does not say how many it holds.
    assert (partitions, fetched is None) == (1, fetch == "objects")
    assert fetched is None or 0 < fetched < _BUSY
    stop(process)

"""Test that no receiver, stream or pipeline that has something to clean up is missed by the look that comes before.

Random states of the driver log are written straight into its tables, also some that no history leads to. What the look
leaves out is asked about all the same, and must have nothing to take.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.driver_log.filled_log import Size, fill
from tests.support.driver_log.log import INTERVAL, NOON, Log
from tests.support.searches import examples
from tracker_store.retention.cleanup import (
    Slice,
    clean_up_keys,
    clean_up_offsets,
    clean_up_receiver,
    receivers_to_clean_up,
    segments_to_delete,
    streams_to_clean_up,
)
from tracker_store.retention.history import clean_up_history, pipelines_with_history
from tracker_store.schema.states import BatchState
from tracker_store.schema.tables import SCHEMA, metadata

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracker_store.retention.cleanup import ReceiversToCleanUp

#: No id is in this part: only what the look finds is returned.
NOBODY = Slice(-1, 10)
HOUR = timedelta(hours=1)
ZERO = timedelta(0)
#: Batches of a pipeline, an hour apart; the last one is an hour old.
SLOTS = 6
UNFINISHED = [BatchState.ALLOCATED, BatchState.RUNNING, BatchState.FAILED, BatchState.BLOCKED]


def look(
    connection: sa.Connection,
    threshold: datetime,
    restore_window: timedelta = ZERO,
    *,
    after_id: int = 0,
    max_receivers: int = 100,
    max_segments: int = 100,
    part: Slice = NOBODY,
) -> ReceiversToCleanUp:
    return receivers_to_clean_up(
        connection,
        threshold=threshold,
        restore_window=restore_window,
        after_id=after_id,
        max_receivers=max_receivers,
        max_segments=max_segments,
        part=part,
    )


@dataclass
class RandomLog:
    """Writes a random state: two streams, three receivers, pipelines, readers, and what quarantined batches keep."""

    connection: sa.Connection
    random: Random
    now: datetime
    paths: int = 0

    def chance(self, percent: int) -> bool:
        return self.random.randrange(100) < percent

    def insert(self, table: str, **values: object) -> int:
        """Insert a row; return its id, or 0 if the table has none."""
        has_id = "id" in metadata.tables[f"{SCHEMA}.{table}"].columns
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join(f"%({name})s" for name in values)
        found = self.connection.exec_driver_sql(
            f"INSERT INTO forebay.{table} ({names}) VALUES ({marks}) {'RETURNING id' if has_id else ''}", values
        )
        return int(found.scalar_one()) if has_id else 0

    def write(self) -> list[int]:
        """Write all but links and keys; return the receivers."""
        streams = [
            self.insert("streams", name=f"s{n}", declaration="{}", retention=self.random.choice([2, 5, 100]) * HOUR)
            for n in range(2)
        ]
        receivers = []
        for ordinal, stream in enumerate([streams[0], streams[0], streams[1]], start=1):
            newest = self.random.randrange(12)
            low_mark = self.random.randrange(newest) if newest else 0
            receiver = self.insert("receivers", stream_id=stream, ordinal=ordinal, low_mark=low_mark)
            receivers.append((receiver, newest, low_mark))
        kept = self.pipelines(streams, receivers)
        self.readers(streams, receivers)
        for receiver, newest, low_mark in receivers:
            self.blocks(receiver, newest, low_mark, kept)
        return [receiver for receiver, _, _ in receivers]

    def pipelines(self, streams: list[int], receivers: list[tuple[int, int, int]]) -> set[tuple[int, int]]:
        """Return the blocks that are kept, as (receiver, sequence)."""
        kept: set[tuple[int, int]] = set()
        for number in range(self.random.choice([0, 1, 1, 1, 2, 3])):
            done = self.random.choice([*range(SLOTS), *[SLOTS] * SLOTS])
            times = [self.now - (SLOTS - slot) * HOUR for slot in range(done)]
            pipeline = self.insert(
                "pipelines",
                name=f"p{number}",
                declaration="{}",
                stream_ids=[stream for stream in streams if self.chance(65)],
                batch_interval=HOUR,
                retention=self.random.choice([0, 0, 2, 4]) * HOUR,
                last_batch_time=times[-1] if times else self.now - 9 * HOUR,
                removed_at=self.now if self.chance(20) else None,
                history_from=self.random.choice([None, *times]),
            )
            states = [
                self.random.choice([*UNFINISHED, *[BatchState.QUARANTINED] * 4])
                if self.chance(15)
                else self.random.choice([*[BatchState.COMPLETED] * 9, BatchState.DISCARDED])
                for _ in times
            ]
            for time, state in zip(times, states, strict=True):
                done_at = time if state is BatchState.COMPLETED else None
                self.insert(
                    "batches",
                    pipeline_id=pipeline,
                    batch_time=time,
                    oldest_time=time,
                    state=state.value,
                    records=0,
                    bytes=0,
                    blocks=0,
                    completed_at=done_at,
                )
                if state is not BatchState.RUNNING and self.chance(4):
                    self.insert(
                        "batch_attempts",
                        pipeline_id=pipeline,
                        batch_time=time,
                        attempt=9,
                        run_id="r",
                        kind="replay",
                        reach=self.random.choice([0, 2]) * HOUR,
                    )
            for receiver, newest, low_mark in receivers:
                kept |= self.ranges(pipeline, times, states, receiver, newest, low_mark)
        return kept

    def ranges(
        self,
        pipeline: int,
        times: list[datetime],
        states: list[BatchState],
        receiver: int,
        newest: int,
        low_mark: int,
    ) -> set[tuple[int, int]]:
        kept: set[tuple[int, int]] = set()
        first = self.random.choice([1, 1, low_mark + 1])
        if self.chance(10):
            return kept
        for time, state in zip(times, states, strict=True):
            upper = min(newest + 1, first + self.random.choice([0, 0, 0, 1, 2, 3]))
            if upper <= first:
                continue
            of_batch = {"pipeline_id": pipeline, "batch_time": time, "receiver_id": receiver, "records": 0, "bytes": 0}
            self.insert("batch_allocations", **of_batch, sequences=f"[{first},{upper})")
            if state in (BatchState.QUARANTINED, BatchState.DISCARDED):
                released = self.now if state is BatchState.DISCARDED else None
                self.insert("kept_ranges", **of_batch, sequences=f"[{first},{upper})", released_at=released)
                kept |= {(receiver, sequence) for sequence in range(first, upper)}
            first = upper
        if first > 1 or self.chance(50):
            self.insert("cursors", consumer_id=pipeline, receiver_id=receiver, next_sequence=first)
        return kept

    def readers(self, streams: list[int], receivers: list[tuple[int, int, int]]) -> None:
        for number in range(self.random.choice([0, 0, 0, 1, 2])):
            removed = self.now if self.chance(40) else None
            stream = self.random.choice(streams)
            reader = self.insert("readers", name=f"r{number}", stream_id=stream, removed_at=removed)
            for receiver, newest, _ in receivers:
                if self.chance(80):
                    place = newest + 1 - self.random.choice([0, 0, 0, 1, 3])
                    self.insert("cursors", consumer_id=reader, receiver_id=receiver, next_sequence=max(1, place))

    def blocks(self, receiver: int, newest: int, low_mark: int, kept: set[tuple[int, int]]) -> None:
        epoch = segment = 0
        in_kept: Counter[int] = Counter()
        for sequence in range(1, newest + 1):
            is_marker = sequence == 1 or self.chance(15)
            if is_marker or self.chance(35):
                epoch += is_marker
                segment = self.segment(receiver, epoch, newest)
            if not is_marker and sequence <= low_mark:
                if (receiver, sequence) not in kept:
                    continue
                in_kept[segment] += 1
            handle = None if is_marker else segment
            self.insert(
                "blocks",
                receiver_id=receiver,
                sequence=sequence,
                epoch=epoch,
                added_at=self.now - (newest + 1 - sequence) * HOUR,
                records=0 if is_marker else 1,
                bytes=0,
                total_records=sequence,
                total_bytes=0,
                segment_id=handle,
                **dict.fromkeys(("offset", "length", "crc32c"), None if is_marker else 1),
            )
        for segment_id, blocks in in_kept.items():
            self.connection.execute(
                sa.text("UPDATE forebay.log_segments SET kept_blocks = :blocks WHERE id = :id"),
                {"blocks": blocks, "id": segment_id},
            )

    def links(self, streams: int = 2) -> list[int]:
        """Write streams with links and keys only; return them."""
        made = []
        for number in range(streams):
            declaration = self.random.choice(["{}", '{"settings": {"key_window": 5400}}'])
            stream = self.insert("streams", name=f"s{number}", declaration=declaration)
            made.append(stream)
            receivers = {
                self.insert("receivers", stream_id=stream, ordinal=ordinal, low_mark=mark): mark
                for ordinal, mark in enumerate(self.random.choices(range(4), k=2), start=1)
            }
            for key in range(self.random.randrange(3)):
                age = self.random.choice([10, 10, 10, 60, 120, 240]) * timedelta(minutes=1)
                self.insert(
                    "record_keys",
                    stream_id=stream,
                    key=str(key),
                    receiver_id=min(receivers),
                    sequence=1,
                    added_at=self.now - age,
                )
            for partition in range(self.random.randrange(4)):
                self.partition(stream, str(partition), receivers)
        return made

    def partition(self, stream: int, partition: str, receivers: dict[int, int]) -> None:
        """Write a chain of links in each generation; its later links have later blocks."""
        for generation in range(self.random.choice([1, 1, 2])):
            receiver = self.random.choice(list(receivers))
            # Clean-up has deleted the oldest ones.
            first = self.random.choice([0, 0, 1, 2])
            sequence = self.random.choice([0, 0, receivers[receiver], receivers[receiver] + 1])
            for number in range(first, first + self.random.choice([1, 1, 2, 3])):
                self.insert(
                    "block_offsets",
                    stream_id=stream,
                    source="topic",
                    partition=partition,
                    generation=generation,
                    from_offset=number - 1,
                    to_offset=number + 1,
                    kind="block" if number else "origin",
                    receiver_id=receiver,
                    sequence=sequence,
                )
                sequence += self.random.choice([0, 1, 1])

    def segment(self, receiver: int, epoch: int, newest: int) -> int:
        state = self.random.choice(["OPEN", "SEALED", "SEALED", "SEALED", "DELETING"])
        is_open, is_salvaged = state == "OPEN", self.chance(15)
        self.paths += 1
        segment = self.insert(
            "log_segments",
            receiver_id=receiver,
            epoch=epoch,
            path=str(self.paths),
            source_rule="offsets",
            state=state,
            length=None if is_open else 1,
            sealed_at=None if is_open else self.now - self.random.randrange(1, 5) * HOUR,
            salvaged_to=1 if is_salvaged else None,
            salvaged_sequence=self.random.randrange(1, newest + 1) if is_salvaged else None,
        )
        at = {"receiver_id": receiver, "segment_id": segment, "offset": 1, "length": 1, "crc32c": 1}
        if self.chance(10):
            self.insert("dead_letters", **at, epoch=epoch, reason="r", part=0, bytes=1)
        return segment


@contextmanager
def rolled_back(connection: sa.Connection, name: str) -> Iterator[None]:
    connection.exec_driver_sql(f"SAVEPOINT {name}")
    try:
        yield
    finally:
        connection.exec_driver_sql(f"ROLLBACK TO {name}")


def takes(connection: sa.Connection, receiver: int, threshold: datetime) -> bool:
    """Return whether clean_up_receiver changes anything; it is rolled back."""
    seen = sa.text("""
        SELECT ARRAY(SELECT b.sequence FROM forebay.blocks b WHERE b.receiver_id = :id ORDER BY 1),
               ARRAY(SELECT k::text FROM forebay.kept_ranges k WHERE k.receiver_id = :id ORDER BY 1),
               (SELECT r.low_mark FROM forebay.receivers r WHERE r.id = :id)
    """)
    with rolled_back(connection, "cleaned"):
        before = connection.execute(seen, {"id": receiver}).one()
        cleaned = clean_up_receiver(connection, receiver_id=receiver, threshold=threshold, max_rows=1000)
        is_changed = before != connection.execute(seen, {"id": receiver}).one()
    assert is_changed or (cleaned.blocks, cleaned.more) == (0, False)
    return is_changed


def deletes(connection: sa.Connection, receiver: int, restore_window: timedelta) -> bool:
    """Return whether segments_to_delete finds any; it is rolled back."""
    with rolled_back(connection, "deleted"):
        return bool(segments_to_delete(connection, receiver_id=receiver, restore_window=restore_window, limit=10))


#: What a look does not ask: such a receiver may be named although nothing of it can be taken.
NOT_ASKED = """
    SELECT EXISTS (SELECT FROM forebay.batch_attempts WHERE kind = 'replay' AND state = 'RUNNING')
        OR EXISTS (SELECT FROM forebay.cursors c
                   JOIN forebay.pipelines p ON p.id = c.consumer_id AND p.removed_at IS NULL
                   JOIN forebay.receivers r ON r.id = c.receiver_id
                   WHERE NOT r.stream_id = ANY (p.stream_ids))
"""


@pytest.mark.search
@pytest.mark.timeout(300)
def test_every_receiver_that_has_something_to_take_is_named(connection: sa.Connection) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=examples(500), deadline=None, suppress_health_check=list(HealthCheck))
    @given(seed=st.integers(0, 2**32), age=st.sampled_from([0, 0, 2, 4]), window=st.sampled_from([0, 3]))
    def compare(seed: int, age: int, window: int) -> None:
        with rolled_back(connection, "written"):
            now: datetime = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
            receivers = RandomLog(connection, Random(seed), now).write()
            threshold, restore_window = now - age * HOUR, window * HOUR
            found = look(connection, threshold, restore_window)
            is_exact = not connection.exec_driver_sql(NOT_ASKED).scalar_one()
            for receiver in receivers:
                is_taken, is_named = takes(connection, receiver, threshold), receiver in found.of_blocks
                assert is_named or not is_taken
                assert is_taken or not is_named or not is_exact
                seen[f"blocks: {is_named}, {is_taken}"] += 1
                is_deleted = deletes(connection, receiver, restore_window)
                assert is_deleted == (receiver in found.of_segments)
                seen[f"segments: {is_deleted}"] += 1

    connection.exec_driver_sql("BEGIN")
    compare()
    connection.exec_driver_sql("ROLLBACK")
    # Otherwise nothing was compared.
    assert min(seen[kind] for kind in ("blocks: True, True", "blocks: False, False")) > examples(50)
    assert min(seen[kind] for kind in ("segments: True", "segments: False")) > examples(50)


EXPIRED_KEYS = sa.text("""
    SELECT EXISTS (
        SELECT FROM forebay.record_keys k
        JOIN forebay.streams s ON s.id = k.stream_id
        WHERE k.stream_id = :stream
          AND k.added_at < clock_timestamp() - coalesce(
              make_interval(secs => CAST(s.declaration #>> '{settings,key_window}' AS float8)), :window)
    )
""")


@pytest.mark.search
@pytest.mark.timeout(300)
def test_every_stream_that_has_links_or_keys_to_take_is_named_and_no_other(connection: sa.Connection) -> None:
    seen: Counter[bool] = Counter()

    @settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
    @given(seed=st.integers(0, 2**32))
    def compare(seed: int) -> None:
        with rolled_back(connection, "written"):
            now: datetime = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
            streams = RandomLog(connection, Random(seed), now).links()
            found = streams_to_clean_up(connection, window=3 * HOUR, max_streams=100, part=NOBODY)
            for stream in streams:
                with rolled_back(connection, "taken"):
                    expired = connection.execute(EXPIRED_KEYS, {"stream": stream, "window": 3 * HOUR}).scalar_one()
                    links = clean_up_offsets(connection, stream_id=stream, max_rows=10)
                    keys = clean_up_keys(connection, stream_id=stream, window=3 * HOUR, max_rows=10)
                # Keys that an outage keeps past their window are looked at in each round.
                assert (links > 0 or expired) == (stream in found.stream_ids)
                assert expired or not keys
                seen[links + keys > 0] += 1

    connection.exec_driver_sql("BEGIN")
    compare()
    connection.exec_driver_sql("ROLLBACK")
    assert min(seen.values()) > examples(50)


@pytest.mark.search
@pytest.mark.timeout(300)
def test_every_pipeline_that_has_history_to_take_is_named(connection: sa.Connection) -> None:
    seen: Counter[tuple[bool, bool]] = Counter()
    moved = sa.text("SELECT history_from FROM forebay.pipelines WHERE id = :id")

    @settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
    @given(seed=st.integers(0, 2**32), age=st.sampled_from([0, 3, 9]))
    def compare(seed: int, age: int) -> None:
        with rolled_back(connection, "written"):
            now: datetime = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
            RandomLog(connection, Random(seed), now).write()
            pipelines = connection.exec_driver_sql("SELECT id FROM forebay.pipelines").scalars().all()
            named = pipelines_with_history(connection, keep=age * HOUR, part=NOBODY)
            for pipeline in pipelines:
                with rolled_back(connection, "taken"):
                    before = connection.execute(moved, {"id": pipeline}).scalar_one()
                    gone = clean_up_history(connection, pipeline_id=pipeline, keep=age * HOUR, max_rows=100)
                    is_taken = gone.rows > 0 or before != connection.execute(moved, {"id": pipeline}).scalar_one()
                assert pipeline in named or not is_taken
                seen[pipeline in named, is_taken] += 1

    connection.exec_driver_sql("BEGIN")
    compare()
    connection.exec_driver_sql("ROLLBACK")
    assert min(seen[True, True], seen[False, False]) > examples(50)
    assert seen[True, False] < seen[True, True] / 2, "what a quarantined batch or a replay holds is rare"


def test_each_receiver_stream_and_pipeline_has_its_turn_whatever_it_has(connection: sa.Connection) -> None:
    """Check this because it finds what a look should ever miss."""
    fill(connection, Size(receivers=6, streams=3, pipelines=3, batches=5, retained=1))
    long_ago = datetime.now(UTC) - timedelta(days=300)
    turns: Counter[tuple[str, int]] = Counter()
    for number in range(4):
        part = Slice(number, 4)
        found = look(connection, long_ago, 300 * timedelta(days=1), part=part)
        streams = streams_to_clean_up(connection, window=timedelta(days=300), max_streams=10, part=part)
        pipelines = pipelines_with_history(connection, keep=timedelta(days=300), part=part)
        assert found.of_blocks == found.of_segments
        turns.update(("receiver", one) for one in found.of_blocks)
        turns.update(("stream", one) for one in streams.stream_ids)
        turns.update(("pipeline", one) for one in pipelines)
    all_of_them = {"receiver": 6, "stream": 3, "pipeline": 3}
    assert turns == Counter((kind, n) for kind, count in all_of_them.items() for n in range(1, count + 1))


def test_a_look_goes_through_receivers_and_streams_in_pages(connection: sa.Connection) -> None:
    fill(connection, Size(receivers=6, streams=3, pipelines=3, batches=5, retained=5))
    named, pages, after = [], 0, 0
    while True:
        found = look(connection, datetime.now(UTC), after_id=after, max_receivers=4)
        named += found.of_blocks
        pages += 1
        if found.last_id is None:
            break
        after = found.last_id
    assert (named, pages) == ([1, 2, 3, 4, 5, 6], 2)
    first = streams_to_clean_up(connection, window=-HOUR, max_streams=2, part=NOBODY)
    assert (first.stream_ids, first.last_id) == ([1, 2], 2)
    rest = streams_to_clean_up(connection, window=-HOUR, max_streams=2, part=NOBODY, after_id=2)
    assert (rest.stream_ids, rest.last_id) == ([3], None)


def test_segments_behind_many_that_are_held_wait_for_the_receivers_turn(connection: sa.Connection, log: Log) -> None:
    [receiver] = log.receiver_ids
    for number in range(3):
        log.add_at(receiver, NOON + number * INTERVAL)
    seal_all(log)
    letters = RandomLog(connection, Random(0), NOON)
    first = connection.exec_driver_sql("SELECT min(id) FROM forebay.log_segments").scalar_one()
    at = {"receiver_id": receiver, "segment_id": first, "offset": 1, "length": 1, "crc32c": 1}
    letters.insert("dead_letters", **at, epoch=1, reason="r", part=0, bytes=1)
    log.tracker.allocate_blocks_to_batch(NOON + 9 * INTERVAL)
    connection.exec_driver_sql("UPDATE forebay.batches SET state = 'COMPLETED', completed_at = clock_timestamp()")
    clean_up_receiver(connection, receiver_id=receiver, threshold=datetime.now(UTC), max_rows=100)
    assert look(connection, NOON, max_segments=2).of_segments == [receiver]
    assert look(connection, NOON, max_segments=1).of_segments == []
    assert look(connection, NOON, max_segments=1, part=Slice(receiver, receiver + 1)).of_segments == [receiver]


def seal_all(log: Log) -> None:
    log.connection.exec_driver_sql(
        "UPDATE forebay.log_segments SET state = 'SEALED', length = 1, sealed_at = clock_timestamp()"
    )

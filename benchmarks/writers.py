"""Writers that add blocks, or do plain inserts, each call as soon as the last one was answered.

Each writer is a separate process, like a receiver process. With threads, one interpreter's lock would be the limit from
a few writers on, for the plain insert as for `add_block`, and their ratio would measure Python and not the server. All
writers connect as Forebay does, with its timeouts, warm up, and begin together. The plain insert and the bare statement
are executed by psycopg2's cursor of such a connection.
"""

from __future__ import annotations

import multiprocessing
import time
from contextlib import contextmanager
from ctypes import c_bool
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from benchmarks.server import PLAIN_INSERT
from tests.support.driver_log.log import GIVEN_SEGMENTS, claim_anew, give_segments
from tracker_store.blocks.blocks import (
    AddOutcome,
    BlockHandle,
    Claim,
    NewBlock,
    OffsetLink,
    add_blocks,
    open_partition,
)
from tracker_store.connection.engine import connect, create_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.synchronize import Barrier

    import sqlalchemy as sa

    from benchmarks.server import Server

_START_SECONDS = 60
# A session compiles the function and plans its statements in its first calls; a receiver's session lasts for days.
_WARM_UP_CALLS = 10
_PLAIN_STEP = 1_000_000


class Work(StrEnum):
    """Name the call that a writer repeats."""

    PLAIN = "plain insert"
    ADD = "add_block"
    ADD_LINKED = "add_block with a link"
    # Calls the function as the plain insert is called: the difference to ADD is the cost of Forebay's client code.
    STATEMENT = "add_block, bare statement"


@dataclass(frozen=True)
class Job:
    """One writer's work: the receivers that it claimed, and how many blocks of each go into one call."""

    work: Work
    claims: Sequence[Claim]
    blocks_per_call: int = 1


def write(server: Server, work: Work, receiver_ids: Sequence[int], seconds: float) -> float:
    """Return the blocks per second of one writer per receiver, one block per call."""
    with claiming(server, receiver_ids) as claims:
        return _run(server, [Job(work, [claimed]) for claimed in claims], seconds)


def write_grouped(server: Server, receiver_ids: Sequence[int], blocks_per_receiver: int, seconds: float) -> float:
    """Return the blocks per second of one writer that sends this many blocks of each receiver in one call."""
    with claiming(server, receiver_ids) as claims:
        return _run(server, [Job(Work.ADD, claims, blocks_per_receiver)], seconds)


@contextmanager
def claiming(server: Server, receiver_ids: Sequence[int]) -> Iterator[list[Claim]]:
    """Claim the receivers again; yield the claims, with no connection open while writers are started."""
    with connect(server.engine) as connection:
        give_segments(connection, *receiver_ids)
        claims = [claim_anew(connection, receiver_id) for receiver_id in receiver_ids]
    server.engine.dispose()
    yield claims


def _run(server: Server, jobs: Sequence[Job], seconds: float) -> float:
    with Writers(server, jobs) as writers:
        time.sleep(seconds)
        return writers.stop()


class Writers:
    """Writers that run while the context is entered; `stop` returns their rate."""

    def __init__(self, server: Server, jobs: Sequence[Job]) -> None:
        # Fork, because a new interpreter for each of 64 writers would take longer to load than the measurement.
        context = multiprocessing.get_context("fork")
        self._counts = context.SimpleQueue()
        self._ready = context.Barrier(len(jobs) + 1)
        # Read before each call. An Event would make all writers wait for its lock.
        self._end = context.RawValue(c_bool, False)  # noqa: FBT003
        self._processes = [
            context.Process(target=_write, args=(server, job, self._ready, self._end, self._counts.put), daemon=True)
            for job in jobs
        ]
        self._began = 0.0

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        self._ready.wait(_START_SECONDS)
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.value = True
        for process in self._processes:
            process.join(_START_SECONDS)
            if process.is_alive():
                process.kill()

    def stop(self) -> float:
        """End the writers; return the blocks per second of all of them together."""
        self._end.value = True
        seconds = time.perf_counter() - self._began
        for process in self._processes:
            process.join(_START_SECONDS)
        failed = [process.exitcode for process in self._processes if process.exitcode != 0]
        if failed:
            raise RuntimeError(f"{len(failed)} of {len(self._processes)} writers failed; see above")
        blocks: list[int] = [self._counts.get() for _ in self._processes]
        return sum(blocks) / seconds


def _write(server: Server, job: Job, ready: Barrier, end: c_bool, report: Callable[[int], None]) -> None:
    engine = create_engine(server.url, application_name="benchmark writer", pool_size=1)
    with connect(engine) as connection:
        call = _call(connection, job)
        for _ in range(_WARM_UP_CALLS):
            call()
        ready.wait(_START_SECONDS)
        calls = 0
        while not end.value:
            call()
            calls += 1
    report(calls * job.blocks_per_call * len(job.claims))


def _call(connection: sa.Connection, job: Job) -> Callable[[], None]:
    match job.work:
        case Work.PLAIN:
            return _plain_insert(connection, job.claims[0])
        case Work.STATEMENT:
            return _bare_statement(connection, job.claims[0])
        case Work.ADD_LINKED:
            return _add_linked(connection, job.claims[0])
        case Work.ADD:
            return _add(connection, job)


def _block(claimed: Claim, sequence: int, links: tuple[OffsetLink, ...] = ()) -> NewBlock:
    segment_id = GIVEN_SEGMENTS + claimed.receiver_id
    handle = BlockHandle(segment_id, offset=sequence * 100, length=100, crc32c=sequence)
    return NewBlock(claimed.receiver_id, claimed.epoch, sequence, records=10, bytes=100, handle=handle, links=links)


def _send(connection: sa.Connection, blocks: Sequence[NewBlock]) -> None:
    for result in add_blocks(connection, blocks):
        if result.outcome is not AddOutcome.ADDED:
            raise RuntimeError(f"a block was not added: {result}")


def _add(connection: sa.Connection, job: Job) -> Callable[[], None]:
    sent = 0

    def call() -> None:
        nonlocal sent
        numbers = range(sent + 1, sent + 1 + job.blocks_per_call)
        _send(connection, [_block(claimed, claimed.sequence + n) for claimed in job.claims for n in numbers])
        sent += job.blocks_per_call

    return call


def _add_linked(connection: sa.Connection, claimed: Claim) -> Callable[[], None]:
    partition = f"topic/{claimed.receiver_id}"
    position = open_partition(
        connection, receiver_id=claimed.receiver_id, source="kafka", partition=partition, start_offset=0
    )
    sequence = claimed.sequence
    offset = position.offset

    def call() -> None:
        nonlocal sequence, offset
        sequence += 1
        link = OffsetLink("kafka", partition, position.generation, offset, offset + 10)
        _send(connection, [_block(claimed, sequence, (link,))])
        offset += 10

    return call


def _plain_insert(connection: sa.Connection, claimed: Claim) -> Callable[[], None]:
    cursor = connection.connection.cursor()
    # An epoch is the clock in ms, so no two rounds insert the same numbers.
    sequence = claimed.epoch * _PLAIN_STEP

    def call() -> None:
        nonlocal sequence
        sequence += 1
        cursor.execute(
            PLAIN_INSERT,
            (claimed.receiver_id, sequence, claimed.epoch, 10, 100, 10, 100, 1, sequence, 100, claimed.epoch),
        )

    return call


def _bare_statement(connection: sa.Connection, claimed: Claim) -> Callable[[], None]:
    cursor = connection.connection.cursor()
    statement = "SELECT * FROM forebay.add_one_block(%s, %s, %s, %s, %s, %s, %s, %s, %s)"
    sequence = claimed.sequence

    def call() -> None:
        nonlocal sequence
        sequence += 1
        segment_id = GIVEN_SEGMENTS + claimed.receiver_id
        cursor.execute(
            statement,
            (claimed.receiver_id, claimed.epoch, sequence, 10, 100, segment_id, sequence * 100, 100, sequence),
        )
        if cursor.fetchall()[0][0] != AddOutcome.ADDED:
            raise RuntimeError(f"block {sequence} of receiver {claimed.receiver_id} was not added")

    return call

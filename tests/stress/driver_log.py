"""Stress the driver log: ``python -m tests.stress.driver_log --minutes 3``, on the embedded server or on ``--url``.

Pairs of receivers have processes that are killed, stopped and started twice. Connections are terminated at random.
Three pipelines at different intervals each have two racing sensors, a runner whose attempts fail, and a person who
discards a part of what is quarantined. Two cleaners retain nothing. A calm follows, in which everything must finish,
and then a checker that shares no code with any of this. Exits with 1 and prints what is missing or twice; the database
is then left as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import psycopg2
import psycopg2.extensions
import sqlalchemy as sa

from forebay.testing.postgres import PostgresProcess
from tests.stress.checker import WITNESS, Acknowledged, check, is_at_rest
from tests.support.driver_log.log import block, claim_anew, oldest_unfinished_batch
from tests.support.machine.state_directory import state_directory
from tests.support.postgres.cutting_proxy import Cut, CuttingProxy, is_call
from tracker_store.batches import batches, outputs, pipelines
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker, batch_times
from tracker_store.blocks import segments
from tracker_store.blocks.blocks import (
    AddOutcome,
    AddResult,
    BlockHandle,
    Claim,
    NewBlock,
    OffsetLink,
    add_blocks,
    open_partition,
)
from tracker_store.connection.engine import connect, create_engine
from tracker_store.connection.errors import (
    TRANSIENT,
    AttemptSupersededError,
    BatchHeldError,
    ClaimLostError,
    DriverLogError,
)
from tracker_store.install import migrate
from tracker_store.receivers.processes import register_process
from tracker_store.receivers.receivers import placements
from tracker_store.retention import cleanup
from tracker_store.schema.states import BatchState, ProcessKind
from tracker_store.server.embedded_postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.context import ForkProcess

T = TypeVar("T")

INTERVALS = {"quick": 0.5, "middling": 0.9, "slow": 1.3}
PARTITIONS = 6
MAX_ATTEMPTS = 3
OUTPUT = "counts"
CALM_SECONDS = 90.0
# Probabilities that an attempt fails, and that its process leaves it unfinished to another.
FAILS, ABANDONS = 0.1, 0.05
# Probability that a quarantined batch is discarded.
DISCARDS = 0.5

FORK = multiprocessing.get_context("fork")


class AnomalyError(Exception):
    """What a part of the system was told does not fit together."""


@dataclass(frozen=True)
class Place:
    """The place of a run: its database, and a directory for its processes' journals."""

    url: str
    directory: Path

    @property
    def calm(self) -> bool:
        """Return whether attempts must succeed and batches have no limit."""
        return (self.directory / "calm").exists()

    def engine(self, name: str, *, through_proxy: bool = False) -> sa.Engine:
        """Make an engine whose connections may be terminated at any time, and with `through_proxy` also cut."""
        url = (self.directory / "proxy").read_text() if through_proxy else self.url
        return create_engine(url, application_name=f"stress {name}")

    def admin(self) -> psycopg2.extensions.connection:
        """Open a connection outside tracker_store that is not terminated."""
        url = sa.make_url(self.url).set(drivername="postgresql")
        connection = psycopg2.connect(url.render_as_string(hide_password=False), application_name="admin")
        connection.autocommit = True
        return connection


class Journal:
    """One process's record of what happened; a line is only incomplete if its process was killed."""

    def __init__(self, directory: Path) -> None:
        self._file = (directory / f"{os.getpid()}-{time.monotonic_ns()}.journal").open("ab", buffering=0)

    def acknowledged(self, blocks: list[NewBlock]) -> None:
        """Record that the driver log has acknowledged these blocks."""
        lines = [json.dumps([b.receiver_id, b.epoch, b.sequence, b.handle.crc32c]) for b in blocks]
        self._file.write("".join(f"{line}\n" for line in lines).encode())

    def count(self, what: str) -> None:
        """Count one event."""
        self._file.write(f"{json.dumps(what)}\n".encode())

    @staticmethod
    def read(directory: Path) -> tuple[list[Acknowledged], Counter[str]]:
        """Read the journals of all processes."""
        acknowledged, counts = [], Counter[str]()
        for path in directory.glob("*.journal"):
            for line in path.read_bytes().splitlines(keepends=True):
                if not line.endswith(b"\n"):
                    continue
                said = json.loads(line)
                if isinstance(said, str):
                    counts[said] += 1
                else:
                    acknowledged.append(Acknowledged(*said))
        return acknowledged, counts


def until_answered(engine: sa.Engine, journal: Journal, statement: Callable[[sa.Connection], T]) -> T:
    """Repeat the same statement until its answer arrives."""
    while True:
        try:
            with connect(engine) as connection:
                return statement(connection)
        except TRANSIENT:
            journal.count("answers lost")
            time.sleep(random.random() * 0.02)


# -- receivers ---------------------------------------------------------------------------------------------------------


class Owner:
    """One receiver, with the state of the process that owns it."""

    def __init__(self, engine: sa.Engine, journal: Journal, claimed: Claim) -> None:
        self.engine = engine
        self.journal = journal
        self.claimed = claimed
        self.next_sequence = claimed.sequence + 1
        self.offset = 0
        self.last_key = ""
        # The first and the newest group of blocks that were added.
        self.first: list[NewBlock] = []
        self.newest: list[NewBlock] = []
        self.segment_id = self._next_segment(1)

    def _next_segment(self, number: int) -> int:
        def seal_and_open(connection: sa.Connection) -> int:
            receiver_id, epoch = self.claimed.receiver_id, self.claimed.epoch
            old = segments.open_segments_before(connection, receiver_id=receiver_id, epoch=epoch)
            for segment_id in {segment.segment_id for segment in old} | ({self.segment_id} if number > 1 else set()):
                segments.seal_segment(connection, segment_id=segment_id, length=1, owner=(receiver_id, epoch))
            path = f"{receiver_id}/{epoch}-{number}"
            return segments.open_segment(
                connection, receiver_id=receiver_id, epoch=epoch, path=path, source_rule="not_sent_again"
            )

        return until_answered(self.engine, self.journal, seal_and_open)

    def group(self) -> list[NewBlock]:
        """Return the next 1 to 4 blocks; a third of the groups have links, a third keys."""
        if self.offset > 20_000:
            self.offset = 0
            self.segment_id = self._next_segment(self.next_sequence)
        kind = random.randrange(3)
        partition = str(random.randrange(PARTITIONS))
        position = None
        if kind == 0:
            position = until_answered(
                self.engine,
                self.journal,
                lambda c: open_partition(
                    c, receiver_id=self.claimed.receiver_id, source="orders", partition=partition, start_offset=0
                ),
            )
        blocks = []
        for n in range(random.randint(1, 4)):
            sequence = self.next_sequence + n
            made = block(self.claimed, sequence, segment_id=self.segment_id, records=random.randint(1, 20))
            handle = BlockHandle(self.segment_id, self.offset, 100, random.getrandbits(32))
            self.offset += 100
            made = replace(made, handle=handle)
            if position is not None:
                at = position.offset + 3 * n
                made = replace(made, links=(OffsetLink("orders", partition, position.generation, at, at + 3),))
            elif kind == 1:
                fresh = f"{self.claimed.receiver_id}-{self.claimed.epoch}-{sequence}-{random.getrandbits(40)}"
                # A sender that got no answer repeats the record.
                repeated = (self.last_key,) if n == 0 and self.last_key and random.random() < 0.1 else ()
                made = replace(made, keys=(fresh, *repeated))
                self.last_key = fresh
            blocks.append(made)
        return blocks


class Receiving:
    """A process that owns several receivers, and adds blocks to all of them in one call each turn."""

    def __init__(self, engine: sa.Engine, journal: Journal, owners: dict[int, Owner]) -> None:
        self.engine = engine
        self.journal = journal
        self.owners = owners
        self.groups: dict[int, list[NewBlock]] = {}
        # After a race that rolled back a whole call, send each receiver's blocks in a call of their own.
        self.alone = False

    def turn(self) -> bool:
        """Send waiting and new blocks; return False if another process owns a receiver now."""
        for receiver_id, owner in self.owners.items():
            self.groups.setdefault(receiver_id, owner.group())
        calls = [[group] for group in self.groups.values()] if self.alone else [list(self.groups.values())]
        self.alone = False
        ours = [self.send([item for group in call for item in group]) for call in calls]
        return all(ours)

    def send(self, blocks: list[NewBlock]) -> bool:
        """Make one call; return False as above."""
        try:
            results = until_answered(self.engine, self.journal, lambda connection: add_blocks(connection, blocks))
        except sa.exc.IntegrityError:
            self.journal.count("raced for a link or key")
            self.alone = True
            return True
        ours = [self.take(result) for result in results]
        return all(ours)

    def take(self, result: AddResult) -> bool:
        """Handle one receiver's outcome; return False as above."""
        self.journal.count(result.outcome.value)
        group = self.groups[result.receiver_id]
        if result.outcome in (AddOutcome.ADDED, AddOutcome.ALREADY_ADDED):
            self.journal.acknowledged(group)
            owner = self.owners[result.receiver_id]
            owner.next_sequence += len(group)
            owner.first, owner.newest = owner.first or group, group
            del self.groups[result.receiver_id]
        elif result.outcome is AddOutcome.OFFSET_CONFLICT:
            del self.groups[result.receiver_id]
        elif result.outcome is AddOutcome.DUPLICATE_KEYS:
            known = set((result.detail or "").split(", "))
            self.groups[result.receiver_id] = [
                replace(item, keys=tuple(key for key in item.keys if key not in known)) for item in group
            ]
        elif result.outcome is AddOutcome.FENCED:
            return False
        elif result.outcome is not AddOutcome.AGAIN:
            raise AnomalyError(f"{result} for {group}")
        return True

    def send_old_blocks_again(self) -> None:
        """Send them as after an answer that was lost long ago: they must be there, whatever happened since."""
        for owner in self.owners.values():
            for group in filter(None, (owner.first, owner.newest)):
                time.sleep(random.random())
                call = partial(add_blocks, blocks=group)
                while (result := until_answered(self.engine, self.journal, call)[0]).outcome is AddOutcome.AGAIN:
                    pass
                if result.outcome is not AddOutcome.ALREADY_ADDED:
                    raise AnomalyError(f"{result} for {group}, which were in")
                self.journal.count("old blocks sent again")


def receive(place: Place, receiver_ids: list[int]) -> None:
    """Claim the receivers and add blocks to them until one is fenced."""
    engine, journal = place.engine("receiver", through_proxy=True), Journal(place.directory)
    owners = {}
    for receiver_id in receiver_ids:
        try:
            with connect(engine) as connection:
                # Without an answer the claim is not owned: this process ends, and the next one claims.
                owners[receiver_id] = Owner(engine, journal, claim_anew(connection, receiver_id))
        except DriverLogError:
            return
    receiving = Receiving(engine, journal, owners)
    while os.getppid() > 1 and receiving.turn():
        time.sleep(random.random() * 0.01)
    receiving.send_old_blocks_again()


def claim_at_last(connection: sa.Connection, receiver_id: int) -> Claim:
    """Claim until it succeeds; then no other process claims. A killed process's statements may still arrive before."""
    while True:
        with contextlib.suppress(ClaimLostError):
            return claim_anew(connection, receiver_id)


def cut_connections(place: Place) -> None:
    """Run a proxy between receivers and server that loses some answers after their commit."""

    def decide(request: bytes) -> Cut | None:
        return random.choice(list(Cut)) if is_call(request, "add_block") and random.random() < 0.02 else None

    with CuttingProxy(place.url, decide) as proxy:
        address = place.directory / "proxy"
        address.with_suffix(".new").write_text(proxy.url)
        address.with_suffix(".new").rename(address)
        while os.getppid() > 1:
            time.sleep(0.5)


# -- pipelines ---------------------------------------------------------------------------------------------------------


def sense(place: Place, pipeline_id: int) -> None:
    """Allocate what is due, often late, often with limits, and in a race with another sensor."""
    engine, journal = place.engine("sensor"), Journal(place.directory)
    while True:
        times = until_answered(engine, journal, lambda c: batch_times(c, pipeline_id))
        if times.next_due > times.newest:
            time.sleep(0.05)
            continue
        if not place.calm and random.random() < 0.05:
            time.sleep(random.random() * 3)
        each = random.random() < 0.8
        limit = None if place.calm else random.choice([None, None, 50, 2000])

        allocate = partial(
            allocate_once,
            pipeline_id=pipeline_id,
            batch_time=times.next_due if each else times.newest,
            oldest_time=times.next_due,
            max_records=limit,
        )
        # The error "passed" means that the other sensor has merged the batch.
        with unless_refused("the batch can't be allocated at this time"):
            until_answered(engine, journal, allocate)


@contextlib.contextmanager
def unless_refused(words: str) -> Iterator[None]:
    """Suppress the refusal whose message has these words."""
    try:
        yield
    except DriverLogError as error:
        if words not in str(error):
            raise


def allocate_once(
    connection: sa.Connection,
    *,
    pipeline_id: int,
    batch_time: datetime,
    oldest_time: datetime,
    max_records: int | None,
) -> None:
    """Make one call."""
    ReceivedBlockTracker(connection, pipeline_id).allocate_blocks_to_batch(
        batch_time, oldest_time=oldest_time, max_records=max_records
    )


def run_batches(place: Place, pipeline_id: int) -> None:
    """Run the pipeline's batches in order; some attempts fail, and some are left to the next process."""
    engine, journal = place.engine("runner"), Journal(place.directory)
    process_id = until_answered(
        engine,
        journal,
        lambda c: register_process(c, kind=ProcessKind.BATCH_RUN, name="stress", host="h", pid=os.getpid()),
    )
    while True:
        batch = until_answered(engine, journal, lambda c: oldest_unfinished_batch(c, pipeline_id))
        if batch is None:
            time.sleep(0.05)
            continue
        # Another process has the batch, or had it meanwhile.
        with contextlib.suppress(BatchHeldError, AttemptSupersededError):
            run_batch(Attempt(engine, journal, pipeline_id, batch, process_id), calm=place.calm)


def discard_batches(place: Place, pipeline_id: int) -> None:
    """Discard about every second quarantined batch, so that ranges are released while clean-up passes them."""
    engine, journal = place.engine("discarder"), Journal(place.directory)
    seen: set[datetime] = set()
    while True:
        time.sleep(0.2)
        found = until_answered(
            engine,
            journal,
            lambda c: batches.list_batches(c, pipeline_id, states=[BatchState.QUARANTINED], limit=1000),
        )
        fresh = [batch.batch_time for batch in found if batch.batch_time not in seen]
        seen.update(fresh)
        for batch_time in fresh:
            if random.random() < DISCARDS:
                time.sleep(random.random())
                # The answer to an earlier call was lost.
                with unless_refused("can be discarded"):
                    discard = partial(batches.discard_batch, pipeline_id=pipeline_id, batch_time=batch_time)
                    until_answered(engine, journal, discard)
                journal.count("batches discarded")


@dataclass(frozen=True)
class Attempt:
    """One attempt, about to be made."""

    engine: sa.Engine
    journal: Journal
    pipeline_id: int
    batch: batches.BatchRow
    process_id: int

    @property
    def number(self) -> int:
        """Return the attempt's number, from 1."""
        return self.batch.attempt if self.batch.state is BatchState.RUNNING else self.batch.attempt + 1

    def fail(self, *, max_attempts: int) -> None:
        """End the attempt as failed."""
        until_answered(
            self.engine,
            self.journal,
            lambda c: batches.fail_attempt(
                c,
                pipeline_id=self.pipeline_id,
                batch_time=self.batch.batch_time,
                attempt=self.number,
                run_id="stress",
                error="boom",
                max_attempts=max_attempts,
                pauses=[timedelta(0)],
            ),
        )
        self.journal.count("attempts failed")


def run_batch(attempt: Attempt, *, calm: bool) -> None:
    """Make one attempt from claim to completion; raise its refusal."""
    engine, journal, pipeline_id, batch = attempt.engine, attempt.journal, attempt.pipeline_id, attempt.batch
    if batch.state is BatchState.RUNNING:
        # Left by a process that was killed or gave it up.
        attempt.fail(max_attempts=1000 if calm else MAX_ATTEMPTS)
        return
    run_id = f"{os.getpid()}-{random.getrandbits(32)}"
    until_answered(
        engine,
        journal,
        lambda c: batches.claim_attempt(
            c,
            pipeline_id=pipeline_id,
            batch_time=batch.batch_time,
            attempt=attempt.number,
            run_id=run_id,
            process_id=attempt.process_id,
        ),
    )
    blocks = until_answered(
        engine, journal, lambda c: ReceivedBlockTracker(c, pipeline_id).get_blocks_of_batch(batch.batch_time)
    )
    records = sum(item.records for item in blocks)
    if records != batch.records:
        raise AnomalyError(f"pipeline {pipeline_id}, {batch}: {records} records are there")
    chance = 1.0 if calm else random.random()
    if chance < FAILS:
        attempt.fail(max_attempts=MAX_ATTEMPTS)
        return
    if chance < FAILS + ABANDONS:
        return
    until_answered(
        engine,
        journal,
        lambda c: outputs.commit_output(
            c,
            pipeline_id=pipeline_id,
            batch_time=batch.batch_time,
            attempt=attempt.number,
            output=OUTPUT,
            location=run_id,
            rows=records,
        ),
    )
    until_answered(
        engine,
        journal,
        lambda c: batches.complete_batch(
            c, pipeline_id=pipeline_id, batch_time=batch.batch_time, attempt=attempt.number, outputs=[OUTPUT]
        ),
    )
    journal.count("batches completed")


def drive(place: Place, pipeline_id: int) -> None:
    """Run a pipeline's two sensors, its runner, and a person who discards what it quarantined."""
    for target in (sense, sense, run_batches, discard_batches):
        threading.Thread(target=guarded, args=(place, target, place, pipeline_id), daemon=True).start()
    while os.getppid() > 1:
        time.sleep(0.5)


# -- clean-up ----------------------------------------------------------------------------------------------------------


def clean(place: Place, stream_id: int, receiver_ids: list[int]) -> None:
    """Clean up whatever may be cleaned, in a race with another cleaner."""
    engine, journal = place.engine("cleaner"), Journal(place.directory)
    while os.getppid() > 1:
        for receiver_id in random.sample(receiver_ids, len(receiver_ids)):
            until_answered(engine, journal, lambda c, r=receiver_id: clean_one(c, r))  # type: ignore[misc]
        until_answered(
            engine, journal, lambda c: cleanup.clean_up_offsets(c, stream_id=stream_id, max_rows=random.randint(1, 500))
        )
        until_answered(
            engine,
            journal,
            lambda c: cleanup.clean_up_keys(c, stream_id=stream_id, window=timedelta(seconds=5), max_rows=500),
        )
        time.sleep(random.random() * 0.2)


def clean_one(connection: sa.Connection, receiver_id: int) -> None:
    """Clean up rows, then segments."""
    # No block is too young for this threshold.
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    cleanup.clean_up_receiver(
        connection, receiver_id=receiver_id, threshold=tomorrow, max_rows=random.choice([1, 50, 500, 5000])
    )
    for segment in cleanup.segments_to_delete(
        connection, receiver_id=receiver_id, restore_window=timedelta(0), limit=10
    ):
        if random.random() < 0.9:
            cleanup.forget_segment(connection, segment_id=segment.segment_id)


# -- the whole ---------------------------------------------------------------------------------------------------------


def guarded(place: Place, target: Callable[..., None], *arguments: object) -> None:
    """Run `target`; record any exception as an anomaly, which the report finds."""
    try:
        target(*arguments)
    except Exception:  # noqa: BLE001  written down, and fails the run
        name = f"{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}.anomaly"
        (place.directory / name).write_text(traceback.format_exc())


def start(place: Place, target: Callable[..., None], *arguments: object) -> ForkProcess:
    """Start a child process that is ended by a kill, not by a request."""

    def run() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        random.seed()
        guarded(place, target, place, *arguments)
        os._exit(0)

    process = FORK.Process(target=run, daemon=True)
    process.start()
    return process


class Stress:
    """One run at one place."""

    def __init__(self, place: Place, receivers: int, seed: int) -> None:
        self.place = place
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.zombies: list[tuple[float, ForkProcess]] = []
        self.admin = place.admin()
        with self.admin.cursor() as cursor:
            cursor.execute(WITNESS)
        engine = place.engine("set-up")
        with connect(engine) as connection:
            self.stream_id = pipelines.apply_stream(
                connection, name="stress", declaration={"source": {}, "settings": {}}, receivers=receivers
            )
            self.pipeline_ids = [
                pipelines.apply_pipeline(
                    connection,
                    name=name,
                    declaration={},
                    stream_ids=[self.stream_id],
                    interval=timedelta(seconds=seconds),
                )
                for name, seconds in INTERVALS.items()
            ]
            self.receiver_ids = [placement.receiver_id for placement in placements(connection)]
        engine.dispose()
        pairs = [self.receiver_ids[n : n + 2] for n in range(0, receivers, 2)]
        self.pairs = pairs
        self.proxy = start(place, cut_connections)
        deadline = time.monotonic() + 20
        while not (place.directory / "proxy").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.receiving = {number: self.receiver(number) for number in range(len(pairs))}
        self.others: dict[tuple[str, int], ForkProcess] = {}
        self.restart_others()

    def receiver(self, number: int) -> ForkProcess:
        """Start a new owner of a pair of receivers."""
        return start(self.place, receive, self.pairs[number])

    def restart_others(self) -> None:
        """Restart pipelines and cleaners that have ended."""
        wanted: dict[tuple[str, int], Callable[[], ForkProcess]] = {}
        for pipeline_id in self.pipeline_ids:
            wanted["pipeline", pipeline_id] = lambda p=pipeline_id: start(self.place, drive, p)  # type: ignore[misc]
        for number in (1, 2):
            wanted["cleaner", number] = lambda: start(self.place, clean, self.stream_id, self.receiver_ids)
        for key, begin in wanted.items():
            if key not in self.others or not self.others[key].is_alive():
                self.others[key] = begin()

    def disturb(self, seconds: float) -> None:
        """Run the storm."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(0.05)
            self.disturb_once()

    def disturb_once(self) -> None:
        """Run one turn of the storm."""
        number = self.random.randrange(len(self.pairs))
        process, chance = self.receiving[number], self.random.random()
        if chance < 0.06:
            process.kill()
            self.counts["receivers killed"] += 1
        elif chance < 0.12 and process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGSTOP)
            self.zombies.append((time.monotonic() + self.random.random() * 4, process))
            self.receiving[number] = self.receiver(number)
            self.counts["receivers stopped"] += 1
        elif chance < 0.16:
            # Two owners that both run.
            self.zombies.append((time.monotonic(), process))
            self.receiving[number] = self.receiver(number)
            self.counts["owners doubled"] += 1
        elif chance < 0.18:
            self.others[self.random.choice(list(self.others))].kill()
            self.counts["drivers and cleaners killed"] += 1
        elif chance < 0.38:
            with self.admin.cursor() as cursor:
                cursor.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() "
                    "AND application_name LIKE 'stress %' ORDER BY random() LIMIT 2"
                )
                self.counts["connections terminated"] += cursor.rowcount
        for other, process in self.receiving.items():
            if not process.is_alive():
                self.receiving[other] = self.receiver(other)
        self.restart_others()
        self.wake_zombies(time.monotonic())

    def wake_zombies(self, now: float) -> None:
        """Resume the processes whose time has come."""
        for due, process in [zombie for zombie in self.zombies if zombie[0] <= now]:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, signal.SIGCONT)
            self.zombies.remove((due, process))

    def calm(self) -> bool:
        """Resume zombies, end receivers, let a last owner add one more block each; return whether all came to rest."""
        (self.place.directory / "calm").touch()
        self.wake_zombies(float("inf"))
        time.sleep(0.5)
        self.end_receivers()
        engine, journal = self.place.engine("last owner"), Journal(self.place.directory)
        for receiver_id in self.receiver_ids:
            with connect(engine) as connection:
                owner = Owner(engine, journal, claim_at_last(connection, receiver_id))
                last = [block(owner.claimed, owner.next_sequence, segment_id=owner.segment_id)]
                add_blocks(connection, last)
                journal.acknowledged(last)
        engine.dispose()
        deadline = time.monotonic() + CALM_SECONDS
        at_rest = False
        while not at_rest and time.monotonic() < deadline:
            self.restart_others()
            time.sleep(0.5)
            at_rest = is_at_rest(self.admin, cleaned=True)
        return at_rest

    def end_receivers(self) -> None:
        """Kill the receivers' processes and wait."""
        for process in self.receiving.values():
            process.kill()
            process.join()
        for child in FORK.active_children():
            if child is not self.proxy and child not in self.others.values():
                child.kill()
                child.join()

    def end(self) -> None:
        """Kill every process that is left."""
        for child in FORK.active_children():
            child.kill()
            child.join()

    def report(self) -> list[str]:
        """Print the run's figures; return the violations."""
        acknowledged, counts = Journal.read(self.place.directory)
        counts += self.counts
        with self.admin.cursor() as cursor:
            for what, query in FIGURES.items():
                cursor.execute(query)
                counts[what] = cursor.fetchone()[0]
        counts["blocks acknowledged"] = len(acknowledged)
        for what, count in sorted(counts.items()):
            say(f"{what:>28}  {count:,}")
        wrong = [path.read_text() for path in self.place.directory.glob("*.anomaly")]
        return wrong + [str(violation) for violation in check(self.admin, acknowledged, cleaned=True)]


FIGURES = {
    "blocks": "SELECT count(*) FROM witness.blocks WHERE segment_id IS NOT NULL",
    "take-overs": "SELECT count(*) FROM witness.blocks WHERE segment_id IS NULL",
    "records": "SELECT coalesce(sum(records), 0) FROM witness.blocks",
    "links": "SELECT count(*) FROM witness.links",
    "blocks cleaned": "SELECT coalesce(sum(blocks), 0) FROM forebay.cleanup_events",
    "batches": "SELECT count(*) FROM forebay.batches",
    "batches quarantined": "SELECT count(*) FROM forebay.batches WHERE state = 'QUARANTINED'",
    "ranges": "SELECT count(*) FROM forebay.batch_allocations",
}


def say(line: str) -> None:
    """Print one line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextlib.contextmanager
def database(url: str | None) -> Iterator[tuple[str, Callable[[], None]]]:
    """Make a new, migrated database on the server of `url`, or on an embedded one; return it and what drops it."""
    with contextlib.ExitStack() as stack:
        if url is None:
            directory = stack.enter_context(state_directory())
            server = EmbeddedPostgres(directory / "postgres", durable=False)
            stack.enter_context(PostgresProcess(server))
            url = server.url("postgres")
        name = f"forebay_stress_{os.getpid()}"
        admin = psycopg2.connect(sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))
        stack.callback(admin.close)
        admin.autocommit = True
        cursor = admin.cursor()
        cursor.execute(f'CREATE DATABASE "{name}"')
        made = sa.make_url(url).set(database=name).render_as_string(hide_password=False)
        migrate.upgrade(made)
        yield made, lambda: cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def main() -> int:
    """Run the stress; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.driver_log", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3.0, help="minutes of storm; the calm comes after it")
    parser.add_argument("--url", help="a server that allows new databases; default: an embedded one")
    parser.add_argument("--receivers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=None, help="seed of kills, stops and terminations")
    options = parser.parse_args()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory(prefix="forebay-stress-") as directory, database(options.url) as (url, drop):
        stress = Stress(Place(url, Path(directory)), options.receivers, seed)
        try:
            say(f"seed {seed}, {options.receivers} receivers, {options.minutes:g} minutes")
            stress.disturb(options.minutes * 60)
            at_rest = stress.calm()
        finally:
            stress.end()
        wrong = stress.report()
        if not at_rest:
            wrong.append(f"the log did not come to rest within {CALM_SECONDS:g} s")
        stress.admin.close()
        if wrong:
            for violation in wrong:
                say(f"\nVIOLATION {violation}")
            say(f"\n{len(wrong)} violations" + ("" if options.url is None else f"; the database is left as {url}"))
            return 1
        drop()
        say("no violations")
        return 0


if __name__ == "__main__":
    sys.exit(main())

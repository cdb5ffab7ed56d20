"""Drive the load of `steady_state` on one driver log: sessions that add, sessions that clean up, and what each costs.

Owns the sessions and the simulated time. A cycle is the time of one batch: its blocks are added while clean-up deletes
what earlier cycles no longer need, then the batch is allocated and completed. Ages are real times: clean-up gets the
real time at which the simulated window began. Autovacuum's clock follows the pace.
"""

from __future__ import annotations

import contextlib
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import sqlalchemy as sa

from benchmarks.server_cpu import ServerCpu, own_seconds
from benchmarks.steady_state_model import (
    BLOCKS_PER_RECEIVER,
    SECONDS_PER_MINUTE,
    TABLES,
    Pace,
    Sample,
    Spent,
    TableState,
)
from orchestration.tracker.cleaner import STATEMENTS_PER_CALL
from orchestration.tracker.link_cleaner import ROWS_PER_STATEMENT
from tests.support.driver_log.log import GIVEN_SEGMENTS, claim_anew, give_segments
from tracker_store.batches import claim_attempt, complete_batch
from tracker_store.blocks import AddOutcome, BlockHandle, NewBlock, OffsetLink, add_blocks, open_partition
from tracker_store.cleanup import clean_up_keys, clean_up_offsets, clean_up_receiver
from tracker_store.engine import connect, create_engine
from tracker_store.history import clean_up_events
from tracker_store.pipelines import apply_pipeline, apply_stream
from tracker_store.received_block_tracker import ReceivedBlockTracker
from tracker_store.receivers import placements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.server import Server
    from benchmarks.steady_state_model import Feed, Load
    from tracker_store.blocks import Claim

# A receiver process sends the waiting blocks of its receivers together. The time is compressed: a call has those of a
# simulated second, so an addition costs less CPU than in a process that keeps up.
_RECEIVERS_PER_CALL = 40
_RECORDS_PER_BLOCK = 100
_PROCESS = 1
_CLEAN_UPS = ("blocks", "block_offsets", "record_keys", "events")
# The pace of the first simulated minute, before any was measured.
_FIRST_PACE = 2.0
_STATES = sa.text("""
    SELECT s.relname AS name, s.n_live_tup AS live, s.n_dead_tup AS dead, pg_relation_size(s.relid) AS heap,
        pg_indexes_size(s.relid) AS indexes, s.autovacuum_count AS vacuums, s.autoanalyze_count AS analyzes,
        s.total_autovacuum_time AS vacuum_ms, s.total_autoanalyze_time AS analyze_ms
    FROM pg_stat_user_tables s
    WHERE s.schemaname = 'forebay' AND s.relname = ANY (:tables)
""")


class Session:
    """One session of the server, and what it has cost so far."""

    def __init__(self, connection: sa.Connection) -> None:
        """Take a connection that nothing else uses."""
        self.connection = connection
        self.pid = int(connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one())
        self.rows = 0
        self._cpu_before = 0.0
        self._wal_before = 0

    def start(self) -> None:
        """Count from now on."""
        self.rows = 0
        self._cpu_before, self._wal_before = own_seconds(self.pid), self._wal()

    def spent(self) -> Spent:
        """Return what it has cost since `start`."""
        return Spent(own_seconds(self.pid) - self._cpu_before, self._wal() - self._wal_before, self.rows)

    def _wal(self) -> int:
        # What a session has written is in its own pending statistics for up to a second.
        self.connection.execute(sa.text("SELECT pg_stat_force_next_flush()"))
        statement = sa.text("SELECT wal_bytes FROM pg_stat_get_backend_wal(:pid)")
        return int(self.connection.execute(statement, {"pid": self.pid}).scalar_one())


class FeedSession:
    """The receivers of a feed: their blocks, keys and links go in as their processes would send them."""

    def __init__(self, session: Session, feed: Feed, claims: Sequence[Claim], seed: int) -> None:
        """Open each receiver's partitions: as many as a block has links."""
        self.session = session
        self.feed = feed
        self.blocks = 0
        self._claims = claims
        self._next = {claimed.receiver_id: claimed.sequence + 1 for claimed in claims}
        self._position = 0
        self._random = random.Random(seed)  # noqa: S311  not for secrets
        for claimed in claims:
            for n in range(feed.links):
                open_partition(
                    session.connection,
                    receiver_id=claimed.receiver_id,
                    source=feed.name,
                    partition=f"{claimed.receiver_id}-{n}",
                    start_offset=0,
                )

    def add(self, seconds: int) -> None:
        """Add the blocks of this many simulated seconds, a second of each process's receivers in each call."""
        for _ in range(seconds):
            for first in range(0, len(self._claims), _RECEIVERS_PER_CALL):
                blocks = [
                    self._block(claimed, self._position + n * _RECORDS_PER_BLOCK)
                    for claimed in self._claims[first : first + _RECEIVERS_PER_CALL]
                    for n in range(BLOCKS_PER_RECEIVER)
                ]
                results = add_blocks(self.session.connection, blocks)
                refused = [result for result in results if result.outcome is not AddOutcome.ADDED]
                if refused:
                    message = f"a block was not added: {refused[0].outcome}: {refused[0].detail}"
                    raise RuntimeError(message)
                self.blocks += len(blocks)
            self._position += BLOCKS_PER_RECEIVER * _RECORDS_PER_BLOCK
        self.session.rows = self.blocks * (self.feed.keys or self.feed.links or 1)

    def _block(self, claimed: Claim, position: int) -> NewBlock:
        receiver_id = claimed.receiver_id
        sequence = self._next[receiver_id]
        self._next[receiver_id] = sequence + 1
        return NewBlock(
            receiver_id,
            claimed.epoch,
            sequence,
            records=_RECORDS_PER_BLOCK,
            bytes=10_000,
            handle=BlockHandle(GIVEN_SEGMENTS + receiver_id, sequence * 10_000, 10_000, sequence),
            links=tuple(
                OffsetLink(self.feed.name, f"{receiver_id}-{n}", 0, position, position + _RECORDS_PER_BLOCK)
                for n in range(self.feed.links)
            ),
            # As random as a UUID, and as long as one without its hyphens.
            keys=tuple(f"{self._random.getrandbits(128):032x}" for _ in range(self.feed.keys)),
        )


@dataclass(frozen=True, slots=True)
class Run:
    """What was measured: the samples, and what each part cost. `vacuum` is autovacuum's CPU, of all tables."""

    samples: list[Sample]
    added: dict[str, Spent]
    blocks: dict[str, int]
    cleaned: dict[str, Spent]
    vacuum_cpu: float
    wal: int
    seconds: float

    def rows_left(self) -> dict[str, int]:
        """Return how many of the added rows clean-up has not deleted yet, by table."""
        added = {
            "blocks": sum(self.blocks.values()),
            "block_offsets": self.added["links"].rows,
            "record_keys": self.added["keys"].rows,
        }
        return {table: rows - self.cleaned[table].rows for table, rows in added.items()}


class SteadyState:
    """The sessions of one load on one server."""

    def __init__(self, server: Server, load: Load, sessions: Iterator[Session]) -> None:
        """Declare the streams and the pipeline, and claim the receivers."""
        self._server = server
        self._load = load
        self._control = next(sessions)
        self._cleaners = {table: next(sessions) for table in _CLEAN_UPS}
        # The real times of the end of each cycle.
        self._ends: list[datetime] = []
        connection = self._control.connection
        streams = {
            feed.name: apply_stream(
                connection, name=feed.name, declaration={"source": {}, "settings": {}}, receivers=feed.receivers
            )
            for feed in load.feeds
        }
        self._streams = streams
        self._pipeline = apply_pipeline(
            connection,
            name="steady",
            declaration={"max_attempts": 3, "streams": list(streams)},
            stream_ids=list(streams.values()),
            interval=timedelta(seconds=load.batch),
        )
        connection.execute(sa.text("UPDATE forebay.pipelines SET last_batch_time = clock_timestamp()"))
        placed = placements(connection)
        self._receivers = [row.receiver_id for row in placed]
        give_segments(connection, *self._receivers)
        self._feeds = [
            FeedSession(
                next(sessions),
                feed,
                [claim_anew(connection, row.receiver_id) for row in placed if row.stream_name == feed.name],
                seed,
            )
            for seed, feed in enumerate(load.feeds)
        ]

    def run(self, progress: Callable[[Sample, Pace], None]) -> Run:
        """Simulate the whole time; `progress` gets each minute's sample. Raises RuntimeError if a block is refused."""
        sessions = [self._control, *self._cleaners.values(), *(feed.session for feed in self._feeds)]
        background = {
            int(pid)
            for pid in self._control.connection.execute(
                sa.text(
                    "SELECT pid FROM pg_stat_activity WHERE backend_type NOT IN ('client backend', 'autovacuum worker')"
                )
            ).scalars()
        }
        cpu = ServerCpu(self._server.postmaster(), background)
        ours = frozenset(session.pid for session in sessions)
        for session in sessions:
            session.start()
        set_to = Pace(_FIRST_PACE, self._load.nap)
        self._set_pace(set_to)
        vacuum_before, wal_before = cpu.seconds(without=ours), self._wal_position()
        began = minute_began = time.perf_counter()
        samples: list[Sample] = []
        with ThreadPoolExecutor(len(self._feeds) + 1) as threads:
            for cycle in range(self._load.cycles):
                work = [threads.submit(feed.add, self._load.batch) for feed in self._feeds]
                if cycle and cycle * self._load.batch % self._load.clean_up == 0:
                    work.append(threads.submit(self._clean_up))
                for done in work:
                    done.result()
                self._end_batch()
                passed = (cycle + 1) * self._load.batch
                if passed % SECONDS_PER_MINUTE == 0:
                    pace = Pace(SECONDS_PER_MINUTE / (time.perf_counter() - minute_began), self._load.nap)
                    minute_began = time.perf_counter()
                    if pace.is_far_from(set_to):
                        set_to = pace
                        self._set_pace(set_to)
                    samples.append(self._sample(passed // SECONDS_PER_MINUTE))
                    progress(samples[-1], pace)
        return Run(
            samples,
            {feed.feed.name: feed.session.spent() for feed in self._feeds},
            {feed.feed.name: feed.blocks for feed in self._feeds},
            {table: session.spent() for table, session in self._cleaners.items()},
            cpu.seconds(without=ours) - vacuum_before,
            self._wal_position() - wal_before,
            time.perf_counter() - began,
        )

    def rewritten(self) -> dict[str, TableState]:
        """Rewrite each table with its indexes, and return its state then: without any bloat."""
        for table in TABLES:
            self._control.connection.execute(sa.text(f"VACUUM FULL forebay.{table}"))
        return dict(self._sample(self._load.minutes).tables)

    def _end_batch(self) -> None:
        at = datetime.now(UTC)
        self._ends.append(at)
        connection = self._control.connection
        ReceivedBlockTracker(connection, self._pipeline).allocate_blocks_to_batch(at)
        claim_attempt(
            connection,
            pipeline_id=self._pipeline,
            batch_time=at,
            attempt=1,
            run_id=f"run-{len(self._ends)}",
            process_id=_PROCESS,
        )
        complete_batch(connection, pipeline_id=self._pipeline, batch_time=at, attempt=1, outputs=[])

    def _window_began(self, seconds: int) -> datetime:
        """Return the real time that is this many simulated seconds before the newest batch."""
        cycles = seconds // self._load.batch
        # Nothing is older than the first cycle's beginning.
        return self._ends[-1 - cycles] if len(self._ends) > cycles else self._ends[0] - timedelta(days=1)

    def _age(self, seconds: int) -> timedelta:
        return datetime.now(UTC) - self._window_began(seconds)

    def _clean_up(self) -> None:
        """Clean up as the tracker does, each table in a session of its own."""
        session = self._cleaners["blocks"]
        threshold = self._window_began(self._load.block_retention)
        for receiver_id in self._receivers:
            for _ in range(STATEMENTS_PER_CALL):
                cleaned = clean_up_receiver(
                    session.connection, receiver_id=receiver_id, threshold=threshold, max_rows=ROWS_PER_STATEMENT
                )
                session.rows += cleaned.blocks
                if not cleaned.more:
                    break
        for stream_id in self._streams.values():
            self._repeat("block_offsets", partial(clean_up_offsets, stream_id=stream_id, max_rows=ROWS_PER_STATEMENT))
            self._repeat("record_keys", partial(self._clean_up_keys, stream_id))
        self._repeat("events", self._clean_up_events)

    def _clean_up_keys(self, stream_id: int, connection: sa.Connection) -> int:
        window = self._age(self._load.key_window)
        return clean_up_keys(connection, stream_id=stream_id, window=window, max_rows=ROWS_PER_STATEMENT)

    def _clean_up_events(self, connection: sa.Connection) -> int:
        return clean_up_events(connection, keep=self._age(self._load.history), max_rows=ROWS_PER_STATEMENT).rows

    def _repeat(self, table: str, statement: Callable[[sa.Connection], int]) -> None:
        session = self._cleaners[table]
        while True:
            gone = statement(session.connection)
            session.rows += gone
            if gone < ROWS_PER_STATEMENT:
                return

    def _set_pace(self, pace: Pace) -> None:
        connection = self._control.connection
        for name, value in pace.settings.items():
            connection.execute(sa.text(f"ALTER SYSTEM SET {name} = '{value}'"))
        connection.execute(sa.text("SELECT pg_reload_conf()"))

    def _wal_position(self) -> int:
        statement = sa.text("SELECT pg_current_wal_insert_lsn() - CAST('0/0' AS pg_lsn)")
        return int(self._control.connection.execute(statement).scalar_one())

    def _sample(self, minute: int) -> Sample:
        rows = self._control.connection.execute(_STATES, {"tables": list(TABLES)}).all()
        return Sample(
            minute,
            {
                row.name: TableState(
                    *(row.live, row.dead, row.heap, row.indexes, row.vacuums, row.analyzes),
                    *(float(row.vacuum_ms), float(row.analyze_ms)),
                )
                for row in rows
            },
        )


@contextlib.contextmanager
def steady_state(server: Server, load: Load) -> Iterator[SteadyState]:
    """Open the sessions of a load on a server whose driver log is empty."""
    # A session of its own for each part, and no time-outs: the machine may be busy.
    engine = create_engine(
        server.url, application_name="steady state", pool_size=16, statement_timeout="0", lock_timeout="0"
    )
    with contextlib.ExitStack() as stack:
        stack.callback(engine.dispose)

        def sessions() -> Iterator[Session]:
            while True:
                yield Session(stack.enter_context(connect(engine)))

        yield SteadyState(server, load, sessions())

"""Run the operations of the load model on a filled log, and count the CPU that server and client spend on each.

Owns how each operation is run: through the functions that the product itself calls. What is prepared between two runs,
such as new blocks, is not counted.
"""

from __future__ import annotations

import contextlib
import importlib.util
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from typer.testing import CliRunner

from benchmarks.scale_model import OPERATIONS, Cost
from benchmarks.server_cpu import ServerCpu
from forebay.cli.main import app
from orchestration.tracker.cleaner import Cleaner
from orchestration.tracker.metrics import prometheus_text
from orchestration.tracker.streaming_progress import SAME_LOOK_SECONDS, StreamingProgress
from orchestration.tracker.tracker import Tracker
from tracker_store.blocks import AddOutcome, BlockHandle, NewBlock, add_blocks, claim, newest_epoch
from tracker_store.checks import patient, ranges_are_contiguous
from tracker_store.engine import connect
from tracker_store.processes import heartbeat
from tracker_store.received_block_tracker import ReceivedBlockTracker
from tracker_store.segments import open_segment
from tracker_store.status import batch_stats

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from benchmarks.filled_installation import FilledInstallation
    from receiver_runtime.block_store.interface import BlockStore

# A tracker's session plans its statements in its first calls; from the sixth on, a function's plan is generic.
_WARM_UPS = 6
# CPU seconds for the repeats of one operation, and the least and most of them. One whose first run takes longer than
# the limit is run once.
_BUDGET_SECONDS = 2.0
_LEAST_REPEATS = 3
_MOST_REPEATS = 20
# Calls of one heartbeat round; the rest of the round is extrapolated.
_MOST_CALLS = 100
_BEAT_SECONDS = 0.5
# Longer than the history, so that there is nothing to delete.
_KEEP = timedelta(days=400)
# No process is declared dead, however long an operation takes.
_FOR_EVER = 1e9


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Run:
    """One operation, ready to be run: `prepare` comes before each run and is not counted; a run is `part` of one."""

    run: Callable[[], object]
    prepare: Callable[[], object] = _nothing
    part: float = 1.0
    beater: frozenset[int] = frozenset()


def server_cpu(installation: FilledInstallation, postmaster: int) -> ServerCpu:
    """Return the meter of the installation's server, after autovacuum has been switched off: it comes as it likes."""
    installation.server.execute("ALTER SYSTEM SET autovacuum = off")
    installation.server.execute("SELECT pg_reload_conf()")
    found = installation.server.execute("SELECT pid FROM pg_stat_activity WHERE backend_type <> 'client backend'")
    return ServerCpu(postmaster, {int(str(pid)) for (pid,) in found})


def measure(
    installation: FilledInstallation, cpu: ServerCpu, keys: Collection[str], told: Callable[[str, Cost], None]
) -> dict[str, Cost]:
    """Measure these operations, in the order of the model; `told` gets each figure."""
    costs: dict[str, Cost] = {}
    for operation in OPERATIONS:
        if operation.key in keys:
            with _RUNS[operation.key](installation) as run:
                costs[operation.key] = _cost(run, cpu)
            told(operation.name, costs[operation.key])
    return costs


def _cost(run: Run, cpu: ServerCpu) -> Cost:
    server: list[float] = []
    client: list[float] = []
    spent = 0.0
    while len(server) < _WARM_UPS + _MOST_REPEATS:
        run.prepare()
        server_before, client_before = cpu.seconds(without=run.beater), time.process_time()
        run.run()
        client.append(time.process_time() - client_before)
        server.append(cpu.seconds(without=run.beater) - server_before)
        spent += server[-1] + client[-1]
        measured = len(server) - _WARM_UPS
        if (spent > _BUDGET_SECONDS and measured >= _LEAST_REPEATS) or spent > _LEAST_REPEATS * _BUDGET_SECONDS:
            break
    # A run that is too long for warm-ups is its own.
    kept = slice(min(_WARM_UPS, len(server) - 1), None)
    per_run = 1000 / run.part
    # Where a virtual machine's host takes the processor away, the guest counts that as CPU: 10 ms, in more than half of
    # the runs. That only adds, so the lowest is the operation's own (as timeit has it).
    return Cost(min(server[kept]) * per_run, min(client[kept]) * per_run, len(server[kept]))


@contextlib.contextmanager
def _tick(installation: FilledInstallation) -> Iterator[Run]:
    tracker = Tracker(installation.server.engine, heartbeat_limit_seconds=_FOR_EVER)
    with connect(installation.server.engine) as connection, connect(installation.server.engine) as beside:

        def beat() -> None:
            beside.execute(
                sa.text("UPDATE forebay.processes SET heartbeat = heartbeat + 1 WHERE ended_at IS NULL"),
            )

        yield Run(lambda: tracker.tick(connection), beat)


@contextlib.contextmanager
def _heartbeat(installation: FilledInstallation) -> Iterator[Run]:
    calls = min(_MOST_CALLS, installation.shape.processes)
    with connect(installation.server.engine) as connection:

        def beat() -> None:
            for number in range(calls):
                process_id, receivers = installation.process_of(number)
                heartbeat(connection, process_id=process_id, receiver_ids=receivers, queued=dict.fromkeys(receivers, 0))

        yield Run(beat, part=calls / installation.shape.processes)


@contextlib.contextmanager
def _heartbeat_alone(installation: FilledInstallation) -> Iterator[Run]:
    calls = min(_MOST_CALLS, installation.shape.processes)
    with connect(installation.server.engine) as connection:

        def beat() -> None:
            for number in range(calls):
                process_id, receivers = installation.process_of(number)
                one = receivers[0]
                heartbeat(connection, process_id=process_id, receiver_ids=[one], queued={one: 0})

        yield Run(beat, part=calls / installation.shape.receivers)


@contextlib.contextmanager
def _clean_up(installation: FilledInstallation) -> Iterator[Run]:
    def no_store(_: sa.Connection) -> BlockStore:
        message = "clean-up found a segment to delete in a log at rest"
        raise RuntimeError(message)

    cleaner = Cleaner(no_store, history=_KEEP)
    links = _link_cleaner()
    with connect(installation.server.engine) as connection:

        def clean_up() -> None:
            cleaner.cleanup_old_batches(connection, datetime.now(UTC))
            if links is not None:
                links.clean_up(connection)

        yield Run(clean_up)


def _link_cleaner() -> Any:  # noqa: ANN401  its module may be missing
    """Return the cleaner of links and keys, where it is a module of its own; else `Cleaner` does its work."""
    name = "orchestration.tracker.link_cleaner"
    return None if importlib.util.find_spec(name) is None else importlib.import_module(name).LinkCleaner()


@contextlib.contextmanager
def _status(installation: FilledInstallation) -> Iterator[Run]:
    """Run the command in this process, without its start, while leader and agents show that they live."""
    stop = threading.Event()
    session = installation.server.connect()
    beater = session.info.backend_pid

    def beat() -> None:
        with session.cursor() as cursor:
            while not stop.wait(_BEAT_SECONDS):
                cursor.execute(
                    "UPDATE forebay.processes SET heartbeat = heartbeat + 1 WHERE kind = 'agent' AND ended_at IS NULL"
                )
                cursor.execute("UPDATE forebay.leadership SET counter = counter + 1")

    def ask() -> None:
        answer = CliRunner().invoke(
            app, ["status", "--within", "600"], env={"FOREBAY_DATABASE_URL": installation.server.url}
        )
        if "Receivers" not in answer.output:
            message = f"forebay status said: {answer.output[-2000:]} {answer.exception!r}"
            raise RuntimeError(message)

    thread = threading.Thread(target=beat, name="beater")
    thread.start()
    try:
        yield Run(ask, beater=frozenset({beater}))
    finally:
        stop.set()
        thread.join()
        session.close()


@contextlib.contextmanager
def _metrics(installation: FilledInstallation) -> Iterator[Run]:
    now = 0.0

    def later() -> None:
        # The same look is not answered from memory.
        nonlocal now
        now += 2 * SAME_LOOK_SECONDS

    progress = StreamingProgress(lambda: now)
    ages = {installation.process_of(n)[0]: 0.5 for n in range(installation.shape.processes)}
    engine = installation.server.engine
    yield Run(lambda: prometheus_text(progress.look(lambda: connect(engine)), term=1, lease_ages=ages), later)


def _allocation(
    pipeline_of: Callable[[FilledInstallation], int],
) -> Callable[[FilledInstallation], contextlib.AbstractContextManager[Run]]:
    @contextlib.contextmanager
    def started(installation: FilledInstallation) -> Iterator[Run]:
        pipeline_id = pipeline_of(installation)
        with connect(installation.server.engine) as connection, connect(installation.server.engine) as beside:
            tracker = ReceivedBlockTracker(connection, pipeline_id)

            def prepare() -> None:
                installation.finish_batches(beside, pipeline_id)
                installation.add_a_block_each(beside, pipeline_id)

            yield Run(lambda: tracker.allocate_blocks_to_batch(datetime.now(UTC)), prepare)
            installation.finish_batches(beside, pipeline_id)

    return started


@contextlib.contextmanager
def _add_block(installation: FilledInstallation) -> Iterator[Run]:
    _, receivers = installation.process_of(0)
    with connect(installation.server.engine) as connection:
        claims = [
            claim(connection, receiver_id=one, seen_epoch=newest_epoch(connection, one), assignment=1)
            for one in receivers
        ]
        segments = [
            open_segment(
                connection,
                receiver_id=claimed.receiver_id,
                epoch=claimed.epoch,
                path=f"{claimed.receiver_id}/{claimed.epoch}",
                source_rule="not_sent_again",
            )
            for claimed in claims
        ]
        added = 0

        def add() -> None:
            nonlocal added
            added += 1
            blocks = [
                NewBlock(
                    claimed.receiver_id,
                    claimed.epoch,
                    claimed.sequence + added,
                    records=10,
                    bytes=1000,
                    handle=BlockHandle(segment_id, added * 1000, 1000, 1),
                )
                for claimed, segment_id in zip(claims, segments, strict=True)
            ]
            if any(result.outcome is not AddOutcome.ADDED for result in add_blocks(connection, blocks)):
                message = "a block was not added"
                raise RuntimeError(message)

        yield Run(add)


@contextlib.contextmanager
def _contiguity(installation: FilledInstallation) -> Iterator[Run]:
    with connect(installation.server.engine) as connection, patient(connection):

        def check() -> None:
            result = ranges_are_contiguous(connection, 1)
            if not result.passed:
                message = f"the filled log is broken: {result.offenders}"
                raise RuntimeError(message)

        yield Run(check)


@contextlib.contextmanager
def _batch_stats(installation: FilledInstallation) -> Iterator[Run]:
    with connect(installation.server.engine) as connection:
        yield Run(lambda: batch_stats(connection, limit=20))


@contextlib.contextmanager
def _driver_log_between(installation: FilledInstallation) -> Iterator[Run]:
    statement = sa.text(
        "SELECT * FROM forebay.driver_log_between(clock_timestamp() - interval '2 hours', "
        "clock_timestamp() - interval '2 hours' + interval '1 minute')"
    )
    with connect(installation.server.engine) as connection:
        yield Run(lambda: connection.execute(statement).all())


_RUNS: dict[str, Callable[[FilledInstallation], contextlib.AbstractContextManager[Run]]] = {
    "tick": _tick,
    "heartbeat": _heartbeat,
    "heartbeat_alone": _heartbeat_alone,
    "clean_up": _clean_up,
    "status": _status,
    "metrics": _metrics,
    "allocation": _allocation(lambda _: 1),
    "allocation_wide": _allocation(lambda installation: installation.wide_pipeline),
    "add_block": _add_block,
    "contiguity": _contiguity,
    "batch_stats": _batch_stats,
    "driver_log_between": _driver_log_between,
}

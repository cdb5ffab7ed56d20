"""Collect what `forebay status` shows: every part that answers within a deadline, and the parts that can't be reached.

Owns the list of parts and how each is read. It changes nothing, and never raises for a part that fails: that part is
None, and `unreachable` says why.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from orchestration.block_checks.bounded_scans import BoundedScans, answer
from orchestration.block_checks.store_scan import scan_root, store_of_host
from orchestration.policies.executor_allocation import SCALING_INTERVAL
from receiver_runtime.block_store.roots import root_name
from tracker_store.batches.run_queue import waiting_runs
from tracker_store.batches.scaling import scaling_decisions
from tracker_store.batches.streams import unread_streams
from tracker_store.connection.engine import connect, create_engine
from tracker_store.connection.log_address import check_there_is_a_log
from tracker_store.host.code_in_force import NO_CODE, CodeState
from tracker_store.receivers.leadership import read_leadership
from tracker_store.receivers.processes import live_processes
from tracker_store.reports import status as store
from tracker_store.reports.state_status import output_states
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    import sqlalchemy as sa

    from orchestration.block_checks.bounded_scans import Unreachable
    from tracker_store.batches.run_queue import WaitingRuns
    from tracker_store.batches.scaling import ScalingDecision
    from tracker_store.batches.streams import UnreadStream
    from tracker_store.reports.state_status import OutputState
    from tracker_store.reports.status import (
        BatchStats,
        PipelineProcessingTimes,
        PipelineStatus,
        ReceiverStatus,
        StreamLag,
    )

Found = TypeVar("Found")

DRIVER_LOG = "driver log"
APPLICATION = "forebay status"

# Seconds for which a leader's or an agent's counter is watched; a leader raises its counter every 1 s, an agent every
# 0.5 s.
WATCH_SECONDS = 2.5
_WATCH_STEP_SECONDS = 0.1
# Shares of the remaining time for waiting for a lock and for watching: a locked table must not use up the time of the
# other parts.
_LOCK_SHARE = 0.25
_WATCH_SHARE = 0.7
# libpq raises a shorter connection timeout to this, in seconds.
_LEAST_CONNECT_SECONDS = 2


@dataclass(frozen=True, slots=True)
class LeaderStatus:
    """Describe the leader; `moves`: its counter was raised while it was watched, for at most `watched` seconds."""

    holder: str | None
    term: int
    moves: bool
    watched: float


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """Describe an agent that has not ended; `moves` and `watched` as for the leader."""

    name: str
    host: str
    moves: bool
    watched: float


@dataclass(frozen=True, slots=True)
class SystemStatus:
    """Hold the parts of the status; a part without an answer is None, and `unreachable` names it or the driver log."""

    leader: LeaderStatus | None = None
    agents: list[AgentStatus] | None = None
    pipelines: list[PipelineStatus] | None = None
    receivers: list[ReceiverStatus] | None = None
    lag: list[StreamLag] | None = None
    batches: list[BatchStats] | None = None
    processing_times: list[PipelineProcessingTimes] | None = None
    decisions: list[ScalingDecision] | None = None
    unread: list[UnreadStream] | None = None
    waiting_runs: list[WaitingRuns] | None = None
    unreachable: Sequence[Unreachable] = ()
    code: CodeState = NO_CODE
    states: list[OutputState] | None = None


def system_status(
    url: Callable[[], str],
    *,
    seconds: float,
    batches: int,
    host: str,
    roots: Sequence[str],
    code: Callable[[], CodeState] = CodeState,
    watch: float = WATCH_SECONDS,
) -> SystemStatus:
    """Read all parts in parallel; return within `seconds`.

    Args:
        url: returns the driver log's URL. It may read files that hang; its exception is reported for the driver log.
        seconds: the deadline for all parts together.
        batches: how many of the newest batches to read.
        host: this host's name, as its agent gives it.
        roots: the roots of the block store on this host.
        code: returns what is known of the code of this installation; it reads files, which may hang.
        watch: how many seconds to watch a counter that does not move, at most.
    """
    looks = BoundedScans(seconds)
    log = looks.start(DRIVER_LOG, lambda: _open(url(), looks.left()))

    def ask(part: str, read: Callable[[sa.Connection], Found]) -> Future[Found]:
        def look() -> Found:
            with connect(log.result()) as connection:
                return read(connection)

        return looks.start(part, look, needs=log)

    def watching() -> float:
        return min(watch, looks.left() * _WATCH_SHARE)

    # The order in which parts get the few connections if the driver log is slow.
    receivers = ask("receivers", store.receiver_status)
    pipelines = ask("pipelines", store.pipeline_status)
    newest = ask("batches", lambda connection: store.batch_stats(connection, limit=batches))
    leader = looks.start("leader", lambda: _watch_leader(log.result(), watching()), needs=log)
    agents = looks.start("agents", lambda: _watch_agents(log.result(), watching()), needs=log)
    lag = ask("lag", store.stream_lag)
    times = ask(
        "processing times",
        lambda connection: store.processing_times(connection, seconds=SCALING_INTERVAL.total_seconds()),
    )
    decisions = ask("scaling decisions", scaling_decisions)
    unread = ask("unread streams", unread_streams)
    waiting = ask("waiting runs", waiting_runs)
    states = ask("states", output_states)
    # A problem of the block store appears as the exception of one of these looks; there is one per root.
    known = ask("block store's identity", lambda connection: store_of_host(connection, host))
    changed = looks.start("changed code", code)
    for root in roots:
        looks.start(f"block store {root_name(root)}", partial(scan_root, root, known, looks.left))
    unreachable = looks.unreachable()
    return SystemStatus(
        leader=answer(leader),
        agents=answer(agents),
        pipelines=answer(pipelines),
        receivers=answer(receivers),
        lag=answer(lag),
        batches=answer(newest),
        processing_times=answer(times),
        decisions=answer(decisions),
        unread=answer(unread),
        waiting_runs=answer(waiting),
        unreachable=unreachable,
        code=answer(changed) or NO_CODE,
        states=answer(states),
    )


def status_of(connection: sa.Connection, *, code: CodeState = NO_CODE) -> SystemStatus:
    """Return all parts in which problems are looked for but leader and agents, which take watching."""
    lag = store.stream_lag(connection)
    return SystemStatus(
        pipelines=store.pipeline_status_with(connection, lag),
        receivers=store.receiver_status(connection),
        lag=lag,
        unread=unread_streams(connection),
        waiting_runs=waiting_runs(connection),
        code=code,
        states=output_states(connection),
    )


def _open(url: str, left: float) -> sa.Engine:
    """Connect with timeouts that fit in the `left` seconds, so that the server ends statements that we give up on."""
    engine = create_engine(
        url,
        application_name=APPLICATION,
        pool_size=1,
        connect_timeout=max(_LEAST_CONNECT_SECONDS, math.ceil(left)),
        statement_timeout=f"{max(1, round(left * 1000))}ms",
        lock_timeout=f"{max(1, round(left * _LOCK_SHARE * 1000))}ms",
    )
    with connect(engine) as connection:
        # Else each part would say that its own view is missing.
        check_there_is_a_log(connection, url)
    return engine


def _watch_leader(engine: sa.Engine, seconds: float) -> LeaderStatus:
    with connect(engine) as connection:
        first = newest = read_leadership(connection)
    began = time.monotonic()
    # The connection is returned to the pool between two looks, because other parts wait for one.
    while newest == first and first.holder is not None and time.monotonic() - began < seconds:
        time.sleep(_WATCH_STEP_SECONDS)
        with connect(engine) as connection:
            newest = read_leadership(connection)
    watched = round(time.monotonic() - began, 1)
    return LeaderStatus(newest.holder, newest.term, newest.holder is not None and newest != first, watched)


def _watch_agents(engine: sa.Engine, seconds: float) -> list[AgentStatus]:
    def read() -> dict[tuple[int, str, str], int]:
        with connect(engine) as connection:
            rows = live_processes(connection)
        return {(row.process_id, row.name, row.host): row.heartbeat for row in rows if row.kind is ProcessKind.AGENT}

    first = newest = read()
    began = time.monotonic()
    while first.items() & newest.items() and time.monotonic() - began < seconds:
        time.sleep(_WATCH_STEP_SECONDS)
        newest = read()
    watched = round(time.monotonic() - began, 1)
    # An agent that appeared while watching is alive; one that disappeared has ended.
    return [
        AgentStatus(name, host, first.get((process_id, name, host)) != heartbeat, watched)
        for (process_id, name, host), heartbeat in newest.items()
    ]

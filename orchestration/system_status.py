"""What `forebay status` knows: everything that can be asked within a deadline, and what can't be reached.

Owns which parts there are and how each is asked. It changes nothing, and never raises for a part that fails: the part
is None then, and `unreachable` says why.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from orchestration.bounded_looks import BoundedLooks, answer
from orchestration.spark.executor_allocation import SCALING_INTERVAL
from orchestration.store_look import look_at_root, store_of_host
from tracker_store import status as store
from tracker_store.engine import connect, create_engine
from tracker_store.leadership import read_leadership
from tracker_store.processes import live_processes
from tracker_store.scaling import scaling_decisions
from tracker_store.states import ProcessKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    import sqlalchemy as sa

    from orchestration.bounded_looks import Unreachable
    from tracker_store.scaling import ScalingDecision
    from tracker_store.status import BatchStats, PipelineProcessingTimes, PipelineStatus, ReceiverStatus, StreamLag

Found = TypeVar("Found")

DRIVER_LOG = "driver log"
APPLICATION = "forebay status"

# Seconds that a leader's or an agent's counter is watched: they raise them every 1 and 0.5 s.
WATCH_SECONDS = 2.5
_WATCH_STEP_SECONDS = 0.1
# Of the time that is left: a table that somebody has locked must not take the others' time.
_LOCK_SHARE = 0.25
_WATCH_SHARE = 0.7
# Seconds: libpq raises a shorter connection time-out to this.
_LEAST_CONNECT_SECONDS = 2


@dataclass(frozen=True, slots=True)
class LeaderStatus:
    """Who leads; `moves`: its counter was raised while it was watched, for `watched` seconds at most."""

    holder: str | None
    term: int
    moves: bool
    watched: float


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """An agent that has not ended; `moves` and `watched` as a leader's."""

    name: str
    host: str
    moves: bool
    watched: float


@dataclass(frozen=True, slots=True)
class SystemStatus:
    """The parts; None: it gave no answer, and `unreachable` names it, or the driver log, with the reason."""

    leader: LeaderStatus | None
    agents: list[AgentStatus] | None
    pipelines: list[PipelineStatus] | None
    receivers: list[ReceiverStatus] | None
    lag: list[StreamLag] | None
    batches: list[BatchStats] | None
    processing_times: list[PipelineProcessingTimes] | None
    decisions: list[ScalingDecision] | None
    unreachable: list[Unreachable]


def system_status(
    url: Callable[[], str],
    *,
    seconds: float,
    batches: int,
    host: str,
    roots: Sequence[str],
    watch: float = WATCH_SECONDS,
) -> SystemStatus:
    """Ask for everything at once; return within `seconds`.

    Args:
        url: finds the driver log's URL; it may read files that hang, and what it raises is the driver log's reason.
        seconds: for all parts together.
        batches: how many of the newest to read.
        host: this one, as its agent is named.
        roots: of the block store, as this host sees it.
        watch: seconds for which a counter that stands still is watched, at most.
    """
    looks = BoundedLooks(seconds)
    log = looks.start(DRIVER_LOG, lambda: _open(url(), looks.left()))

    def ask(part: str, read: Callable[[sa.Connection], Found]) -> Future[Found]:
        def look() -> Found:
            with connect(log.result()) as connection:
                return read(connection)

        return looks.start(part, look, needs=log)

    def watching() -> float:
        return min(watch, looks.left() * _WATCH_SHARE)

    # In this order they get the few connections, where each of them waits.
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
    # What is wrong with the block store is an exception of one of these looks, one per root.
    known = ask("block store's identity", lambda connection: store_of_host(connection, host))
    for root in roots:
        looks.start(f"block store {root}", partial(look_at_root, root, known, looks.left))
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
        unreachable=unreachable,
    )


def _open(url: str, left: float) -> sa.Engine:
    """Connect with time-outs that fit in what is `left`, seconds; the server lets go by itself what we give up."""
    engine = create_engine(
        url,
        application_name=APPLICATION,
        pool_size=1,
        connect_timeout=max(_LEAST_CONNECT_SECONDS, math.ceil(left)),
        statement_timeout=f"{max(1, round(left * 1000))}ms",
        lock_timeout=f"{max(1, round(left * _LOCK_SHARE * 1000))}ms",
    )
    with connect(engine):
        return engine


def _watch_leader(engine: sa.Engine, seconds: float) -> LeaderStatus:
    with connect(engine) as connection:
        first = newest = read_leadership(connection)
    began = time.monotonic()
    # The connection is given back between two looks: other parts wait for one.
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
    # An agent that appeared meanwhile is alive; one that is gone has ended.
    return [
        AgentStatus(name, host, first.get((process_id, name, host)) != heartbeat, watched)
        for (process_id, name, host), heartbeat in newest.items()
    ]

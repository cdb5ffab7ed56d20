"""Run the tracker: lead by the `leadership` row, place and move receivers, declare processes dead.

Each second it reads the processes' counters and the counters of changes; the tables, only when those say so, or a time
has come (`change_watch`).

It keeps no state of its own: every decision is a row. The statement of each decision checks the term under a lock, so
that a tracker that no longer leads (because it was paused or cut off) changes nothing.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import structlog

from orchestration.declarations.pipeline_settings import PipelineSettings
from orchestration.tracker.change_watch import ChangeWatch
from orchestration.tracker.liveness import CounterWatch
from orchestration.tracker.placement_rules import PlacementRules
from orchestration.tracker.rate_controller import RateController
from orchestration.tracker.rebalancing import Rebalancing
from orchestration.tracker.receiver_placement import ReceiverPlacement
from tracker_store.batches import batches
from tracker_store.batches.pipeline_states import advance_stops, any_stopping
from tracker_store.batches.pipelines import list_pipelines
from tracker_store.connection.engine import connect
from tracker_store.connection.outage import SURVIVED, Outage
from tracker_store.receivers.changes import read_changes
from tracker_store.receivers.leadership import (
    DeposedError,
    holder_name,
    raise_counter,
    read_leadership,
    resign,
    take_leadership,
)
from tracker_store.receivers.processes import expire_process, live_heartbeats, live_processes
from tracker_store.schema.declarations import PipelineDeclaration
from tracker_store.schema.states import AttemptFailure

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa

    from orchestration.tracker.clean_up.cleaner import Cleaner
    from orchestration.tracker.clean_up.link_cleaner import LinkCleaner
    from tracker_store.receivers.leadership import Leadership

# The leader raises the counter every second; a candidate waits for three of them (docs/explanation/processes.md).
TICK_SECONDS = 1.0
LEADERSHIP_LIMIT_SECONDS = 3.0
# How long, in seconds, a tick may take: after that the leader stops raising the counter, because the tick hangs.
LONGEST_TICK_SECONDS = 60.0
# Ticks that fail one after the other before the leader resigns: another tracker may be able to do what this one can't.
MOST_FAILED_TICKS = 60
CLEANUP_SECONDS = 30.0
CLEANUP_STOP_SECONDS = 10.0

log = structlog.get_logger(__name__)


class Tracker:
    """One candidate for leadership; `run` takes the leadership whenever it is free."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        heartbeat_limit_seconds: float,
        cleaner: Cleaner | None = None,
        link_cleaner: LinkCleaner | None = None,
        placement: PlacementRules | None = None,
        clock: Callable[[], float] = time.monotonic,
        name: str | None = None,
    ) -> None:
        """Work on the driver log behind `engine`.

        Args:
            engine: the driver log.
            heartbeat_limit_seconds: a process without a heartbeat for this long is declared dead.
            cleaner: cleans up blocks, files and history while this tracker leads; None: they are not cleaned up.
            link_cleaner: the same for links and keys, in a thread of its own.
            placement: when receivers are placed and moved; None: placed at once, and moved only by request.
            clock: monotonic, in seconds.
            name: shown to people as the holder of the leadership.
        """
        self._cleaner = cleaner
        self._link_cleaner = link_cleaner
        self._engine = engine
        self._clock = clock
        #: The name under which people see this tracker.
        self.name = name or holder_name(socket.gethostname(), os.getpid())
        self._heartbeat_limit = heartbeat_limit_seconds
        self._term: int | None = None
        self._leader_watch: CounterWatch[int] = CounterWatch(LEADERSHIP_LIMIT_SECONDS, clock)
        self._process_watch: CounterWatch[int] = CounterWatch(heartbeat_limit_seconds, clock)
        self._rate_controller = RateController(clock)
        self._placement_rules = placement or PlacementRules()
        self._placement = ReceiverPlacement(clock, self._placement_rules)
        self._rebalancing = Rebalancing(clock, self._placement_rules.moves)
        self._placement_watch = ChangeWatch(clock)
        self._rates_watch = ChangeWatch(clock)
        # When the tick that is running began, on the clock; None: none is.
        self._tick_began: float | None = None
        # Ticks since the last one that was finished.
        self._failed_ticks = 0
        # Until then this tracker lets others lead.
        self._abstains_until = clock()

    @property
    def term(self) -> int | None:
        """Return the term in which this tracker leads, as far as it knows; None when it does not."""
        return self._term

    def lease_ages(self) -> dict[int, float]:
        """Return the seconds since each process's heartbeat counter moved, by id; empty unless this tracker leads.

        Safe to call from any thread.
        """
        return self._process_watch.ages() if self._term is not None else {}

    def run(self, stop: threading.Event) -> None:
        """Tick every second until `stop`; then resign. Clean-up runs in its own threads, so that it delays no tick."""
        roles: list[tuple[str, Callable[[], None]]] = [("leader's counter", lambda: self._vouch(stop))]
        if (cleaner := self._cleaner) is not None:

            def clean_up(connection: sa.Connection, term: int) -> bool:
                return cleaner.cleanup_old_batches(connection, datetime.now(UTC), term=term).more

            roles.append(("cleaner", lambda: self._clean_up(stop, "clean-up", clean_up)))
        if (link_cleaner := self._link_cleaner) is not None:

            def clean_up_links(connection: sa.Connection, term: int) -> bool:
                link_cleaner.clean_up(connection, term=term, stopped=stop.is_set)
                return False

            roles.append(("link cleaner", lambda: self._clean_up(stop, "clean-up of links", clean_up_links)))
        threads = [threading.Thread(target=run, name=name, daemon=True) for name, run in roles]
        for thread in threads:
            thread.start()
        outage = Outage("the tracker", self._clock)
        while not stop.is_set():
            started = self._clock()
            try:
                with connect(self._engine) as connection:
                    self.tick(connection)
            except SURVIVED as error:
                outage.failed(error)
                self._give_way()
            else:
                outage.answered()
            stop.wait(max(0.0, TICK_SECONDS - (self._clock() - started)))
        self._resign()
        deadline = time.monotonic() + CLEANUP_STOP_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _vouch(self, stop: threading.Event) -> None:
        while not stop.wait(TICK_SECONDS):
            if self._term is None:
                continue
            try:
                with connect(self._engine) as connection:
                    self.vouch(connection)
            except SURVIVED as error:
                log.debug("the leader's counter was not raised", error=str(error))

    def vouch(self, connection: sa.Connection) -> None:
        """Raise the leader's counter while a tick runs, so that a long one does not cost the leadership.

        Called every second, by another thread than the tick's. A tick that takes longer than `LONGEST_TICK_SECONDS`
        hangs: another tracker shall lead. This never ends the term: the tick's next statement finds that it is over.
        """
        term, began = self._term, self._tick_began
        if term is not None and began is not None and self._clock() - began <= LONGEST_TICK_SECONDS:
            raise_counter(connection, term=term)

    def _give_way(self) -> None:
        """Let another tracker try if this one leads and none of its ticks succeeds."""
        if self._term is None or self._failed_ticks < MOST_FAILED_TICKS:
            return
        log.error("resigns: no tick has succeeded for long", ticks=self._failed_ticks)
        self._failed_ticks = 0
        self._abstains_until = self._clock() + 2 * LEADERSHIP_LIMIT_SECONDS
        self._resign()

    def _resign(self) -> None:
        term, self._term = self._term, None
        if term is None:
            return
        try:
            with connect(self._engine) as connection:
                resign(connection, term=term)
        except SURVIVED as error:
            log.warning("could not resign; the next leader waits for the time limit", error=str(error))

    def _clean_up(self, stop: threading.Event, what: str, clean_up: Callable[[sa.Connection, int], bool]) -> None:
        """Clean up at intervals while this tracker leads; at once again if ``clean_up`` says that there is more."""
        pause = CLEANUP_SECONDS
        while not stop.wait(pause):
            pause = CLEANUP_SECONDS
            term = self._term
            if term is None:
                continue
            try:
                with connect(self._engine) as connection:
                    pause = 0.0 if clean_up(connection, term) else CLEANUP_SECONDS
            except DeposedError:
                log.info(f"{what} ends: another tracker leads", term=term)
            except (*SURVIVED, OSError) as error:
                log.warning(f"{what} failed, trying again", error=str(error))

    def tick(self, connection: sa.Connection) -> None:
        """Keep or try to take the leadership; when leading, do what is due."""
        self._tick_began = self._clock()
        try:
            self._tick(connection)
        finally:
            self._tick_began = None

    def _tick(self, connection: sa.Connection) -> None:
        if not self._lead(connection):
            return
        if (term := self._term) is None:
            raise RuntimeError("a tracker that does not lead may decide nothing")
        # A tick that could not even raise the counter is no failure of this tracker's: the driver log did not answer.
        self._failed_ticks += 1
        self._expire_processes(connection, term)
        _fail_lost_attempts(connection, term)
        # Read before what they count, so that a change meanwhile is seen by the next tick.
        changes = read_changes(connection)
        is_changed = self._placement_watch.is_due(changes.placement, changes)
        if is_changed:
            # Before placement, so that a receiver that is to stop is not placed.
            for outcome, subject in advance_stops(connection, term=term):
                log.info("stop or start", outcome=outcome, id=subject)
        if self._rates_watch.is_due(changes.batches, changes) or is_changed:
            # Before placement, so that a receiver starts with its rate limit.
            self._rates_watch.scanned(self._rate_controller.tick(connection, term=term))
        if is_changed:
            waits = [
                self._placement.tick(connection, term=term),
                # After placement, so that it sees each waiting receiver's slot as taken.
                self._rebalancing.tick(connection, term=term),
                # A stop waits for blocks and batches, which no counter tells of.
                TICK_SECONDS if any_stopping(connection) else None,
            ]
            self._placement_watch.scanned(min((wait for wait in waits if wait is not None), default=None))
        self._failed_ticks = 0

    def _lead(self, connection: sa.Connection) -> bool:
        if self._term is not None:
            if raise_counter(connection, term=self._term):
                return True
            lost, self._term = self._term, None
            log.warning("no longer leading", term=lost)
        if self._clock() < self._abstains_until:
            return False
        seen = read_leadership(connection)
        if seen.holder is not None and not self._leader_watch.unmoved([(seen.term, seen.counter)]):
            return False
        return self._take(connection, seen)

    def _take(self, connection: sa.Connection, seen: Leadership) -> bool:
        self._term = take_leadership(connection, seen=seen, holder=self.name)
        if self._term is None:
            return False
        # Observations of an earlier term are stale: every process gets the whole limit again.
        self._process_watch = CounterWatch(self._heartbeat_limit, self._clock)
        self._rate_controller = RateController(self._clock)
        self._placement = ReceiverPlacement(self._clock, self._placement_rules)
        self._rebalancing = Rebalancing(self._clock, self._placement_rules.moves)
        self._placement_watch = ChangeWatch(self._clock)
        self._rates_watch = ChangeWatch(self._clock)
        self._failed_ticks = 0
        log.info("leading", term=self._term, after=seen.holder)
        return True

    def _expire_processes(self, connection: sa.Connection, term: int) -> None:
        unmoved = self._process_watch.unmoved(live_heartbeats(connection))
        if not unmoved:
            return
        processes = {process.process_id: process for process in live_processes(connection)}
        for process_id, heartbeat in unmoved:
            process = processes.get(process_id)
            if process is None:
                continue  # it has ended meanwhile
            why = f"no heartbeat from {process.kind} {process.name} for {self._heartbeat_limit:g} s"
            outcome = expire_process(connection, term=term, process_id=process_id, heartbeat=heartbeat, why=why)
            log.warning("process expired", process=process.name, kind=process.kind.value, outcome=outcome)


def _fail_lost_attempts(connection: sa.Connection, term: int) -> None:
    lost = batches.attempts_of_ended_processes(connection)
    if not lost:
        return
    declarations = {row.pipeline_id: PipelineDeclaration.of(row.declaration) for row in list_pipelines(connection)}
    for attempt in lost:
        # A removed pipeline has no declaration, and gets no further attempt.
        declared = declarations.get(attempt.pipeline_id)
        batches.fail_attempt(
            connection,
            pipeline_id=attempt.pipeline_id,
            batch_time=attempt.batch_time,
            attempt=attempt.attempt,
            run_id=attempt.run_id,
            error=f"the process of run {attempt.run_id} ended before the batch was complete",
            failure=AttemptFailure.LOST,
            max_attempts=1 if declared is None else declared.max_attempts,
            max_lost_attempts=1 if declared is None else PipelineSettings.of_row(declared.settings).max_lost_attempts,
            term=term,
        )
        log.warning("attempt lost", run_id=attempt.run_id, attempt=attempt.attempt)

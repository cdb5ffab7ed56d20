"""Check that in any interleaving a receiver's states stay legal, and accepted records are neither lost nor doubled.

The supervisor, the generator, the segments and the registrar are real, with their real threads and small bounds; the
chain of blocks is in memory. A reader thread hands records over in its own time while rules run beside it.
"""

from __future__ import annotations

import queue
import threading
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from receiver_runtime.block_path.generator_state import GeneratorStateError
from receiver_runtime.block_path.write_ahead_log import WriteAheadLogClosedError, WriteAheadLogError
from receiver_runtime.supervisor.lifecycle import SupervisorState
from receiver_runtime.supervisor.receiver import Receiver
from receiver_runtime.watching.backoff import Backoff
from receiver_runtime.watching.exit_codes import ExitCode
from tests.unit.receiver_runtime.rig import Rig, batch, rig
from tests.unit.receiver_runtime.support import eventually
from tracker_store.connection.errors import ReceiverFencedError
from tracker_store.schema.states import DesiredState, ReceiverState

if TYPE_CHECKING:
    from receiver_runtime.supervisor.ending import Ending

# What a hand-over may raise when it comes too late, or when the disk fails three times in a row.
REFUSALS = (GeneratorStateError, ReceiverFencedError, WriteAheadLogClosedError, WriteAheadLogError)


class ModelReceiver(Receiver):
    """Checks that starts and stops alternate and never overlap; fails when a test says so."""

    columns = (("value", "string"),)

    def __init__(self) -> None:
        super().__init__()
        self.running = False
        self.faults: list[str] = []
        self.start_failures = 0
        self.stop_failures = 0

    def on_start(self) -> None:
        if self.running:
            self.faults.append("started while running")
        self.running = True
        if self.start_failures:
            self.start_failures -= 1
            raise OSError("no route")

    def on_stop(self) -> None:
        if not self.running:
            self.faults.append("stopped while not running")
        self.running = False
        if self.stop_failures:
            self.stop_failures -= 1
            raise OSError("will not")


class Reader:
    """Hands over one job after the other, and keeps the outcome for each record."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._jobs: queue.Queue[tuple[str, list[str]] | None] = queue.Queue()
        # Accepted: `store` returned. Registered: `store` with many records returned. Refused: it raised.
        self.accepted: list[str] = []
        self.registered: list[str] = []
        self.refused: list[str] = []
        self.faults: list[BaseException] = []
        self._numbers = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def hand_over(self, how: str, records: int) -> None:
        values = [f"{how} {self._numbers + n}" + "x" * 50 for n in range(records)]
        self._numbers += records
        self._jobs.put((how, values))

    def join(self) -> None:
        self._jobs.put(None)
        self._thread.join(30)
        assert not self._thread.is_alive(), "a record is handed over for ever"

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            how, values = job
            try:
                if how == "single":
                    self._receiver.store(values[0])
                elif how == "buffered":
                    self._receiver.store_buffered(batch(*values))
                else:
                    self._receiver.store(list(values))
                    self.registered += values
            except REFUSALS:
                self.refused += values
            except BaseException as error:  # noqa: BLE001  the test looks at it
                self.faults.append(error)
            else:
                self.accepted += values


class SupervisorMachine(RuleBasedStateMachine):
    """Holds rules for everything that an operator, a source, a disk and a driver log may do, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self._stack = ExitStack()
        directory = Path(self._stack.enter_context(TemporaryDirectory()))
        self.receiver = ModelReceiver()
        self.rig: Rig = self._stack.enter_context(
            rig(
                directory,
                self.receiver,
                block_interval="2ms",
                block_queue_size=2,
                max_block_bytes=2000,
                receiver_restart_delay="0ms",
                receiver_max_restart_delay="1ms",
            )
        )
        # With the usual pauses, two dozen lost answers in a row would take a minute.
        self.rig.registrar._backoff = Backoff(0.001, 0.02)
        self.reader = Reader(self.receiver)
        self.wanted: str | None = None
        self.fenced = False

    @rule(how=st.sampled_from(["single", "buffered", "many"]), records=st.integers(1, 40))
    def hand_over(self, how: str, records: int) -> None:
        self.reader.hand_over(how, 1 if how == "single" else records)

    @rule()
    def a_moment_passes(self) -> None:
        threading.Event().wait(0.004)

    @rule()
    def restart(self) -> None:
        self.receiver.restart("again")

    # An operator who revokes a stop in time has not stopped the receiver: no such rule after a stop.
    @precondition(lambda self: self.wanted != "operator")
    @rule(state=st.sampled_from([DesiredState.PAUSED, DesiredState.RUNNING]))
    def desire(self, state: DesiredState) -> None:
        self.rig.log.desired[1] = state

    @rule(rate=st.sampled_from([None, 100_000.0, 1e6]))
    def set_rate(self, rate: float | None) -> None:
        if rate is None:
            self.rig.log.rates.pop(1, None)
        else:
            self.rig.log.rates[1] = rate

    @rule()
    def lose_an_answer(self) -> None:
        self.rig.log.lose_answers += 1

    @rule(away=st.booleans())
    def driver_log(self, *, away: bool) -> None:
        self.rig.log.away = away

    @rule(fault=st.sampled_from(["error", "short", "sync", "create"]))
    def disk_fails_once(self, fault: str) -> None:
        if fault == "sync":
            self.rig.files.sync_faults = 1
        elif fault == "create":
            self.rig.files.create_faults = 1
        else:
            self.rig.files.write_faults = [fault]

    @rule()
    def next_start_fails(self) -> None:
        self.receiver.start_failures += 1

    @rule()
    def next_stop_fails(self) -> None:
        self.receiver.stop_failures += 1

    @precondition(lambda self: self.wanted is None)
    @rule(how=st.sampled_from(["agent", "operator", "receiver"]))
    def stop(self, how: str) -> None:
        self.wanted = how
        if how == "agent":
            self.rig.supervisor.lifecycle.stop("SIGTERM")
        elif how == "receiver":
            self.receiver.stop("no more to read")
        else:
            self.rig.log.desired[1] = DesiredState.STOPPED

    @precondition(lambda self: not self.fenced)
    @rule()
    def fence(self) -> None:
        self.fenced = True
        self.rig.log.fence.add(1)

    @invariant()
    def starts_and_stops_alternate(self) -> None:
        assert self.receiver.faults == []
        assert self.rig.supervisor.lifecycle.state in SupervisorState

    def teardown(self) -> None:
        # First end every outage, then the receiver.
        try:
            self.rig.log.away = False
            ending = self._end()
            self.reader.join()
            self._check(ending)
        finally:
            self._stack.close()

    def _end(self) -> Ending:
        if self.wanted is None:
            self.reader.join()
            self.rig.supervisor.lifecycle.stop("the test is over")
        eventually(lambda: self.rig.endings, "the end")
        return self.rig.end()

    def _check(self, ending: Ending) -> None:
        assert self.reader.faults == []
        assert self.receiver.faults == []
        assert not self.receiver.running
        values = self.rig.values()
        assert len(values) == len(set(values)), "a record came twice"
        assert set(self.reader.registered) <= set(values), "what was acknowledged is lost"
        sequences = [item.sequence for item in self.rig.log.chain(1)]
        assert sequences == list(range(2, 2 + len(sequences)))
        if ending.exit_code is ExitCode.FENCED:
            assert self.fenced
            assert set(values) <= set(self.reader.accepted) | set(self.reader.refused)
            return
        assert (ending.exit_code, ending.drained) == (ExitCode.STOPPED, True), ending.reason
        assert set(self.reader.accepted) <= set(values), "what was accepted is lost"
        # A chunk that was cut into pieces may have been refused after its first pieces.
        assert set(values) - set(self.reader.accepted) <= {v for v in self.reader.refused if v.startswith("buffered")}
        assert self.rig.reporter.states[-1] == (ReceiverState.INACTIVE, ending.reason)


def test_any_interleaving_keeps_the_states_legal_and_loses_and_doubles_nothing_accepted() -> None:
    run_state_machine_as_test(
        SupervisorMachine,
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            # Threads decide what happens: it would take minutes to find a smaller example that fails too.
            phases=(Phase.reuse, Phase.generate),
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )

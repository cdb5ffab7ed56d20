from __future__ import annotations

import re
import threading
import time
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import pytest

from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_path.generator_state import GeneratorState, GeneratorStateError
from receiver_runtime.block_path.write_ahead_log import WriteAheadLogClosedError
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.block_store.frames.segment import IntactFrame
from receiver_runtime.reporting.receiver_status import ReceiverStatus
from receiver_runtime.reporting.unfailing_reporter import UnfailingReporter
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from receiver_runtime.supervisor.ending import Ending
from receiver_runtime.supervisor.lifecycle import TRANSITIONS, SupervisorState
from receiver_runtime.watching.exit_codes import ExitCode
from tests.unit.receiver_runtime.rig import HandReceiver, Rig, batch, in_thread, rig, running
from tests.unit.receiver_runtime.support import (
    ManualClock,
    PaidClock,
    advance_until,
    block,
    eventually,
    reaches,
)
from tracker_store.blocks.blocks import NewBlock, OffsetLink
from tracker_store.connection.errors import (
    DriverLogUnavailableError,
    OffsetConflictError,
    OutcomeUnknownError,
    ReceiverFencedError,
    SequenceGapError,
)
from tracker_store.schema.states import DesiredState, ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

    from receiver_runtime.supervisor.receiver import Receiver


@pytest.fixture
def receiver() -> HandReceiver:
    return HandReceiver()


def test_r04_before_it_is_attached_a_receiver_knows_nothing(receiver: HandReceiver) -> None:
    assert receiver.stream_id == -1
    for use in (
        lambda: receiver.store("x"),
        lambda: receiver.store_buffered(["x"]),
        lambda: receiver.restart("x"),
        lambda: receiver.stop("x"),
        lambda: receiver.report_error("x"),
        receiver.is_started,
        receiver.is_stopped,
    ):
        with pytest.raises(RuntimeError, match="No ReceiverSupervisor has been attached"):
            use()


def test_r04_a_receiver_is_attached_once(receiver: HandReceiver, tmp_path: Path) -> None:
    with rig(tmp_path, receiver, start=False) as made:
        assert receiver.stream_id == 3
        assert (receiver.is_started(), receiver.is_stopped()) == (False, False)
        with pytest.raises(RuntimeError, match="Make a new receiver for each supervisor"):
            receiver.attach_supervisor(made.attached)


def test_r01_a_receiver_prefers_no_host(receiver: HandReceiver) -> None:
    assert receiver.preferred_location is None


def test_r02_one_record_is_asynchronous_and_many_return_when_registered(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver, block_interval="60s") as made:
        receiver.store("single")
        assert made.values() == []
        receiver.store(batch("a", "b"))
        assert made.values() == ["a", "b"]
        receiver.store(["c"])
        receiver.store(iter(["d", "e"]))
        assert [item.records for item in made.log.chain(1)] == [2, 1, 2]
        assert made.stop().drained
        assert made.values() == ["a", "b", "c", "d", "e", "single"]


def test_r02_many_records_raise_when_they_can_not_be_registered(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver) as made:
        receiver.store(["a"])
        made.log.fence.add(1)
        with pytest.raises(ReceiverFencedError):
            receiver.store(["b"])
        assert made.end().exit_code is ExitCode.FENCED
        assert made.values() == ["a"]


def test_b03_a_buffered_chunk_is_in_one_block(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver) as made:
        for n in range(20):
            receiver.store_buffered(batch(*[str(n)] * 50))
        made.stop()
        assert made.values() == [str(n) for n in range(20) for _ in range(50)]
        assert all(item.records % 50 == 0 for item in made.log.chain(1))


def test_s01_states_and_order_of_start(receiver: HandReceiver, tmp_path: Path) -> None:
    seen: list[object] = []
    with rig(tmp_path, receiver, start=False) as made:
        receiver.on_starting = lambda: seen.extend([made.supervisor.block_path.generator.state, receiver.is_started()])
        seen.append(made.supervisor.lifecycle.state)
        made.start()
        eventually(lambda: receiver.starts)
        made.stop()
        assert seen == [SupervisorState.INITIALIZED, GeneratorState.ACTIVE, True]
        assert made.supervisor.lifecycle.state is SupervisorState.STOPPED
        assert receiver.is_stopped()
        assert made.reporter.states[-1][0] is ReceiverState.INACTIVE
        assert made.reporter.kinds()[-1] is ReceiverEventKind.STOPPED


def test_s02_a_receiver_that_fails_to_start_is_started_again(receiver: HandReceiver, tmp_path: Path) -> None:
    def fail() -> None:
        if receiver.starts < 4:
            raise OSError("no route")

    receiver.on_starting = fail
    with rig(tmp_path, receiver) as made:
        eventually(lambda: receiver.starts == 4)
        assert (ReceiverEventKind.RESTARTED, "Error starting receiver", "OSError: no route") in made.reporter.events
        assert "Error starting receiver" in made.reporter.reasons[0]
        assert receiver.stops == 3


def test_s03_a_receiver_that_fails_to_stop_is_stopped(receiver: HandReceiver, tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError("will not")

    receiver.on_stopping = fail
    with running(tmp_path, receiver) as made:
        receiver.store("x")
        assert made.stop().exit_code is ExitCode.STOPPED
        assert made.values() == ["x"]
        assert ReceiverEventKind.ERROR in made.reporter.kinds()


def test_s04_k12_a_graceful_stop_registers_all_that_store_accepted(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver, block_interval="60s") as made:
        for n in range(10_000):
            receiver.store(str(n))
        assert made.values() == []
        assert made.stop().drained
        assert made.values() == [str(n) for n in range(10_000)]
        # All segments are also sealed with their true length.
        assert sum(made.rows.lengths.values()) == sum(item.bytes for item in made.log.chain(1))


def test_s04_records_stored_during_the_stop_are_drained(receiver: HandReceiver, tmp_path: Path) -> None:
    receiver.on_stopping = lambda: receiver.store_buffered(batch("read", "before"))
    with running(tmp_path, receiver, block_interval="3s", receiver_max_rate=0.001) as made:
        assert made.stop().drained
        assert made.values() == ["read", "before"]


def test_s04_a_stop_while_the_driver_log_is_away_waits_for_it(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver) as made:
        made.log.away = True
        receiver.store("x")
        made.supervisor.lifecycle.stop("now")
        eventually(lambda: receiver.stops and made.log.calls, "the end of the receiver, and a try to register")
        assert not made.endings
        made.log.away = False
        assert made.end().drained
        assert made.values() == ["x"]


def test_s04_a_stop_while_the_driver_log_is_away_puts_everything_on_the_disk(
    receiver: HandReceiver, tmp_path: Path
) -> None:
    """There are more blocks than may wait: if the process is killed now, salvage finds them."""
    with running(tmp_path, receiver, block_queue_size=2, max_block_bytes="1KiB") as made:
        made.log.away = True
        # Two blocks wait to be registered, one to be stored, two are in the queue, and one is in the next cut.
        taken = [str(n) * 1024 for n in range(6)]
        for value in taken:
            receiver.store(value)
        made.supervisor.lifecycle.stop("now")
        eventually(lambda: len(stored(made)) == len(taken), "every block to be on the disk")
        made.log.away = False
        assert made.end().drained
        assert made.values() == taken


def stored(made: Rig) -> list[int]:
    """Return the sequences of the blocks on the disk."""
    return [
        item.header.sequence
        for path in made.rows.paths.values()
        for item in made.store.scan(path)
        if isinstance(item, IntactFrame)
    ]


def test_s04_a_receiver_that_hangs_in_on_stop_holds_no_end_up(receiver: HandReceiver, tmp_path: Path) -> None:
    let_go = threading.Event()
    receiver.on_stopping = partial(_hang, let_go)
    with running(tmp_path, receiver, block_interval="3s", receiver_stop_timeout="100ms") as made:
        for n in range(1000):
            receiver.store(str(n))
        ending = made.stop()
        assert (ending.exit_code, ending.drained) == (ExitCode.STOPPED, True)
        assert made.values() == [str(n) for n in range(1000)]
        [error] = [message for kind, message, _ in made.reporter.events if kind is ReceiverEventKind.ERROR]
        assert error.startswith("on_stop has not returned after 0.1 s")
        assert made.reporter.events[-1][1] == "stopped, everything handed over is registered"
        # Records that it brings from now on are refused, so that it doesn't take them for stored.
        with pytest.raises(GeneratorStateError):
            receiver.store("too late")
        with pytest.raises(WriteAheadLogClosedError):
            receiver.store(["too late"])
        let_go.set()


def test_s04_a_receiver_that_waits_for_the_driver_log_does_not_hang(receiver: HandReceiver, tmp_path: Path) -> None:
    """The same on_stop hands on the last records of a source, however long the driver log is unavailable."""

    def read() -> None:
        for n in range(12):
            receiver.store_buffered(batch(*[f"{n:04d}" * 30] * 10))

    clock = ManualClock()
    with running(
        tmp_path, receiver, clock=clock, block_queue_size=1, max_block_bytes=2000, receiver_stop_timeout="5s"
    ) as made:
        made.log.away = True
        reader, errors = in_thread(read)
        receiver.on_stopping = reader.join
        generator = made.supervisor.block_path.generator
        eventually(lambda: generator._queue.held is not None and generator._buffer.records, "a full buffer and queue")
        made.supervisor.lifecycle.stop("now")
        eventually(receiver.is_stopped)
        # Wait three times as long as an on_stop may take. Then stop the clock: the rest depends on the machine's speed.
        over = clock.monotonic() + 15
        advance_until(clock, lambda: clock.monotonic() > over, step=0.1)
        assert not made.endings
        assert receiver.stops == 0
        made.log.away = False
        assert made.end() == Ending(ExitCode.STOPPED, "now", drained=True)
        assert not errors
        assert not [message for _, message, _ in made.reporter.events if "on_stop" in message]
        assert made.values() == [f"{n:04d}" * 30 for n in range(12) for _ in range(10)]


def _hang(let_go: threading.Event) -> None:
    let_go.wait(60)


@pytest.mark.parametrize("wish", ["restart", "pause"])
def test_s05_a_receiver_that_hangs_in_on_stop_is_started_by_another_process(
    receiver: HandReceiver, tmp_path: Path, wish: str
) -> None:
    let_go = threading.Event()
    receiver.on_stopping = partial(_hang, let_go)
    with running(tmp_path, receiver, block_interval="3s", receiver_stop_timeout="50ms") as made:
        receiver.store("kept")
        if wish == "restart":
            receiver.restart("the source went away")
        else:
            made.log.desired[1] = DesiredState.PAUSED
        ending = made.end()
        assert (ending.exit_code, ending.drained, ending.again) == (ExitCode.FAILED, True, True)
        assert "on_stop hangs" in ending.reason
        assert made.values() == ["kept"]
        assert receiver.starts == 1
        # The agent starts another process: no operator has to act.
        assert made.reporter.states == []
        let_go.set()


def test_s02_an_on_start_that_blocks_is_reported_and_works(receiver: HandReceiver, tmp_path: Path) -> None:
    ended = threading.Event()

    def loop() -> None:
        while not ended.wait(0.001):
            receiver.store("x")

    receiver.on_starting = loop
    receiver.on_stopping = ended.set
    with rig(tmp_path, receiver, receiver_start_timeout="20ms") as made:
        eventually(lambda: len(made.values()) > 3 and made.reporter.events)
        assert [message for _, message, _ in made.reporter.events] == [
            "on_start has not returned after 0.02 s and is left to run on: it must not block, start a thread in it"
        ]
        assert made.stop() == Ending(ExitCode.STOPPED, "the test is over", drained=True)
        assert receiver.stops == 1


def test_s02_an_on_start_that_fails_late_is_started_again(receiver: HandReceiver, tmp_path: Path) -> None:
    fails = threading.Event()

    def connect() -> None:
        if receiver.starts == 1:
            fails.wait(60)
            raise OSError("no route")

    receiver.on_starting = connect
    with rig(tmp_path, receiver, receiver_start_timeout="10ms") as made:
        eventually(lambda: made.reporter.events)
        fails.set()
        eventually(lambda: receiver.starts == 2 and receiver.stops == 1)
        assert (ReceiverEventKind.RESTARTED, "Error starting receiver", "OSError: no route") in made.reporter.events


def test_s02_an_on_start_that_never_ends_can_not_be_started_twice(receiver: HandReceiver, tmp_path: Path) -> None:
    let_go = threading.Event()
    receiver.on_starting = partial(_hang, let_go)
    with rig(tmp_path, receiver, receiver_start_timeout="10ms", receiver_stop_timeout="50ms") as made:
        eventually(lambda: made.reporter.events)
        receiver.restart("again")
        assert made.end().again
        assert receiver.starts == 1
        let_go.set()


def test_w05_a_block_generator_that_dies_ends_the_process_for_another(
    receiver: HandReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, receiver) as made:
        monkeypatch.setattr(made.supervisor.block_path.pusher, "push", _exit)
        receiver.store("x")
        ending = made.end()
        assert (ending.exit_code, ending.drained, ending.again) == (ExitCode.FAILED, False, True)
        assert "the block generator failed: SystemExit" in ending.reason
        with pytest.raises(GeneratorStateError):
            receiver.store("nobody would store it")


def _exit(_: object) -> None:
    raise SystemExit


def test_w05_a_supervisor_that_fails_in_its_own_code_still_ends(
    receiver: HandReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, receiver) as made:
        receiver.store("x")
        monkeypatch.setattr(made.supervisor, "_pause", _fail)
        made.log.desired[1] = DesiredState.PAUSED
        ending = made.end()
        assert (ending.exit_code, ending.drained, ending.again) == (ExitCode.FAILED, True, True)
        assert made.values() == ["x"]


def test_w05_a_failing_end_is_still_an_end(
    receiver: HandReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, receiver) as made:
        monkeypatch.setattr(made.supervisor.block_path._handler, "close", _fail)
        ending = made.stop()
        assert (ending.exit_code, ending.drained, ending.again) == (ExitCode.FAILED, False, True)
        assert "the test is over; then the end itself failed: ValueError" in ending.reason


def _fail(*_: object) -> None:
    raise ValueError


def wait_for_starts(made: Rig, clock: ManualClock, over: Callable[[], object]) -> None:
    """Let time pass until `over` holds, but only while the supervisor waits for its next start."""

    def step_on() -> bool:
        if over():
            return True
        if (left := made.supervisor._start_at - clock.monotonic()) > 0:
            clock.advance(left)
        return False

    eventually(step_on)


def test_s05_a_restart_stops_waits_and_starts(receiver: HandReceiver, tmp_path: Path) -> None:
    clock = ManualClock()
    with running(
        tmp_path, receiver, clock=clock, receiver_restart_delay="2s", receiver_max_restart_delay="30s"
    ) as made:
        receiver.restart("the source went away", OSError("reset"))
        eventually(receiver.is_stopped)
        eventually(lambda: receiver.stops == 1)
        stopped = clock.monotonic()
        wait_for_starts(made, clock, lambda: receiver.starts == 2)
        assert clock.monotonic() - stopped >= 1.7
        assert (ReceiverEventKind.RESTARTED, "the source went away", "OSError: reset") in made.reporter.events


def test_s05_a_restart_may_set_its_own_delay(receiver: HandReceiver, tmp_path: Path) -> None:
    clock = ManualClock()
    with running(tmp_path, receiver, clock=clock, receiver_restart_delay="60s", receiver_max_restart_delay="60s"):
        receiver.restart("again", delay=0.0)
        eventually(lambda: receiver.starts == 2)


def test_restarts_wait_longer_each_time_until_something_is_received(receiver: HandReceiver, tmp_path: Path) -> None:
    clock = ManualClock()
    stopped_at: list[float] = []
    started_at: list[float] = []
    receiver.on_starting = lambda: started_at.append(clock.monotonic())
    receiver.on_stopping = lambda: stopped_at.append(clock.monotonic())
    with rig(tmp_path, receiver, clock=clock, receiver_restart_delay="1s", receiver_max_restart_delay="4s") as made:
        for n in range(1, 6):
            eventually(reaches(lambda: receiver.starts * receiver.is_started(), n))
            if n == 5:
                receiver.store("a record")
            receiver.restart("again")
            wait_for_starts(made, clock, reaches(lambda: len(started_at), n + 1))
    pauses = [start - stop for start, stop in zip(started_at[1:], stopped_at, strict=False)]
    for pause, least in zip(pauses, (1, 2, 4, 4, 1), strict=True):
        assert least * 0.9 <= pause
    assert pauses[-1] < 4 * 0.9


@pytest.mark.parametrize("says", [True, False])
def test_a_source_that_is_not_reached_again_and_again_is_degraded_until_it_is(
    receiver: HandReceiver, tmp_path: Path, says: bool
) -> None:
    clock = ManualClock()
    with rig(tmp_path, receiver, clock=clock, receiver_restart_delay="1s", receiver_healthy_after="5s") as made:
        reasons = made.reporter.reasons
        for n in range(1, 3):
            eventually(reaches(lambda: receiver.starts * receiver.is_started(), n))
            receiver.restart("no connection", OSError("refused"))
            wait_for_starts(made, clock, reaches(lambda: receiver.starts, n + 1))
        assert not any(reason.startswith("degraded") for reason in reasons[:1]), "it may hang up once"
        assert without_since(reasons[-1]) == "degraded: trying again: no connection (OSError: refused)"
        eventually(receiver.is_started)
        if says:
            receiver.report_connected("there")
            assert reasons[-1] == "connected to there"
        else:

            def step_on() -> bool:
                clock.advance(1.0)
                return reasons[-1] == "receiving"

            eventually(step_on)


def without_since(reason: str) -> str:
    return re.sub(r" \(since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\)", "", reason)


def test_since_when_a_receiver_is_degraded_lasts_while_its_reason_changes() -> None:
    reporter, hours = Reported(), iter(range(9))
    status = ReceiverStatus(reporter, now=lambda: datetime(2026, 1, 1, next(hours), tzinfo=UTC))
    for reason in ("no host", "refused", None, "refused"):
        status.report_degraded("topic", reason)
    assert reporter.reasons == [
        "degraded: no host (since 2026-01-01T00:00:00Z)",
        "degraded: refused (since 2026-01-01T00:00:00Z)",
        "receiving",
        "degraded: refused (since 2026-01-01T01:00:00Z)",
    ]


class Reported(UnfailingReporter):
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def reason(self, reason: str) -> None:
        self.reasons.append(reason)


def test_what_is_degraded_and_noted_is_shown_unless_blocks_wait(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver) as made:
        receiver.report_connected("there")
        receiver.report_note("a", "a note")
        receiver.report_degraded("files", "one file is not read")
        receiver.report_degraded("more", "another thing")
        receiver.report_degraded("files", None)
        made.supervisor.status.hinder("store", "the disk is full")
        receiver.report_degraded("more", "another thing, still")
        made.supervisor.status.clear("store")
        receiver.report_degraded("more", None)
        receiver.report_note("a", None)
        shown = [reason for reason, _ in groupby(map(without_since, made.reporter.reasons))]
        assert shown[-7:] == [
            "connected to there; a note",
            "degraded: one file is not read; a note",
            "degraded: another thing; a note",
            "the disk is full",
            "degraded: another thing, still; a note",
            "connected to there; a note",
            "connected to there",
        ]


def test_s05_s06_a_restart_keeps_claim_and_buffer_and_asks_nobody(receiver: HandReceiver, tmp_path: Path) -> None:
    """The original registered again, and its driver might move the receiver or refuse it: an endless loop (W15)."""
    with running(tmp_path, receiver, block_interval="60s") as made:
        receiver.store("before")
        receiver.restart("again", delay=0.5)
        eventually(lambda: receiver.stops == 1)
        receiver.store("stray")
        eventually(lambda: receiver.starts == 2)
        receiver.store("after")
        made.stop()
        assert made.values() == ["before", "stray", "after"]
        assert {item.epoch for item in made.log.chain(1)} == {5}
        assert made.supervisor.block_path.generator.state is GeneratorState.STOPPED_ALL


def test_s07_a_block_that_is_refused_raises_and_its_data_is_in_no_block(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver) as made:
        receiver.store(["a"])
        made.log.refuse_call = lambda blocks: ValueError("no") if blocks[0].sequence == 3 else None
        with pytest.raises(ValueError, match="no"):
            receiver.store(["b"])
        assert made.end().again
        assert made.values() == ["a"]


def test_b08_blocks_of_the_generator_and_of_store_share_one_sequence(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver, block_interval="1ms") as made:
        threads = [in_thread(partial(_store_by_twos, receiver, name)) for name in "abc"]
        for n in range(200):
            receiver.store(f"single {n}")
        for thread, errors in threads:
            thread.join(20)
            assert not errors
        made.stop()
        chain = made.log.chain(1)
        assert [item.sequence for item in chain] == list(range(2, 2 + len(chain)))
        assert len({(item.handle.segment_id, item.handle.offset) for item in chain}) == len(chain)
        expected = [f"single {n}" for n in range(200)] + [f"{name}{n}" for name in "abc" for n in range(100)]
        assert sorted(made.values()) == sorted(expected)


def _store_by_twos(receiver: Receiver, name: str) -> None:
    for n in range(0, 100, 2):
        receiver.store([f"{name}{n}", f"{name}{n + 1}"])


def test_s10_a_push_that_fails_is_an_error_event_and_the_block_is_kept(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver) as made:
        made.files.write_faults = ["error"] * 3
        receiver.store("x")
        eventually(lambda: made.values() == ["x"])
        assert made.reporter.kinds() == [ReceiverEventKind.ERROR]
        assert receiver.is_started()


def test_w12_a_record_is_written_once_and_synced_once_with_its_block(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver, block_interval="60s") as made:
        for n in range(10):
            receiver.store([f"{n:04d}" * 250] * 100)
        assert made.files.syncs == len(made.log.chain(1)) == 10
        made.stop()
        written = sum(path.stat().st_size for path in tmp_path.rglob("*.segment"))
        assert written == sum(item.bytes for item in made.log.chain(1))


def test_only_the_first_of_many_restart_requests_counts(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver, receiver_restart_delay="60s", receiver_max_restart_delay="60s") as made:
        for _ in range(10):
            receiver.restart("again")
        eventually(receiver.is_stopped)
        receiver.restart("too late")
        # The event comes after the stop, from the same thread that would stop it again.
        eventually(lambda: made.reporter.events)
        assert receiver.stops == 1
        assert [message for _, message, _ in made.reporter.events] == ["again"]


def test_restarts_that_are_used_up_fail_the_receiver_with_the_reason(receiver: HandReceiver, tmp_path: Path) -> None:
    receiver.on_starting = lambda: receiver.restart("refused", OSError("111"))
    with rig(tmp_path, receiver, receiver_max_restarts=3) as made:
        ending = made.end()
        assert ending.exit_code is ExitCode.FAILED
        assert "3 restarts in a row did not help: refused (OSError: 111)" in ending.reason
        assert made.reporter.states[-1] == (ReceiverState.FAILED, ending.reason)
        assert made.reporter.kinds()[-1] is ReceiverEventKind.FAILED
        assert receiver.starts == receiver.stops == 4


def by_default(name: str) -> object:
    return ReceiverSettings.model_fields[name].default


#: The restart settings of a stream that sets none of them.
RESTARTS: dict[str, Any] = {
    name: by_default(name)
    for name in (
        "receiver_restart_delay",
        "receiver_max_restart_delay",
        "receiver_healthy_after",
        "receiver_max_restarts",
    )
}


def test_k04_an_on_start_that_raises_for_ever_fails_the_receiver_with_its_reason(
    receiver: HandReceiver, tmp_path: Path
) -> None:
    def refuse() -> None:
        raise OSError("no such host")

    receiver.on_starting = refuse
    clock = ManualClock()
    with rig(tmp_path, receiver, clock=clock, **RESTARTS) as made:
        began = clock.monotonic()
        wait_for_starts(made, clock, lambda: made.endings)
        seconds = clock.monotonic() - began
        ending = made.end()
    assert ending.exit_code is ExitCode.FAILED
    assert "150 restarts in a row did not help: Error starting receiver (OSError: no such host)" in ending.reason
    assert made.reporter.states[-1] == (ReceiverState.FAILED, ending.reason)
    # An hour's outage of a source needs no operator; and restarts are not repeated for a day.
    assert 3600 < seconds < 3 * 3600


def test_a_source_that_is_away_for_an_hour_is_read_again_by_itself(receiver: HandReceiver, tmp_path: Path) -> None:
    clock = ManualClock()
    began = clock.monotonic()

    def connect() -> None:
        if clock.monotonic() < began + 3600:
            receiver.restart("refused", OSError("111"))

    receiver.on_starting = connect
    with rig(tmp_path, receiver, clock=clock, **RESTARTS) as made:
        wait_for_starts(made, clock, lambda: clock.monotonic() >= began + 3600)
        assert receiver.starts > 30
        eventually(receiver.is_started)
        assert not made.endings


def test_old_failures_are_forgotten(receiver: HandReceiver, tmp_path: Path) -> None:
    clock = ManualClock()
    with rig(tmp_path, receiver, clock=clock, receiver_max_restarts=2, receiver_healthy_after="60s") as made:
        for n in range(1, 8):
            eventually(reaches(lambda: receiver.starts * receiver.is_started(), n))
            clock.advance(61)
            receiver.restart("once a week")
            wait_for_starts(made, clock, reaches(lambda: receiver.starts, n + 1))
        assert not made.endings


def test_r03_a_receiver_may_stop_itself(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver) as made:
        receiver.store("x")
        receiver.stop("no more to read")
        assert made.end() == made.end()
        assert (made.end().exit_code, made.values()) == (ExitCode.STOPPED, ["x"])


def test_r03_a_receiver_that_stops_with_an_error_has_failed(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver) as made:
        receiver.store("x")
        receiver.stop("can't go on", ValueError("bad credentials"))
        assert made.end().exit_code is ExitCode.FAILED
        assert made.values() == ["x"]
        assert made.reporter.states[-1] == (ReceiverState.FAILED, "can't go on: bad credentials")


def test_r03_an_error_is_reported_and_receiving_goes_on(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver) as made:
        receiver.report_error("one message was odd", ValueError("17"))
        assert made.reporter.events == [(ReceiverEventKind.ERROR, "one message was odd", "ValueError: 17")]
        assert receiver.is_started()


def test_an_operator_pauses_and_resumes(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver) as made:
        receiver.store("before")
        made.log.desired[1] = DesiredState.PAUSED
        eventually(lambda: made.reporter.states and made.reporter.states[-1][0] is ReceiverState.PAUSED)
        assert receiver.is_stopped()
        eventually(lambda: made.values() == ["before"])
        heartbeats = made.log.heartbeats
        eventually(lambda: made.log.heartbeats > heartbeats + 2)
        made.log.desired[1] = DesiredState.RUNNING
        eventually(lambda: receiver.starts == 2)
        assert made.reporter.states[-1][0] is ReceiverState.ACTIVE
        assert made.reporter.kinds() == [ReceiverEventKind.PAUSED, ReceiverEventKind.RESUMED]


def test_s08_an_operator_stops_for_good(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver, block_interval="60s") as made:
        receiver.store("x")
        made.log.desired[1] = DesiredState.STOPPED
        assert made.end().exit_code is ExitCode.STOPPED
        assert made.values() == ["x"]


def test_a_pause_during_the_wait_for_a_restart_starts_nothing(receiver: HandReceiver, tmp_path: Path) -> None:
    clock = ManualClock()
    with running(
        tmp_path, receiver, clock=clock, receiver_restart_delay="10s", receiver_max_restart_delay="10s"
    ) as made:
        receiver.restart("again")
        eventually(receiver.is_stopped)
        made.log.desired[1] = DesiredState.PAUSED
        eventually(lambda: made.reporter.states and made.reporter.states[-1][0] is ReceiverState.PAUSED)
        clock.advance(60)
        time.sleep(0.05)
        assert receiver.starts == 1


def test_another_server_of_the_driver_log_ends_the_claim(receiver: HandReceiver, tmp_path: Path) -> None:
    """Check this because a standby that was promoted may lack commits that this process was told of."""
    with rig(tmp_path, receiver, block_interval="60s") as made:
        made.log.server = "7/1"
        eventually(receiver.is_started)
        receiver.store("x")
        heartbeats = made.log.heartbeats
        eventually(lambda: made.log.heartbeats > heartbeats + 2)
        assert receiver.is_started()
        made.log.server = "7/2"
        ending = made.end()
        assert (ending.exit_code, ending.again) == (ExitCode.FAILED, True)
        assert "answered by 7/1, and now 7/2 answers" in ending.reason
        # What it holds is registered first: the driver log decides whether it takes it.
        assert made.values() == ["x"]
        assert ReceiverState.FAILED not in [state for state, _ in made.reporter.states], "a new process claims it"


def test_a_newer_assignment_drains_and_ends_the_receiver(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver, block_interval="60s") as made:
        receiver.store("x")
        made.log.assignments[1] = 2
        ending = made.end()
        assert (ending.exit_code, ending.drained) == (ExitCode.FENCED, True)
        assert made.values() == ["x"]


def test_s08_the_rate_limit_is_taken_from_every_answer(receiver: HandReceiver, tmp_path: Path) -> None:
    with rig(tmp_path, receiver) as made:
        made.log.rates[1] = 123.0
        eventually(lambda: made.supervisor.block_path.limiter.rate == 123.0)


def test_c01_the_initial_rate_counts_until_back_pressure_sets_one(receiver: HandReceiver, tmp_path: Path) -> None:
    with rig(tmp_path, receiver, backpressure_initial_rate=50, receiver_max_rate=200) as made:
        assert made.supervisor.block_path.limiter.rate == 50
        heartbeats = made.log.heartbeats
        eventually(lambda: made.log.heartbeats > heartbeats + 2)
        assert made.supervisor.block_path.limiter.rate == 50
        made.log.rates[1] = 500.0
        eventually(lambda: made.supervisor.block_path.limiter.rate == 200)
        made.log.rates[1] = 20.0
        eventually(lambda: made.supervisor.block_path.limiter.rate == 20)
        # Back pressure has ended: the initial rate applies again.
        del made.log.rates[1]
        eventually(lambda: made.supervisor.block_path.limiter.rate == 50)


@pytest.mark.parametrize("single", [True, False])
def test_c01_the_limit_in_bytes_holds_for_every_way_in(receiver: HandReceiver, tmp_path: Path, *, single: bool) -> None:
    clock = PaidClock()

    with running(tmp_path, receiver, clock=clock, receiver_max_bytes_rate="10KB") as made:
        clock.pays()
        began = clock.monotonic()
        for _ in range(10):
            if single:
                receiver.store("x" * 2000)
            else:
                receiver.store_buffered(batch("x" * 1000, "y" * 1000))
        # 20,000 bytes and their Arrow offsets, less what was in the bucket.
        assert 1.9 <= clock.monotonic() - began <= 2.02
        assert made.supervisor.block_path.limiter.rate is None


def test_c02_store_of_many_records_is_limited_too(receiver: HandReceiver, tmp_path: Path) -> None:
    """In the original this bypassed the limit."""
    clock = PaidClock()
    with running(tmp_path, receiver, clock=clock, receiver_max_rate=100) as made:
        clock.pays()
        began = clock.monotonic()
        _store_fifty(receiver, 4)
        assert clock.monotonic() - began == pytest.approx(1.9)
        assert len(made.values()) == 200


def test_with_a_rate_limit_a_chunk_is_cut_into_even_pieces(receiver: HandReceiver, tmp_path: Path) -> None:
    clock = ManualClock()
    with running(tmp_path, receiver, clock=clock, receiver_max_rate=100) as made:
        thread, errors = in_thread(lambda: receiver.store_buffered(batch(*map(str, range(55)))))
        eventually(lambda: made.supervisor.block_path.generator._buffer.records == 10, "the first piece")
        clock.advance(0.01)
        eventually(lambda: made.values() == [str(n) for n in range(10)])
        started = clock.monotonic()
        advance_until(clock, lambda: not thread.is_alive(), step=0.02)
        assert clock.monotonic() - started >= 0.3
        assert not errors
        made.stop()
        assert made.values() == [str(n) for n in range(55)]
        assert len(made.log.chain(1)) >= 3


def test_w21_fencing_stops_everything_at_once(receiver: HandReceiver, tmp_path: Path) -> None:
    def keep_adding() -> None:
        while True:
            receiver.store("x" * 1000)

    with running(tmp_path, receiver, max_block_bytes=5000, block_queue_size=2) as made:
        thread, errors = in_thread(keep_adding)
        eventually(lambda: len(made.log.chain(1)) > 3)
        made.log.fence.add(1)
        ending = made.end()
        assert (ending.exit_code, ending.drained) == (ExitCode.FENCED, False)
        thread.join(20)
        assert isinstance(errors[0], GeneratorStateError)
        assert made.reporter.kinds()[-1] is ReceiverEventKind.FENCED
        assert receiver.stops == 1
        # The row now belongs to another process: this one must not write its state.
        assert made.reporter.states == []
        assert set(made.values()) == {"x" * 1000}


def test_a_gap_ends_the_process_for_a_new_claim_and_is_no_failed_receiver(
    receiver: HandReceiver, tmp_path: Path
) -> None:
    with running(tmp_path, receiver) as made:
        receiver.store(["a"])
        made.log.chains[1] = [block(1)]
        with pytest.raises(SequenceGapError):
            receiver.store(["b"])
        ending = made.end()
        assert (ending.exit_code, ending.drained) == (ExitCode.FAILED, False)
        assert made.reporter.states == []
        assert made.reporter.kinds()[-1] is ReceiverEventKind.ERROR


def test_a_receiver_fenced_during_its_drain_ends_as_fenced(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver, block_interval="60s") as made:
        receiver.store("x")
        made.log.fence.add(1)
        ending = made.stop()
        assert (ending.exit_code, ending.drained) == (ExitCode.FENCED, False)


def test_w05_a_full_disk_is_a_state_and_no_end(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver) as made:
        receiver.report_connected("the source")
        made.files.write_faults = ["short", "error", "error", "short"]
        receiver.store("x")
        eventually(lambda: any("reading stops" in reason for reason in made.reporter.reasons))
        eventually(lambda: made.values() == ["x"])
        eventually(lambda: made.reporter.reasons[-1] == "connected to the source")
        errors = [event for event in made.reporter.events if event[0] is ReceiverEventKind.ERROR]
        assert len(errors) == 1
        assert "short write" in errors[0][2]


def test_blocks_are_stored_while_earlier_ones_wait_to_be_registered(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver, block_queue_size=4) as made:
        made.log.away = True
        for n in range(3):
            receiver.store(str(n))
            eventually(reaches(lambda: made.files.syncs, n + 1))
        assert made.values() == []
        made.log.away = False
        eventually(lambda: made.values() == ["0", "1", "2"])


def test_a_full_disk_loses_neither_dead_letters_nor_later_lines(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver) as made:
        made.files.write_faults = ["short"] * 4
        receiver.store_dead_letters([DeadLetter(DeadLetterReason.TRUNCATED, b"ab")])
        assert made.dead_letters() == [("truncated", 0, b"ab")]
        assert made.reporter.kinds() == [ReceiverEventKind.ERROR, ReceiverEventKind.BAD_RECORD]


def test_dead_letters_are_synced_recorded_and_reported(receiver: HandReceiver, tmp_path: Path) -> None:
    with running(tmp_path, receiver) as made:
        receiver.store_dead_letters([])
        receiver.store_dead_letters(
            [DeadLetter(DeadLetterReason.INVALID_ENCODING, b"\xff"), DeadLetter(DeadLetterReason.TRUNCATED, b"ab")]
        )
        assert made.files.syncs == 1
        assert made.dead_letters() == [("invalid_encoding", 0, b"\xff"), ("truncated", 0, b"ab")]
        assert [event[0] for event in made.reporter.events] == [ReceiverEventKind.BAD_RECORD] * 2
        receiver.store(["good"])
        assert made.values() == ["good"]


def test_many_dead_letters_take_few_syncs_and_statements_and_keep_their_order(
    receiver: HandReceiver, tmp_path: Path
) -> None:
    bad = [b"\xff%d" % number for number in range(2_500)]
    with running(tmp_path, receiver) as made:
        receiver.store_dead_letters([DeadLetter(DeadLetterReason.INVALID_ENCODING, data) for data in bad])
        assert [data for _, _, data in made.dead_letters()] == bad
        assert (made.files.syncs, made.rows.dead_letter_calls, len(made.rows.dead_letters)) == (1, 1, 1)


def _store_fifty(receiver: Receiver, times: int) -> None:
    for _ in range(times):
        receiver.store(["x"] * 50)


def test_the_table_of_transitions_has_every_state() -> None:
    assert set(TRANSITIONS) == set(SupervisorState)


def test_no_thread_is_left_behind(receiver: HandReceiver, tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with running(tmp_path, receiver) as made:
        receiver.store("x")
        made.stop()
    eventually(
        lambda: (
            not [t for t in threading.enumerate() if t not in before and t.name.startswith(("receiver 1", "registrar"))]
        )
    )


def test_operators_see_why_nothing_is_registered_and_later_how_long_it_took(tmp_path: Path) -> None:
    with rig(tmp_path, HandReceiver()) as r:
        r.attached.report_connected("the source")
        r.supervisor.status.driver_log_unavailable(
            "register blocks", DriverLogUnavailableError("no space left\nHINT: make some")
        )
        r.supervisor.status.driver_log_unavailable("open a segment", OutcomeUnknownError("cut"))
        assert r.reporter.reasons[-2].endswith("reading stops when the queue is full: no space left")
        # Other reports do not hide it.
        r.attached.report_connected("the source again")
        assert r.reporter.reasons[-1].endswith(": cut")
        r.supervisor.status.driver_log_available("open a segment", 3.0)
        assert r.reporter.reasons[-1].endswith(": no space left")
        r.supervisor.status.driver_log_available("register blocks", 12.34)
        assert r.reporter.reasons[-1] == "connected to the source again"
        kind, message, detail = r.reporter.events[-1]
        assert kind is ReceiverEventKind.ERROR
        assert message == "what was received had to wait for the driver log"
        assert detail.startswith("12.3 s: ")
        assert "no space left" in detail


# -- positions ---------------------------------------------------------------------------------------------------------


def answer(future: Future[NewBlock] | None) -> NewBlock:
    assert future is not None
    return future.result(20)


def test_w01_after_an_offset_conflict_the_receiver_continues_in_the_same_epoch(
    receiver: HandReceiver, tmp_path: Path
) -> None:
    """The next block takes the number of the refused block, of which nothing is registered."""
    links = [OffsetLink("orders", "0", 0, 0, 2)]
    with running(tmp_path, receiver) as made:
        answer(made.supervisor.block_path.push_linked(batch("a", "b"), links))
        made.log.offset_conflicts = 1
        with pytest.raises(OffsetConflictError):
            answer(made.supervisor.block_path.push_linked(batch("dropped"), links))
        with pytest.raises(OffsetConflictError):
            made.supervisor.block_path.push_linked(batch("dropped too"), links)
        made.supervisor.block_path.writer.resume_after_refusal()
        answer(made.supervisor.block_path.push_linked(batch("c"), links))
        assert made.values() == ["a", "b", "c"]
        assert [item.sequence for item in made.log.chain(1)] == [2, 3]
        assert [item.links for item in made.log.chain(1)] == [tuple(links)] * 2
        assert made.stop().drained

"""Check that a receiver with data and no progress is failing if a thread reports an error, and otherwise hanging."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.process.process_control import Ended
from receiver_runtime.process.progress_watchdog import ProgressWatchdog
from receiver_runtime.process.receiver_process import _Process
from receiver_runtime.process.receiver_task import ReceiverTask
from receiver_runtime.reporting.receiver_status import PROGRESS
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from receiver_runtime.supervisor.receiver_supervisor import progress_limit
from receiver_runtime.watching.exit_codes import ExitCode
from receiver_runtime.watching.progress import LONGEST_PAUSE_SECONDS, Progress, ProgressWatch, Verdict
from tests.unit.receiver_runtime.rig import HandReceiver, batch, in_thread, rig
from tests.unit.receiver_runtime.support import eventually
from tracker_store.connection.engine import create_engine
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from receiver_runtime.process.process_control import Message

LIMIT = 60.0


def verdicts(watch: ProgressWatch, looks: int, *, holds_data: bool = True) -> list[Verdict]:
    return [watch.check(holds_data=holds_data, limit=LIMIT, seconds=1.0) for _ in range(looks)]


def test_a_receiver_without_data_may_be_idle_for_ever() -> None:
    watch = ProgressWatch(Progress())
    assert set(verdicts(watch, 1000, holds_data=False)) == {Verdict.MOVING}


def test_a_receiver_with_steady_progress_is_moving() -> None:
    progress = Progress()
    watch = ProgressWatch(progress)
    for _ in range(20):
        assert set(verdicts(watch, 59)) == {Verdict.MOVING}
        progress.made()


def test_a_receiver_without_progress_or_failures_is_hanging_at_its_limit() -> None:
    watch = ProgressWatch(Progress())
    assert verdicts(watch, 60) == [Verdict.MOVING] * 59 + [Verdict.HANGING]


def test_a_receiver_with_repeated_named_failures_is_failing() -> None:
    progress = Progress()
    watch = ProgressWatch(progress)
    found = []
    for _ in range(20):
        found += verdicts(watch, 10)
        progress.failed("No space left on device")
    assert found == [Verdict.MOVING] * 59 + [Verdict.FAILING] * 141
    # The thread that tried has ended, or is still waiting before it tries again.
    assert verdicts(watch, 71)[-2:] == [Verdict.FAILING, Verdict.HANGING]


def test_a_receiver_in_a_retry_pause_is_not_hanging_however_short_its_limit() -> None:
    progress = Progress()
    watch = ProgressWatch(progress)
    for _ in range(5):
        progress.failed("No space left on device")
        found = [watch.check(holds_data=True, limit=2.0) for _ in range(int(LONGEST_PAUSE_SECONDS))]
        assert Verdict.HANGING not in found


def test_time_without_looks_does_not_count() -> None:
    """A process that was stopped, or whose machine slept, made no progress in that time but is well."""
    progress = Progress()
    watch = ProgressWatch(progress)
    verdicts(watch, 59)
    # The next look comes an hour later.
    progress.made()
    assert verdicts(watch, 1) == [Verdict.MOVING]


def test_the_limit_leaves_enough_time_for_a_write_and_an_interval() -> None:
    assert progress_limit(ReceiverSettings()) == 60.0
    assert progress_limit(ReceiverSettings.model_validate({"block_store_timeout": "2m"})) == 240.0
    assert progress_limit(ReceiverSettings.model_validate({"block_interval": "1h"})) == 3 * 3600.0
    assert progress_limit(ReceiverSettings.model_validate({"progress_timeout": "5m"})) == 300.0
    assert progress_limit(ReceiverSettings.model_validate({"max_block_bytes": "1GiB"})) == 1024.0


class Held(ReceiverTask):
    """Stands for a receiver that holds data."""

    progress_limit = 3.0
    holds_data = True

    def __init__(self) -> None:
        self.progress = Progress()
        self.said: list[str] = []
        self.may_say = threading.Event()
        self.may_say.set()

    def on_failing(self, seconds: float, why: str) -> None:
        self.may_say.wait(60)
        self.said.append(f"{seconds:g} s: {why}")

    def on_moving(self) -> None:
        self.said.append("moving")


def test_the_watchdog_reports_a_failing_receiver_once_and_its_recovery() -> None:
    held = Held()
    watchdog = ProgressWatchdog(lambda: [held], lambda _: True)
    for _ in range(10):
        held.progress.failed("the disk is full")
        assert watchdog.check() == []
    eventually(lambda: held.said == ["3 s: the disk is full"])
    held.progress.made()

    def look_again() -> bool:
        held.progress.failed("the disk is full")
        held.progress.made()
        watchdog.check()
        return held.said == ["3 s: the disk is full", "moving"]

    eventually(look_again)


def test_a_report_that_hangs_does_not_delay_the_looks() -> None:
    silent, hanging = Held(), Held()
    silent.may_say.clear()
    watchdog = ProgressWatchdog(lambda: [silent, hanging], lambda _: True)
    found: Sequence[ReceiverTask] = []
    for _ in range(3):
        silent.progress.failed("the log hangs")
        found = watchdog.check()
    assert found == [hanging]
    silent.may_say.set()


def test_the_watchdogs_thread_hands_over_hanging_receivers_until_the_process_ends() -> None:
    held = Held()
    handed: list[Sequence[ReceiverTask]] = []

    def hand(hanging: Sequence[ReceiverTask]) -> bool:
        handed.append(hanging)
        # The first time, the process could not end.
        return len(handed) > 1

    watchdog = ProgressWatchdog(lambda: [held], hand, check_seconds=0.01)
    held.progress_limit = 0.05
    watchdog.start()
    eventually(lambda: not watchdog._thread.is_alive())
    assert handed == [[held], [held]]


def test_a_failed_look_is_repeated() -> None:
    held = Held()
    handed: list[Sequence[ReceiverTask]] = []
    failures = [MemoryError(), RuntimeError()]

    def watched() -> Sequence[ReceiverTask]:
        if failures:
            raise failures.pop()
        return [held]

    def hand(hanging: Sequence[ReceiverTask]) -> bool:
        handed.append(hanging)
        return True

    watchdog = ProgressWatchdog(watched, hand, check_seconds=0.01)
    held.progress_limit = 0.05
    watchdog.start()
    eventually(lambda: handed == [[held]])
    watchdog.stop()


# --- what a receiver counts ---


def test_a_receiver_holds_data_from_its_buffer_to_the_driver_logs_answer(tmp_path: Path) -> None:
    with rig(tmp_path, HandReceiver()) as made:
        supervisor = made.supervisor
        assert not supervisor.block_path.holds_data
        made.log.away = True
        failures = supervisor.block_path.progress.failures
        supervisor.block_path.push_single("x")
        assert supervisor.block_path.holds_data
        eventually(lambda: supervisor.block_path.progress.failures > failures + 2)
        assert "does not register blocks: the server is away" in supervisor.block_path.progress.why
        assert supervisor.block_path.holds_data
        made.log.away = False
        eventually(lambda: not supervisor.block_path.holds_data, "nothing held")
        # It was stored, and it was registered.
        assert supervisor.block_path.progress.done >= 2


def test_a_full_disk_is_a_named_failure_in_every_way_to_store(tmp_path: Path) -> None:
    with rig(tmp_path, HandReceiver()) as made:
        supervisor = made.supervisor
        made.files.create_faults = 1_000_000
        supervisor.block_path.push_single("x")
        eventually(lambda: supervisor.block_path.progress.failures > 3)
        assert "No space left on device" in supervisor.block_path.progress.why
        thread, errors = in_thread(lambda: supervisor.block_path.push_keyed(batch("y"), ["k"]).result(60))
        eventually(lambda: supervisor.block_path.progress.failures > 7)
        supervisor.status.report_no_progress(60.0, supervisor.block_path.progress.why)
        assert made.reporter.reasons[-1].startswith("degraded: nothing stored or registered for 60 s: ")
        assert (
            ReceiverEventKind.ERROR,
            "data is held and nothing of it could be stored or registered, trying on",
            supervisor.block_path.progress.why,
        ) in made.reporter.events
        supervisor.block_path.pusher.report_failure("once more", OSError(28, "No space left on device"))
        assert made.reporter.reasons[-1].startswith("degraded: "), "until it gets on"
        made.files.create_faults = 0
        eventually(lambda: not supervisor.block_path.holds_data, "nothing held")
        thread.join(60)
        assert errors == []
        supervisor.status.clear(PROGRESS)
        assert made.reporter.reasons[-1] == "receiving"
        assert sorted(made.values()) == ["x", "y"]


def test_a_hanging_write_is_neither_failure_nor_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, hanging = threading.Event(), threading.Event()
    with rig(tmp_path, HandReceiver()) as made:
        sync = made.files.sync

        def hang(fd: int) -> None:
            hanging.set()
            gate.wait(60)
            sync(fd)

        monkeypatch.setattr(made.files, "sync", hang)
        watch = ProgressWatch(made.supervisor.block_path.progress)
        made.supervisor.block_path.push_single("x")
        assert hanging.wait(60)
        found = [
            watch.check(holds_data=made.supervisor.block_path.holds_data, limit=made.supervisor.progress_limit)
            for _ in range(61)
        ]
        assert found[-1] is Verdict.HANGING
        gate.set()


# --- the end of a process ---


def test_a_hanging_process_ends_even_if_the_driver_log_can_not_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that could be asked hangs or fails; the agent is informed, and the process ends with its exit code."""
    told: list[Message] = []
    codes: list[int] = []
    engine = create_engine("postgresql://nobody@127.0.0.1:1/none", application_name="tests")
    process = _Process(
        engine, block_store="/nowhere", host="here", send_to_agent=told.append, exit_process=codes.append
    )
    monkeypatch.setattr("receiver_runtime.process.hanging_receivers._LAST_SECONDS", 0.5)
    # The driver log becomes unavailable only after this question.
    monkeypatch.setattr(process._hanging, "_why_none_can_take_over", lambda: None)
    hanging = ReceiverTask(engine, 7, 3, on_ended=lambda *_: None)
    other = ReceiverTask(engine, 8, 1, on_ended=lambda *_: None)
    process._tasks = {7: hanging, 8: other}
    # A thread that hangs may hold this lock.
    with process._changed:
        assert process._hanging.end_process([hanging])
    [ended] = told
    assert isinstance(ended, Ended)
    assert (ended.receiver_id, ended.assignment, ended.code) == (7, 3, ExitCode.HANGING)
    assert "nothing was done or even failed for 60 s" in ended.reason
    assert codes == [ExitCode.HANGING]
    # The other receiver was asked to drain.
    assert other._wanted_end is not None
    assert other._wanted_end.drained
    engine.dispose()


@pytest.mark.parametrize("frozen", [False, True])
def test_nothing_is_ended_while_the_driver_log_does_not_answer_other_processes_either(
    frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The receiver may hang in the driver log (its server or disk hangs); then another process could not even start."""
    codes: list[int] = []
    monkeypatch.setattr("receiver_runtime.process.hanging_receivers._LAST_SECONDS", 0.5 if frozen else 60.0)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if frozen:
            server.listen()
        engine = create_engine(f"postgresql://nobody@127.0.0.1:{server.getsockname()[1]}/none", application_name="t")
        process = _Process(
            engine, block_store="/nowhere", host="here", send_to_agent=lambda _: None, exit_process=codes.append
        )
        task = ReceiverTask(engine, 7, 3, on_ended=lambda *_: None)
        process._tasks = {7: task}
        assert not process._hanging.end_process([task])
        assert task.progress.failures == 1
        assert task.progress.why.startswith("the driver log ")
        assert codes == []
        assert not process._closing
        engine.dispose()


def test_a_receiver_that_moves_during_the_check_is_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    engine = create_engine("postgresql://nobody@127.0.0.1:1/none", application_name="tests")
    process = _Process(
        engine, block_store="/nowhere", host="here", send_to_agent=lambda _: None, exit_process=codes.append
    )
    task = ReceiverTask(engine, 7, 3, on_ended=lambda *_: None)
    monkeypatch.setattr(process._hanging, "_why_none_can_take_over", task.progress.made)
    assert not process._hanging.end_process([task])
    assert codes == []
    engine.dispose()


def test_a_receiver_that_waits_for_its_turn_to_start_is_not_hanging() -> None:
    """A hundred receivers salvage, a few at a time, when their store is mounted again."""
    engine = create_engine("postgresql://nobody@127.0.0.1:1/none", application_name="tests")
    task = ReceiverTask(engine, 7, 3, on_ended=lambda *_: None)
    turn = threading.BoundedSemaphore(1)
    task._start._shared = SimpleNamespace(starting=turn)  # type: ignore[assignment]
    waits = threading.Event()

    def start() -> None:
        with turn:
            task._start.holds_data = True
            with task._start._given_back():
                waits.set()
                may_go_on.wait(60)

    may_go_on = threading.Event()
    thread, errors = in_thread(start)
    assert waits.wait(60)
    # Now it waits for its store, not for its turn: that counts as holding data.
    assert task.holds_data
    with turn:
        may_go_on.set()
        eventually(lambda: not task.holds_data)
    thread.join(60)
    assert errors == []
    assert task.holds_data
    engine.dispose()

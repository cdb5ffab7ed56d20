"""Check that on a disk with no room for log lines every error is still handled, and reported to those that wait for it.

In a service no line raises (``process_output``). These tests hold even without that: change the state first, log then.
"""

from __future__ import annotations

import errno
import socket
import threading
from typing import TYPE_CHECKING

import pytest
import structlog

from receiver_runtime.block_path.block_generator import BlockGenerator
from receiver_runtime.block_path.generator_state import GeneratorState
from receiver_runtime.block_path.load.rate_limiter import RateLimiter
from receiver_runtime.block_path.registration.registered_through import RegisteredThrough
from receiver_runtime.block_path.registration.registrar import Registrar
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.receivers.keyed_hand_over import KeyedHandOver
from receiver_runtime.reporting.receiver_status import ReceiverStatus
from receiver_runtime.reporting.status_reporter import StatusReporter
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from receiver_runtime.supervisor.reading_loop import ReadingLoop, ReadingLoopClosedError
from receiver_runtime.watching.exit_codes import ExitCode
from tests.unit.receiver_runtime.block_path.recording_pusher import RecordingPusher
from tests.unit.receiver_runtime.block_path.test_block_generator import SCHEMA
from tests.unit.receiver_runtime.reporting.test_status_reporter import Rows
from tests.unit.receiver_runtime.rig import HandReceiver, RecordingReporter, batch, rig
from tests.unit.receiver_runtime.support import (
    FaultyFiles,
    ManualClock,
    MemoryBlockLog,
    advance_until,
    block,
    eventually,
    frame,
    make_log,
    reaches,
)
from tracker_store.blocks.blocks import Claim
from tracker_store.connection.errors import DriverLogUnavailableError
from tracker_store.schema.states import ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from pathlib import Path

_DEADLINE = 60.0


class FullLog:
    """A logger whose every line raises, as `structlog.PrintLogger` does on a full disk."""

    def __init__(self) -> None:
        self.lines = 0

    def msg(self, message: str) -> None:
        del message
        self.lines += 1
        raise OSError(errno.ENOSPC, "No space left on device")

    debug = info = warning = error = critical = msg


@pytest.fixture(autouse=True)
def full_log() -> FullLog:
    log = FullLog()
    # Log without formatted tracebacks, which take seconds.
    structlog.configure(logger_factory=lambda *_: log, processors=[lambda _, __, event: str(event)])
    return log


class DyingPusher(RecordingPusher):
    """A pusher whose push raises an error that ends a thread."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error: BaseException | None = error

    def push(self, block: object) -> None:
        if self.error is not None:
            raise self.error
        super().push(block)  # type: ignore[arg-type]


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), GeneratorExit()])
def test_a_dying_thread_ends_the_generator_and_is_reported(error: BaseException) -> None:
    pusher = DyingPusher(error)
    made = BlockGenerator(
        pusher, SCHEMA, limiter=RateLimiter(), settings=ReceiverSettings.model_construct(block_interval=0.001)
    )
    made.start()
    made.add_data("x")
    eventually(lambda: pusher.deaths, "the death")
    assert pusher.deaths == [error]
    assert made.state is GeneratorState.STOPPED_ALL
    # Nothing waits for a thread that has ended.
    made.stop()


def test_a_push_is_repeated_even_if_neither_log_nor_listener_takes_the_error() -> None:
    pusher, clock = DyingPusher(OSError(errno.ENOSPC, "No space left on device")), ManualClock()

    def refuse(message: str, error: Exception) -> None:
        raise RuntimeError(message) from error

    pusher.report_failure = refuse  # type: ignore[method-assign]
    made = BlockGenerator(pusher, SCHEMA, limiter=RateLimiter(), settings=ReceiverSettings(), clock=clock)
    made.start()
    made.add_data("x")
    advance_until(clock, lambda: made._queue.backoff.failures > 2)
    pusher.error = None
    advance_until(clock, lambda: pusher.values == [["x"]])
    assert pusher.deaths == []
    made.abort()


class FailingReporter(RecordingReporter):
    """A reporter that raises on every report."""

    def state(self, state: ReceiverState, reason: str) -> None:
        super().state(state, reason)
        raise OSError(errno.ENOSPC, "No space left on device")

    def reason(self, reason: str) -> None:
        super().reason(reason)
        raise OSError(errno.ENOSPC, "No space left on device")

    def event(self, kind: ReceiverEventKind, message: str, detail: str = "") -> None:
        super().event(kind, message, detail)
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_waited_out_and_then_everything_is_registered(tmp_path: Path) -> None:
    with rig(tmp_path, HandReceiver(), reporter=FailingReporter()) as made:
        made.files.create_faults = 5
        made.supervisor.block_path.push_single("x")
        eventually(lambda: made.log.chain(1), "the block")
        assert made.stop().drained
        assert made.values() == ["x"]


def test_the_end_comes_even_if_it_can_not_be_reported(tmp_path: Path) -> None:
    with rig(tmp_path, HandReceiver(), reporter=FailingReporter()) as made:
        eventually(made.attached.is_started)
        made.supervisor.lifecycle.stop("broken", OSError("away"))
        assert made.end().exit_code is ExitCode.FAILED
        assert made.reporter.states[-1][0] is ReceiverState.FAILED


def test_a_failed_write_ends_its_segment_before_it_is_logged(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = make_log(LocalBlockStore(tmp_path, files=files))
    files.write_faults = ["short"]
    with pytest.raises(OSError, match="No space left"):
        # This error comes from the log line.
        log.write([frame()])
    [handle] = log.write([frame()])
    assert (handle.segment_id, handle.offset) == (2, 0)


class FailingStatus(ReceiverStatus):
    """A status that can't show what the driver log does."""

    def __init__(self) -> None:
        pass

    def driver_log_unavailable(self, what: str, error: Exception) -> None:
        raise RuntimeError(what) from error

    def driver_log_available(self, what: str, seconds: float) -> None:
        raise RuntimeError(what, seconds)


def test_a_failing_status_does_not_end_the_registrar(full_log: FullLog) -> None:
    log, clock = MemoryBlockLog(), ManualClock()
    # Let the registrar's own lines through: this test is about the status.
    structlog.configure(logger_factory=lambda *_: structlog.testing.CapturingLogger())
    registrar = Registrar(log, clock=clock)
    registrar.start()
    lane = registrar.attach(1, registered_through=RegisteredThrough(0), limit=100, status=FailingStatus())
    log.refuse_call = lambda _: DriverLogUnavailableError("53100: no space left")
    lane.reserve()
    future = lane.submit(block(1))
    advance_until(clock, lambda: len(log.calls) >= 8)
    log.refuse_call = lambda _: None
    advance_until(clock, future.done)
    assert future.result(0).sequence == 1
    registrar.stop()
    assert full_log.lines == 0


def test_a_dying_registrar_refuses_the_blocks_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryBlockLog()

    def die(_: object) -> None:
        raise SystemExit(3)

    monkeypatch.setattr(log, "add_blocks", die)
    registrar = Registrar(log)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    lanes = [registrar.attach(n, registered_through=RegisteredThrough(0), limit=100) for n in (1, 2)]
    futures = []
    for n, lane in enumerate(lanes, 1):
        lane.reserve()
        futures.append(lane.submit(block(1, receiver_id=n)))
    registrar.start()
    for future in futures:
        assert "SystemExit: 3" in str(future.exception(_DEADLINE))
    registrar.stop()


def test_a_refused_report_does_not_stop_the_others() -> None:
    rows = Rows()
    reporter = StatusReporter(rows)  # type: ignore[arg-type]
    receiver = reporter.for_receiver(Claim(1, 1, 0), assignment=1, process_id=1)
    reporter.start()
    rows.refuse = True
    for n, message in enumerate(("refused", "kept")):
        with pytest.raises(OSError, match="No space left"):
            # This error comes from the log line: the report was taken before it.
            receiver.event(ReceiverEventKind.ERROR, message)
        eventually(reaches(lambda: rows.attempts, n + 1))
        rows.refuse = False
    eventually(lambda: [event[1] for event in rows.events()] == ["kept"], "the second report")
    reporter.stop()


def test_a_sender_gets_an_error_if_its_records_can_not_be_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig(tmp_path, HandReceiver(), reporter=FailingReporter()) as made:
        monkeypatch.setattr(made.supervisor.block_path, "known_keys", _no_memory)
        monkeypatch.setattr(made.supervisor.block_path, "push_keyed", _no_memory)
        monkeypatch.setattr(threading, "excepthook", lambda _: None)
        hand_over = KeyedHandOver(made.attached)
        future = hand_over.submit(batch("a"), ["a"])
        assert isinstance(future.exception(_DEADLINE), MemoryError)
        hand_over.close()


def _no_memory(*_: object, **__: object) -> None:
    raise MemoryError


def test_a_failing_reading_loop_ends_the_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = ReadingLoop()
    monkeypatch.setattr(loop, "_register_new", _no_memory)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    loop.start()
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(ReadingLoopClosedError):
        loop.wait(ours, lambda: None)
    loop.close()

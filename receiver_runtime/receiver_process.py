"""One receiver process, from its claim to its exit code: composes the parts and owns nothing else.

Order: the receiver's declaration, a row in ``processes``, the claim, the parts, the source. Nothing is read from a
source before the claim is answered, for what is read then belongs to that epoch.

It ends when it is told to (SIGTERM, SIGINT, an operator, a newer assignment), when its parent is gone (its standard
input, a pipe, ends), when its receiver fails for good, or when it is fenced. All but the last drain first. A second
signal, or ten seconds after the parent is gone, end it at once; what was registered is safe either way.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import stat
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import structlog

from receiver_runtime.block_handler import BlockHandler
from receiver_runtime.block_store import frame
from receiver_runtime.block_store.errors import BlockStoreError
from receiver_runtime.block_store.stores import open_block_store
from receiver_runtime.clock import SystemClock
from receiver_runtime.driver_log import DriverLog, GivenUpError, ReceiverDriverLog
from receiver_runtime.exit_codes import ExitCode
from receiver_runtime.receiver_registry import make_receiver
from receiver_runtime.receiver_supervisor import Ending, ReceiverSupervisor
from receiver_runtime.records import schema_of
from receiver_runtime.registrar import PostgresBlockLog, Registrar
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from receiver_runtime.sources.source_registry import parse_source
from receiver_runtime.status_reporter import StatusReporter
from receiver_runtime.write_ahead_log import WriteAheadLog
from tracker_store.blocks import Claim, Steering, claim, newest_epoch
from tracker_store.engine import create_engine
from tracker_store.errors import ClaimBusyError, ClaimLostError, DriverLogError, NotAssignedError
from tracker_store.processes import ProcessExpiredError, deregister_process, heartbeat, register_process
from tracker_store.receivers import (
    NoSuchReceiverError,
    ReceiverSpec,
    get_receiver,
    report_event,
    set_receiver_state,
)
from tracker_store.schema import ProcessKind, ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa

    from receiver_runtime.sources.base import Source

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_CLAIM_ATTEMPTS = 5
_PARENT_GONE_SECONDS = 10.0


class _NotOursError(Exception):
    """The receiver is not this process's to run."""


def run(
    *,
    receiver_id: int,
    assignment: int,
    database_url: str,
    block_store: str,
    host: str | None = None,
    parent_pipe: int | None = 0,
) -> ExitCode:
    """Run one receiver until it ends; returns the process's exit code.

    Args:
        receiver_id: whose declaration is in the driver log.
        assignment: for which this process was started; it may claim under no other.
        database_url: of the driver log.
        block_store: a directory, or its ``file://`` URL.
        host: as it shows in the driver log; the machine's name by default.
        parent_pipe: a descriptor whose end says that the parent is gone; watched only where it is a pipe or a
            socket. None: not watched.

    Must be called on the main thread (it handles signals).
    """
    engine = create_engine(database_url, application_name=f"forebay receiver {receiver_id}", pool_size=3)
    process = _ReceiverProcess(
        engine,
        receiver_id=receiver_id,
        assignment=assignment,
        block_store=block_store,
        host=host or socket.gethostname(),
    )
    watcher = _Watcher(process.stop, parent_pipe=parent_pipe)
    watcher.start()
    try:
        return process.run()
    finally:
        watcher.stop()
        engine.dispose()


@dataclass(slots=True)
class _Parts:
    supervisor: ReceiverSupervisor
    registrar: Registrar
    block_log: PostgresBlockLog
    reporter: StatusReporter
    process_id: int


class _ReceiverProcess:
    def __init__(self, engine: sa.Engine, *, receiver_id: int, assignment: int, block_store: str, host: str) -> None:
        self._engine = engine
        self._receiver_id = receiver_id
        self._assignment = assignment
        self._block_store = block_store
        self._host = host
        self._clock = SystemClock()
        self._driver_log = DriverLog(engine, clock=self._clock)
        self._lock = threading.Lock()
        self._supervisor: ReceiverSupervisor | None = None

    def stop(self, reason: str) -> None:
        """Ask for a graceful end; any thread, at any time."""
        with self._lock:
            supervisor = self._supervisor
            if supervisor is None:
                # Nothing is claimed or read yet, or will be.
                self._driver_log.give_up()
        if supervisor is not None:
            supervisor.stop(reason)

    def run(self) -> ExitCode:
        try:
            parts = self._start()
        except GivenUpError:
            return ExitCode.STOPPED
        except (_NotOursError, NotAssignedError, NoSuchReceiverError) as error:
            _log.warning("this receiver is not ours to run", receiver_id=self._receiver_id, error=str(error))
            return ExitCode.FENCED
        except DriverLogError as error:
            # Outrun by another claim, say: the agent starts another process, after a pause.
            _log.error("the receiver could not be claimed", receiver_id=self._receiver_id, error=str(error))
            return ExitCode.FAILED
        except (ValueError, BlockStoreError) as error:
            # The declaration or a setting: no restart heals it.
            _log.error("the receiver could not start", receiver_id=self._receiver_id, error=str(error))
            self._tell_failure(str(error))
            return ExitCode.FAILED
        ending = parts.supervisor.await_termination()
        assert ending is not None
        self._close(parts, ending)
        return ending.exit_code

    def _start(self) -> _Parts:
        spec = self._ask("read the receiver's declaration", lambda c: get_receiver(c, self._receiver_id))
        if spec.assignment != self._assignment:
            raise _NotOursError(
                f"assignment {spec.assignment} is in force, this process was started for {self._assignment}"
            )
        source = parse_source(spec.source)
        settings = ReceiverSettings.of_row(spec.settings)
        process_id = self._ask(
            "register the process",
            lambda c: register_process(
                c,
                kind=ProcessKind.RECEIVER,
                name=f"{spec.stream_name}/{spec.ordinal}",
                host=self._host,
                pid=os.getpid(),
            ),
        )
        claimed = self._claim()
        if not self._ask(
            "say that the receiver is active",
            lambda c: set_receiver_state(
                c,
                receiver_id=self._receiver_id,
                assignment=self._assignment,
                state=ReceiverState.ACTIVE,
                reason=f"starting on {source.address}",
                process_id=process_id,
            ),
        ):
            raise _NotOursError("the driver log has it under another assignment, or not as placed")
        steering = self._ask(
            "read what the receiver is to do",
            lambda c: heartbeat(c, process_id=process_id, receiver_ids=[self._receiver_id]),
        )[0]
        parts = self._compose(spec, source, settings, claimed, process_id, steering)
        with self._lock:
            self._supervisor = parts.supervisor
        parts.reporter.start()
        parts.registrar.start()
        parts.supervisor.start()
        return parts

    def _claim(self) -> Claim:
        """Take the receiver over. A claim whose answer was lost is not ours, and is made again on top of it."""
        for attempt in range(_CLAIM_ATTEMPTS):
            try:
                return self._ask(
                    "claim the receiver",
                    lambda c: claim(
                        c,
                        receiver_id=self._receiver_id,
                        seen_epoch=newest_epoch(c, self._receiver_id),
                        assignment=self._assignment,
                    ),
                )
            except (ClaimLostError, ClaimBusyError):
                if attempt + 1 == _CLAIM_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def _compose(
        self,
        spec: ReceiverSpec,
        source: Source,
        settings: ReceiverSettings,
        claimed: Claim,
        process_id: int,
        steering: Steering,
    ) -> _Parts:
        receiver = make_receiver(source)
        rows = ReceiverDriverLog(self._driver_log, receiver_id=self._receiver_id, epoch=claimed.epoch)
        log = WriteAheadLog(
            open_block_store(self._block_store),
            rows,
            receiver_id=self._receiver_id,
            epoch=claimed.epoch,
            source_rule=source.source_rule,
            segment_interval=settings.segment_interval,
            max_segment_bytes=settings.max_segment_bytes,
            max_failures=settings.write_ahead_log_max_failures,
            durable=settings.durability == "durable",
            clock=self._clock,
        )
        handler = BlockHandler(
            log,
            schema_of(receiver.columns),
            receiver_id=self._receiver_id,
            epoch=claimed.epoch,
            source_rule=frame.SourceRule[source.source_rule.name],
        )
        reporter = StatusReporter(self._driver_log, clock=self._clock)
        receiver_reporter = reporter.for_receiver(
            receiver_id=self._receiver_id, assignment=self._assignment, epoch=claimed.epoch, process_id=process_id
        )
        receiver_reporter.state(ReceiverState.ACTIVE, f"starting on {source.address}")
        receiver_reporter.event(ReceiverEventKind.STARTED, f"claimed on {self._host}", f"epoch {claimed.epoch}")
        block_log = PostgresBlockLog(self._engine, process_id=process_id)
        registrar = Registrar(block_log, on_expired=self._on_expired, clock=self._clock)
        supervisor = ReceiverSupervisor(
            receiver,
            stream_id=spec.stream_id,
            claim=claimed,
            assignment=self._assignment,
            settings=settings,
            handler=handler,
            registrar=registrar,
            driver_log=rows,
            reporter=receiver_reporter,
            desired_state=steering.desired_state,
            rate_limit=steering.rate_limit,
            clock=self._clock,
        )
        rows.tell(supervisor)
        return _Parts(supervisor, registrar, block_log, reporter, process_id)

    def _on_expired(self, error: ProcessExpiredError) -> None:
        with self._lock:
            supervisor = self._supervisor
        if supervisor is not None:
            # What is held may still be accepted, until someone claims.
            supervisor.end(Ending(ExitCode.FENCED, str(error), drained=True))

    def _close(self, parts: _Parts, ending: Ending) -> None:
        parts.reporter.stop()
        parts.registrar.stop()
        parts.block_log.close()
        self._once("deregister", lambda c: deregister_process(c, parts.process_id, ending.reason))

    def _tell_failure(self, reason: str) -> None:
        def tell(connection: sa.Connection) -> None:
            set_receiver_state(
                connection,
                receiver_id=self._receiver_id,
                assignment=self._assignment,
                state=ReceiverState.FAILED,
                reason=reason,
            )
            report_event(
                connection,
                receiver_id=self._receiver_id,
                epoch=0,
                kind=ReceiverEventKind.FAILED,
                message="the receiver could not start",
                detail=reason,
            )

        self._once("report the failure", tell)

    def _once(self, what: str, statement: Callable[[sa.Connection], None]) -> None:
        try:
            self._driver_log.once(statement)
        except DriverLogError as error:
            _log.warning(f"could not {what}", receiver_id=self._receiver_id, error=str(error))

    def _ask(self, what: str, statement: Callable[[sa.Connection], T]) -> T:
        return self._driver_log.until_answered(what, statement)


class _Watcher:
    """Turns signals, and the end of the parent's pipe, into a wish to stop.

    A handler only writes a byte: it runs in the midst of the main thread, which may hold any lock.
    """

    def __init__(self, stop: Callable[[str], None], *, parent_pipe: int | None) -> None:
        self._stop = stop
        self._parent = parent_pipe if parent_pipe is not None and _can_end(parent_pipe) else None
        self._read_end, self._write_end = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="signals and parent", daemon=True)
        self._handlers: dict[int, object] = {}

    def start(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._handlers[number] = signal.signal(number, self._handle)
        self._thread.start()

    def stop(self) -> None:
        """Give the signals back and end the thread."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        os.write(self._write_end, b"\0")
        self._thread.join()
        os.close(self._read_end)
        os.close(self._write_end)

    def _handle(self, number: int, _frame: object) -> None:
        os.write(self._write_end, bytes([number]))

    def _watch(self) -> None:
        signals = 0
        watched = [self._read_end] if self._parent is None else [self._read_end, self._parent]
        deadline: float | None = None
        clock = SystemClock()
        while True:
            left = None if deadline is None else max(0.0, deadline - clock.monotonic())
            ready, _, _ = select.select(watched, [], [], left)
            if not ready and left is not None:
                _log.error("not drained in time after the parent was gone, ending at once")
                os._exit(ExitCode.FAILED)
            if self._parent in ready and not os.read(self._parent or 0, 4096):
                watched = [self._read_end]
                deadline = clock.monotonic() + _PARENT_GONE_SECONDS
                self._stop("the parent process is gone")
            if self._read_end in ready:
                number = os.read(self._read_end, 1)[0]
                if number == 0:
                    return
                signals += 1
                if signals > 1:
                    _log.error("a second signal, ending at once")
                    os._exit(ExitCode.FAILED)
                self._stop(signal.Signals(number).name)


def _can_end(descriptor: int) -> bool:
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)

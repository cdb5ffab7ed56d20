"""Run a receiver process, from its start to its exit code: compose the process's parts and end them.

The process runs any number of receivers, each with its own claim and write-ahead log (``receiver_task``). They share
the registrar, the reporter, the connections, and the threads that read quiet connections, make blocks and push them.
One receiver's end (it was fenced, it failed, it was stopped) does not affect the others; a crash ends them all. The
process ends when its last receiver has ended.

SIGTERM, SIGINT or the end of the parent (its standard input, a pipe or the agent's socket, closes) ends the process:
every receiver drains first. A second signal, or ten seconds after the parent's end, ends it at once
(``parent_watch``); what was registered is safe either way. The agent's lines on that socket add and stop single
receivers; each receiver's end is reported there (``process_control``).

This module never claims a receiver, opens a block store or reads from a source.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.block_path.load.block_threads import BlockThreads
from receiver_runtime.block_path.registration.block_log import BlockLog
from receiver_runtime.block_path.registration.registrar import Registrar
from receiver_runtime.process.dead_threads import restart_at_dead_threads
from receiver_runtime.process.deferred_pandas import defer_pandas
from receiver_runtime.process.hanging_receivers import HangingReceivers
from receiver_runtime.process.kept_memory import keep_freed_memory
from receiver_runtime.process.parent_watch import AgentLine, ParentWatcher
from receiver_runtime.process.process_control import Accepted, ControlledRun, Declined, Ended, Message, Stop
from receiver_runtime.process.progress_watchdog import ProgressWatchdog
from receiver_runtime.process.receiver_task import ReceiverTask
from receiver_runtime.process.shared_parts import SharedParts
from receiver_runtime.reporting.driver_log import DriverLog, GivenUpError
from receiver_runtime.reporting.lag_reports import LagReports
from receiver_runtime.reporting.status_reporter import StatusReporter
from receiver_runtime.supervisor.ending import Ending
from receiver_runtime.supervisor.reading_loop import ReadingLoop
from receiver_runtime.watching.clock import Clock
from receiver_runtime.watching.descriptors import raise_descriptor_limit
from receiver_runtime.watching.exit_codes import ExitCode
from tracker_store.connection.engine import create_engine
from tracker_store.connection.errors import DriverLogError
from tracker_store.receivers.processes import ProcessExpiredError, deregister_process, register_process
from tracker_store.receivers.receivers import NoSuchReceiverError, get_receiver
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import sqlalchemy as sa

    from receiver_runtime.block_store.frames.encryption import KeyReference
    from receiver_runtime.reporting.source_lag import SourceLag

_log = structlog.get_logger(__name__)

# How many receivers start at the same time: each asks the driver log several questions, on few connections.
_STARTING_AT_ONCE = 4
# Seconds that a thread may wait for the interpreter before it asks for it. With hundreds of threads and Python's
# default of 5 ms the asking alone took the whole machine; these threads run only briefly between two waits.
_SWITCH_SECONDS = 0.05


def run(
    receivers: Sequence[tuple[int, int]],
    *,
    database_url: str,
    block_store: str,
    block_key: KeyReference | None = None,
    keys_for_reading: Sequence[KeyReference] = (),
    host: str | None = None,
    parent_pipe: int | None = 0,
) -> ExitCode:
    """Run receivers until the last of them has ended, and return the process's exit code.

    The code is FAILED if one of them failed, else FENCED if one was fenced, else STOPPED.

    Args:
        receivers: (receiver id, assignment) of the first receivers: their declarations are in the driver log, and the
            process may claim each receiver under this assignment only.
        database_url: of the driver log.
        block_store: the setting; see ``block_store.roots``.
        block_key: names the key that encrypts blocks; each receiver reads it when it starts. None: no encryption.
        keys_for_reading: name keys that only decrypt.
        host: the host's name in the driver log; the machine's name by default.
        parent_pipe: a descriptor that closes when the parent is gone; watched only where it is a pipe or a socket, and
            on a socket the agent's lines are read and answered. None: not watched.

    Must be called on the main thread (it handles signals).
    """
    if not receivers:
        raise ValueError("no receiver to run: give at least one")
    defer_pandas()
    keep_freed_memory()
    # Its receivers may have thousands of connections, and each has a segment file.
    raise_descriptor_limit()
    name = f"forebay receiver {receivers[0][0]}" + (f" and {len(receivers) - 1} more" if len(receivers) > 1 else "")
    engine = create_engine(database_url, application_name=name, pool_size=3)
    agent = AgentLine(parent_pipe)
    process = _Process(
        engine,
        block_store=block_store,
        block_key=block_key,
        keys_for_reading=keys_for_reading,
        host=host or socket.gethostname(),
        send_to_agent=agent.send,
    )
    watcher = ParentWatcher(process.stop, process.obey, parent_pipe=parent_pipe)
    watcher.start()
    try:
        with restart_at_dead_threads():
            return process.run(receivers)
    finally:
        watcher.stop()
        agent.close()
        engine.dispose()


class _Process:
    """Hold the receivers of the process by id. A receiver is in ``_tasks`` from its acceptance to its end."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        block_store: str,
        block_key: KeyReference | None = None,
        keys_for_reading: Sequence[KeyReference] = (),
        host: str,
        send_to_agent: Callable[[Message], None],
        exit_process: Callable[[int], object] = os._exit,
    ) -> None:
        self._engine = engine
        self._block_store = block_store
        self._block_key = block_key
        self._keys_for_reading = keys_for_reading
        self._host = host
        self._send_to_agent = send_to_agent
        self._clock = Clock()
        self._driver_log = DriverLog(engine, clock=self._clock)
        # Guards everything below.
        self._changed = threading.Condition()
        self._shared: SharedParts | None = None
        self._hanging = HangingReceivers(
            engine,
            running=self._running,
            close=self._close,
            send_to_agent=send_to_agent,
            exit_process=exit_process,
            clock=self._clock,
        )
        self._watchdog = ProgressWatchdog(self._running, self._hanging.end_process)
        self._tasks: dict[int, ReceiverTask] = {}
        self._ended: list[Ending] = []
        # How many endings are being sent to the agent.
        self._sending = 0
        # Set once: the process accepts no more receivers, so that it comes to its end.
        self._closing = False

    # -- any thread --------------------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Ask every receiver to drain and end. Any thread may call it at any time."""
        self._end_all(Ending(ExitCode.STOPPED, reason, drained=True))

    def obey(self, message: Message) -> None:
        """Carry out the agent's message; returns at once."""
        match message:
            case ControlledRun(receiver_id, assignment):
                taken = self._take_in(receiver_id, assignment)
                self._send_to_agent((Accepted if taken else Declined)(receiver_id, assignment))
            case Stop(receiver_id):
                with self._changed:
                    task = self._tasks.get(receiver_id)
                if task is not None:
                    task.end(Ending(ExitCode.STOPPED, "its agent stopped it", drained=True))
            case _:
                _log.warning("the agent said what only a receiver process says", message=message)

    def _end_all(self, ending: Ending) -> None:
        with self._changed:
            self._closing = True
            tasks = list(self._tasks.values())
            if self._shared is None:
                self._driver_log.give_up()
        for task in tasks:
            task.end(ending)

    def _take_in(self, receiver_id: int, assignment: int) -> bool:
        with self._changed:
            if self._closing or receiver_id in self._tasks:
                return False
            task = ReceiverTask(self._engine, receiver_id, assignment, on_ended=self._on_ended)
            self._tasks[receiver_id] = task
            if len(self._tasks) > 1:
                sys.setswitchinterval(_SWITCH_SECONDS)
            if self._shared is not None:
                task.start(self._shared)
            return True

    def _on_ended(self, task: ReceiverTask, ending: Ending) -> None:
        with self._changed:
            # Before the agent hears of it: it may give the receiver back at once, under a newer assignment.
            del self._tasks[task.receiver_id]
            self._ended.append(ending)
            self._sending += 1
        self._send_to_agent(Ended(task.receiver_id, task.assignment, ending.exit_code, ending.reason))
        with self._changed:
            self._sending -= 1
            self._closing = self._closing or not (self._tasks or self._sending)
            self._changed.notify_all()

    def _on_expired(self, error: ProcessExpiredError) -> None:
        # Drained: the driver log may still accept held blocks until another process claims the receiver.
        self._end_all(Ending(ExitCode.FENCED, str(error), drained=True))

    def _accepted(self) -> list[ReceiverTask]:
        with self._changed:
            return list(self._tasks.values())

    def _running(self) -> list[ReceiverTask]:
        """Return the tasks without taking a lock, for the watchdog: a thread that hangs may hold it."""
        return list(self._tasks.values())

    def _close(self) -> int | None:
        """Accept no more receivers; return this process's id in the driver log, if it has one. Takes no lock."""
        self._closing = True
        return None if self._shared is None else self._shared.process_id

    # -- the main thread ---------------------------------------------------------------------------------------------

    def run(self, receivers: Sequence[tuple[int, int]]) -> ExitCode:
        for receiver_id, assignment in receivers:
            self._take_in(receiver_id, assignment)
        try:
            shared = self._open(receivers)
        except GivenUpError:
            return self._never_begun(Ending(ExitCode.STOPPED, "stopped before it began", drained=True))
        except DriverLogError as error:
            _log.error("the process could not be registered", error=str(error))
            return self._never_begun(Ending(ExitCode.FAILED, str(error), drained=True))
        with self._changed:
            self._shared = shared
            for task in self._tasks.values():
                self._send_to_agent(Accepted(task.receiver_id, task.assignment))
                task.start(shared)
            while self._tasks or self._sending:
                self._changed.wait()
        self._close_shared(shared)
        return _exit_code(self._ended)

    def _open(self, receivers: Sequence[tuple[int, int]]) -> SharedParts:
        """Register the process, and start the parts that its receivers share."""
        process_id = self._driver_log.until_answered(
            "register the process",
            lambda c: register_process(
                c, kind=ProcessKind.RECEIVER, name=_name(c, receivers), host=self._host, pid=os.getpid()
            ),
        )
        block_log = BlockLog(
            self._engine,
            process_id=process_id,
            queued=lambda: _queued(self._accepted()),
            fetched=lambda: _fetched(self._accepted()),
            lag_reports=LagReports(lambda: _source_lags(self._accepted()), clock=self._clock),
        )
        shared = SharedParts(
            process_id=process_id,
            block_store=self._block_store,
            block_key=self._block_key,
            keys_for_reading=self._keys_for_reading,
            host=self._host,
            clock=self._clock,
            block_log=block_log,
            registrar=Registrar(block_log, on_expired=self._on_expired, clock=self._clock),
            reporter=StatusReporter(self._driver_log, clock=self._clock),
            block_threads=BlockThreads(clock=self._clock),
            reading_loop=ReadingLoop(),
            starting=threading.BoundedSemaphore(_STARTING_AT_ONCE),
        )
        shared.reporter.start()
        shared.registrar.start()
        shared.reading_loop.start()
        self._watchdog.start()
        return shared

    def _close_shared(self, shared: SharedParts) -> None:
        self._watchdog.stop()
        shared.reading_loop.close()
        shared.block_threads.close()
        shared.reporter.stop()
        shared.registrar.stop()
        shared.block_log.close()
        reason = self._ended[-1].reason if self._ended else "stopped"
        try:
            self._driver_log.once(lambda c: deregister_process(c, shared.process_id, reason))
        except DriverLogError as error:
            _log.warning("could not deregister", error=str(error))

    def _never_begun(self, ending: Ending) -> ExitCode:
        with self._changed:
            self._closing = True
            tasks = list(self._tasks.values())
        for task in tasks:
            self._on_ended(task, ending)
        return ending.exit_code


def _queued(tasks: Sequence[ReceiverTask]) -> dict[int, int]:
    return {task.receiver_id: queued for task in tasks if (queued := task.queued()) is not None}


def _source_lags(tasks: Sequence[ReceiverTask]) -> list[SourceLag]:
    return [lag for task in tasks if (lag := task.source_lag()) is not None]


def _fetched(tasks: Sequence[ReceiverTask]) -> dict[int, int]:
    return {lag.receiver_id: lag.fetched for lag in _source_lags(tasks) if lag.fetched is not None}


def _name(connection: sa.Connection, receivers: Sequence[tuple[int, int]]) -> str:
    """Return the name that operators see: the first receiver's stream and number, and how many others there are."""
    first = receivers[0][0]
    try:
        spec = get_receiver(connection, first)
    except NoSuchReceiverError:
        name = f"receiver {first}"
    else:
        name = f"{spec.stream_name}/{spec.ordinal}"
    return name if len(receivers) == 1 else f"{name} and {len(receivers) - 1} more"


def _exit_code(endings: Sequence[Ending]) -> ExitCode:
    codes = {ending.exit_code for ending in endings}
    return next(code for code in (ExitCode.FAILED, ExitCode.FENCED, ExitCode.STOPPED) if code in codes)

"""Run a receiver process, from its start to its exit code: compose the process's parts and end them.

The process runs any number of receivers, each with its own claim and write-ahead log (``receiver_life``). They share
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

import contextlib
import os
import socket
import sys
import threading
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.block_path.block_threads import BlockThreads
from receiver_runtime.block_path.registrar import PostgresBlockLog, Registrar
from receiver_runtime.process.deferred_pandas import defer_pandas
from receiver_runtime.process.parent_watch import AgentLine, ParentWatcher
from receiver_runtime.process.process_control import Accepted, ControlledRun, Declined, Ended, Message, Stop
from receiver_runtime.process.receiver_life import STUCK_MESSAGE, ReceiverLife, SharedParts
from receiver_runtime.reporting.driver_log import DriverLog, GivenUpError
from receiver_runtime.reporting.status_reporter import StatusReporter
from receiver_runtime.supervisor.reading_loop import ReadingLoop
from receiver_runtime.supervisor.receiver_supervisor import Ending
from receiver_runtime.watching.clock import Clock
from receiver_runtime.watching.descriptors import raise_descriptor_limit
from receiver_runtime.watching.exit_codes import ExitCode
from receiver_runtime.watching.progress import LOOK_SECONDS, ProgressWatchdog
from tracker_store.connection.engine import connect_once, create_engine
from tracker_store.connection.errors import DriverLogError
from tracker_store.receivers.processes import ProcessExpiredError, deregister_process, register_process
from tracker_store.receivers.receivers import NoSuchReceiverError, get_receiver
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import sqlalchemy as sa

    from receiver_runtime.block_store.frames.encryption import KeyReference
    from receiver_runtime.watching.progress import Watched

_log = structlog.get_logger(__name__)

# How many receivers start at the same time: each asks the driver log several questions, on few connections.
_STARTING_AT_ONCE = 4
# Seconds that a process with a stuck receiver gives its other receivers to drain, and the driver log to answer.
_LAST_SECONDS = 10.0
# Seconds that the last line to the agent may take: its socket may be full.
_LAST_LINE_SECONDS = 1.0
# Seconds that a thread may wait for the interpreter before it asks for it. With hundreds of threads and Python's
# default of 5 ms the asking alone took the whole machine; these threads run only briefly between two waits.
_SWITCH_SECONDS = 0.05


def run(
    receivers: Sequence[tuple[int, int]],
    *,
    database_url: str,
    block_store: str,
    block_key: KeyReference | None = None,
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
        host: the host's name in the driver log; the machine's name by default.
        parent_pipe: a descriptor that closes when the parent is gone; watched only where it is a pipe or a socket, and
            on a socket the agent's lines are read and answered. None: not watched.

    Must be called on the main thread (it handles signals).
    """
    if not receivers:
        raise ValueError("no receiver to run: give at least one")
    defer_pandas()
    # Its receivers may have thousands of connections, and each has a segment file.
    raise_descriptor_limit()
    name = f"forebay receiver {receivers[0][0]}" + (f" and {len(receivers) - 1} more" if len(receivers) > 1 else "")
    engine = create_engine(database_url, application_name=name, pool_size=3)
    agent = AgentLine(parent_pipe)
    process = _Process(
        engine,
        block_store=block_store,
        block_key=block_key,
        host=host or socket.gethostname(),
        tell_agent=agent.tell,
    )
    watcher = ParentWatcher(process.stop, process.obey, parent_pipe=parent_pipe)
    watcher.start()
    try:
        return process.run(receivers)
    finally:
        watcher.stop()
        agent.close()
        engine.dispose()


class _Process:
    """Hold the receivers of the process by id. A receiver is in ``_lives`` from its acceptance to its end."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        block_store: str,
        block_key: KeyReference | None = None,
        host: str,
        tell_agent: Callable[[Message], None],
        exit_process: Callable[[int], object] = os._exit,
    ) -> None:
        self._exit_process = exit_process
        self._engine = engine
        self._block_store = block_store
        self._block_key = block_key
        self._host = host
        self._tell_agent = tell_agent
        self._clock = Clock()
        self._driver_log = DriverLog(engine, clock=self._clock)
        # Guards everything below.
        self._changed = threading.Condition()
        self._shared: SharedParts | None = None
        self._watchdog = ProgressWatchdog(self._watched, self._on_stuck)
        self._lives: dict[int, ReceiverLife] = {}
        self._ended: list[Ending] = []
        # How many endings are being sent to the agent.
        self._telling = 0
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
                self._tell_agent((Accepted if taken else Declined)(receiver_id, assignment))
            case Stop(receiver_id):
                with self._changed:
                    life = self._lives.get(receiver_id)
                if life is not None:
                    life.end(Ending(ExitCode.STOPPED, "its agent stopped it", drained=True))
            case _:
                _log.warning("the agent said what only a receiver process says", message=message)

    def _end_all(self, ending: Ending) -> None:
        with self._changed:
            self._closing = True
            lives = list(self._lives.values())
            if self._shared is None:
                self._driver_log.give_up()
        for life in lives:
            life.end(ending)

    def _take_in(self, receiver_id: int, assignment: int) -> bool:
        with self._changed:
            if self._closing or receiver_id in self._lives:
                return False
            life = ReceiverLife(self._engine, receiver_id, assignment, on_ended=self._on_ended)
            self._lives[receiver_id] = life
            if len(self._lives) > 1:
                sys.setswitchinterval(_SWITCH_SECONDS)
            if self._shared is not None:
                life.start(self._shared)
            return True

    def _on_ended(self, life: ReceiverLife, ending: Ending) -> None:
        with self._changed:
            # Before the agent hears of it: it may give the receiver back at once, under a newer assignment.
            del self._lives[life.receiver_id]
            self._ended.append(ending)
            self._telling += 1
        self._tell_agent(Ended(life.receiver_id, life.assignment, ending.exit_code, ending.reason))
        with self._changed:
            self._telling -= 1
            self._closing = self._closing or not (self._lives or self._telling)
            self._changed.notify_all()

    def _on_expired(self, error: ProcessExpiredError) -> None:
        # Drained: the driver log may still accept held blocks until another process claims the receiver.
        self._end_all(Ending(ExitCode.FENCED, str(error), drained=True))

    def _queued(self) -> dict[int, int]:
        with self._changed:
            lives = list(self._lives.values())
        return {life.receiver_id: queued for life in lives if (queued := life.queued()) is not None}

    # -- the watchdog's thread: takes no lock and writes no line, because a thread that hangs may hold them ----------

    def _watched(self) -> Sequence[ReceiverLife]:
        return list(self._lives.values())

    def _on_stuck(self, stuck: Sequence[Watched]) -> bool:
        """Report the stuck receivers and drain the others, for a limited time; then end the process, whatever hangs.

        Return False and end nothing while no other process could go on, because a process needs the driver log to
        start, or when the receivers make progress again meanwhile.
        """
        before = [(one, one.progress.done, one.progress.failures) for one in stuck]
        if (why := self._why_no_other_could_go_on()) is not None:
            for one in stuck:
                one.progress.failed(why)
            return False
        # The server, or this machine, may have just resumed: give a pending question time to be answered.
        threading.Event().wait(LOOK_SECONDS)
        stuck = [
            one for one, done, failures in before if (one.progress.done, one.progress.failures) == (done, failures)
        ]
        if not stuck:
            return False
        self._closing = True
        lives = [life for life in self._watched() if life in stuck]
        done = threading.Semaphore(0)

        def aside(action: Callable[[], None], name: str) -> None:
            def act() -> None:
                try:
                    action()
                except Exception as error:  # noqa: BLE001  the process ends anyway
                    _log.warning("a process that is stuck could not do all at its end", what=name, error=str(error))
                finally:
                    done.release()

            # Where no thread can be started, the waits below run into their time limits.
            with contextlib.suppress(RuntimeError, MemoryError):
                threading.Thread(target=act, name=name, daemon=True).start()

        deadline = self._clock.monotonic() + _LAST_SECONDS
        aside(lambda: self._give_up(lives), "giving up")
        aside(lambda: self._drain_others(lives, deadline), "draining")
        for _ in range(2):
            done.acquire(timeout=max(0.0, deadline - self._clock.monotonic()))
        # Last, because the agent then starts another process for them, whether or not this one can end.
        aside(lambda: self._tell_stuck(lives), "last line")
        done.acquire(timeout=_LAST_LINE_SECONDS)
        self._exit_process(ExitCode.STUCK)
        return True

    def _why_no_other_could_go_on(self) -> str | None:
        """Return why the driver log takes no new connection, or None where it does.

        A server that is stopped answers no other process either, and what waits for it resumes with it.
        """
        found: list[str | None] = []
        answered = threading.Event()

        def ask() -> None:
            try:
                with connect_once(self._url(), application_name="forebay receiver that may be stuck"):
                    found.append(None)
            except Exception as error:  # noqa: BLE001  another process would fail by it too
                found.append(f"the driver log takes no connection: {error}")
            finally:
                answered.set()

        try:
            threading.Thread(target=ask, name="asking the driver log", daemon=True).start()
        except (RuntimeError, MemoryError):
            # Only this process lacks threads or memory; another process could go on.
            return None
        answered.wait(_LAST_SECONDS)
        return found[0] if found else "the driver log answers no new connection"

    def _url(self) -> str:
        # For a connection outside the pool: threads that hang may hold all of the pool's connections.
        return self._engine.url.render_as_string(hide_password=False)

    def _give_up(self, lives: Sequence[ReceiverLife]) -> None:
        process_id = None if self._shared is None else self._shared.process_id
        try:
            with connect_once(self._url(), application_name="forebay receiver that is stuck") as connection:
                for life in lives:
                    if process_id is not None:
                        life.give_up(connection, process_id)
        finally:
            for life in lives:
                _log.error(STUCK_MESSAGE, receiver_id=life.receiver_id, reason=life.stuck_reason)

    def _drain_others(self, lives: Sequence[ReceiverLife], deadline: float) -> None:
        others = [life for life in self._watched() if life not in lives]
        for life in others:
            reason = f"receiver {lives[0].receiver_id}, which shares this process, is stuck"
            life.end(Ending(ExitCode.FAILED, reason, drained=True, again=True))
        pause = threading.Event()
        while any(life in others for life in self._watched()) and self._clock.monotonic() < deadline:
            pause.wait(0.05)

    def _tell_stuck(self, lives: Sequence[ReceiverLife]) -> None:
        for life in lives:
            self._tell_agent(Ended(life.receiver_id, life.assignment, ExitCode.STUCK, life.stuck_reason))

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
            for life in self._lives.values():
                self._tell_agent(Accepted(life.receiver_id, life.assignment))
                life.start(shared)
            while self._lives or self._telling:
                self._changed.wait()
        self._close(shared)
        return _exit_code(self._ended)

    def _open(self, receivers: Sequence[tuple[int, int]]) -> SharedParts:
        """Register the process, and start the parts that its receivers share."""
        process_id = self._driver_log.until_answered(
            "register the process",
            lambda c: register_process(
                c, kind=ProcessKind.RECEIVER, name=_name(c, receivers), host=self._host, pid=os.getpid()
            ),
        )
        block_log = PostgresBlockLog(self._engine, process_id=process_id, queued=self._queued)
        shared = SharedParts(
            process_id=process_id,
            block_store=self._block_store,
            block_key=self._block_key,
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

    def _close(self, shared: SharedParts) -> None:
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
            lives = list(self._lives.values())
        for life in lives:
            self._on_ended(life, ending)
        return ending.exit_code


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

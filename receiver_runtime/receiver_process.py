"""A receiver process, from its start to its exit code: composes the parts of its receivers and owns nothing else.

It runs any number of receivers, each with a claim and a write-ahead log of its own; registrar, reporter, connections
and the threads that read what is little, make blocks and push them are shared. One receiver's end (it was fenced, it
failed, it was stopped) touches no other; a crash ends them all. The process ends when its last receiver has ended.

Order for each receiver: its declaration, the claim, the parts, the source. Nothing is read from a source before the
claim is answered, for what is read then belongs to that epoch.

The process ends when it is told to (SIGTERM, SIGINT), or when its parent is gone (its standard input, a pipe or the
agent's socket, ends): every receiver drains first. A second signal, or ten seconds after the parent is gone, ends it
at once; what was registered is safe either way. The agent's lines on that socket add and stop single receivers, and
tell it of each that has ended (``process_control``).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import stat
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeVar

import structlog

from receiver_runtime.block_handler import BlockHandler
from receiver_runtime.block_store import frame
from receiver_runtime.block_store.errors import BlockStoreError
from receiver_runtime.block_store.roots import root_names
from receiver_runtime.block_store.stores import open_block_store
from receiver_runtime.block_threads import BlockThreads
from receiver_runtime.clock import Clock, SystemClock
from receiver_runtime.driver_log import DriverLog, GivenUpError, ReceiverDriverLog
from receiver_runtime.exit_codes import ExitCode
from receiver_runtime.process_control import Accepted, Declined, Ended, Lines, Message, Run, Stop, encode
from receiver_runtime.progress import LOOK_SECONDS, Progress, ProgressWatchdog
from receiver_runtime.reading_loop import ReadingLoop
from receiver_runtime.receiver_start import prepare_receiver
from receiver_runtime.receiver_supervisor import Ending, ReceiverSupervisor, progress_limit
from receiver_runtime.registered_through import RegisteredThrough
from receiver_runtime.registrar import PostgresBlockLog, Registrar
from receiver_runtime.replica_reports import ReplicaReports
from receiver_runtime.salvage import earlier_store_location, salvage, store_location
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from receiver_runtime.sources.source_registry import parse_source
from receiver_runtime.status_reporter import ReceiverReporter, StatusReporter
from receiver_runtime.store_wait import wait_for_store
from receiver_runtime.write_ahead_log import WriteAheadLog
from tracker_store.block_stores import attached_identities
from tracker_store.blocks import Claim, claim, newest_epoch
from tracker_store.engine import connect_once, create_engine
from tracker_store.errors import (
    ClaimBusyError,
    ClaimLostError,
    DriverLogError,
    NotAssignedError,
    ReceiverFencedError,
)
from tracker_store.processes import ProcessExpiredError, deregister_process, heartbeat, register_process
from tracker_store.receivers import (
    NoSuchReceiverError,
    get_receiver,
    give_up_receiver,
    report_event,
    set_receiver_state,
)
from tracker_store.schema import ProcessKind, ReceiverEventKind, ReceiverState
from tracker_store.segments import end_of_epoch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import sqlalchemy as sa

    from receiver_runtime.progress import Watched

_log = structlog.get_logger(__name__)

T = TypeVar("T")

_CLAIM_ATTEMPTS = 5
_PARENT_GONE_SECONDS = 10.0
# So many receivers start at a time: each asks the driver log a handful of questions, on few connections.
_STARTING_AT_ONCE = 4
# So long the other receivers of a process that is to be replaced have to drain, and the driver log to be told.
_LAST_SECONDS = 10.0
_LAST_LINE_SECONDS = 1.0
# With hundreds of threads, each that waits for its turn wakes this often to ask for it: at Python's 5 ms that alone
# took the whole machine. What they do between two waits is short, so that nobody holds a turn for as long.
_SWITCH_SECONDS = 0.05


#: An event, and a line in the log.
STUCK_MESSAGE = "the receiver is stuck, its process ends and is replaced"
_REPLACED = "another process takes over and salvages what this one has stored"


class _NotOursError(Exception):
    """The receiver is not this process's to run."""


def run(
    receivers: Sequence[tuple[int, int]],
    *,
    database_url: str,
    block_store: str,
    host: str | None = None,
    parent_pipe: int | None = 0,
) -> ExitCode:
    """Run receivers until the last of them has ended; returns the process's exit code.

    That is FAILED if one of them failed, else FENCED if one was fenced, else STOPPED.

    Args:
        receivers: (receiver id, assignment) of those to begin with: their declarations are in the driver log, and a
            process may claim a receiver under no other assignment than the one that it was started for.
        database_url: of the driver log.
        block_store: the setting; see ``block_store.roots``.
        host: as it shows in the driver log; the machine's name by default.
        parent_pipe: a descriptor whose end says that the parent is gone; watched only where it is a pipe or a
            socket, and on a socket the agent's lines are read and answered. None: not watched.

    Must be called on the main thread (it handles signals).
    """
    if not receivers:
        raise ValueError("no receiver to run: give at least one")
    name = f"forebay receiver {receivers[0][0]}" + (f" and {len(receivers) - 1} more" if len(receivers) > 1 else "")
    engine = create_engine(database_url, application_name=name, pool_size=3)
    agent = _AgentLine(parent_pipe)
    process = _ReceiverProcess(
        engine, block_store=block_store, host=host or socket.gethostname(), tell_agent=agent.tell
    )
    watcher = _Watcher(process.stop, process.obey, parent_pipe=parent_pipe)
    watcher.start()
    try:
        return process.run(receivers)
    finally:
        watcher.stop()
        agent.close()
        engine.dispose()


@dataclass(frozen=True, slots=True)
class _Shared:
    """What the receivers of a process have in common."""

    engine: sa.Engine
    process_id: int
    block_store: str
    host: str
    clock: Clock
    block_log: PostgresBlockLog
    registrar: Registrar
    reporter: StatusReporter
    block_threads: BlockThreads
    reading_loop: ReadingLoop
    starting: threading.BoundedSemaphore


class _ReceiverProcess:
    """The receivers that run here, by id. A receiver is in ``_lives`` from its acceptance to its end."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        block_store: str,
        host: str,
        tell_agent: Callable[[Message], None],
        exit_process: Callable[[int], object] = os._exit,
    ) -> None:
        self._exit_process = exit_process
        self._engine = engine
        self._block_store = block_store
        self._host = host
        self._tell_agent = tell_agent
        self._clock = SystemClock()
        self._driver_log = DriverLog(engine, clock=self._clock)
        # Everything below is under this lock.
        self._changed = threading.Condition()
        self._shared: _Shared | None = None
        self._watchdog = ProgressWatchdog(self._watched, self._on_stuck)
        self._lives: dict[int, _ReceiverLife] = {}
        self._ended: list[Ending] = []
        # Endings that the agent is being told of.
        self._telling = 0
        # Set once: from then on no receiver is taken in, so that the process comes to its end.
        self._closing = False

    # -- any thread --------------------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """Ask for a graceful end of everything; any thread, at any time."""
        self._end_all(Ending(ExitCode.STOPPED, reason, drained=True))

    def obey(self, message: Message) -> None:
        """Do what the agent says; returns at once."""
        match message:
            case Run(receiver_id, assignment):
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
            life = _ReceiverLife(self._engine, receiver_id, assignment, on_ended=self._on_ended)
            self._lives[receiver_id] = life
            if len(self._lives) > 1:
                sys.setswitchinterval(_SWITCH_SECONDS)
            if self._shared is not None:
                life.start(self._shared)
            return True

    def _on_ended(self, life: _ReceiverLife, ending: Ending) -> None:
        with self._changed:
            # First: the agent may give it back at once, under a newer assignment.
            del self._lives[life.receiver_id]
            self._ended.append(ending)
            self._telling += 1
        self._tell_agent(Ended(life.receiver_id, life.assignment, ending.exit_code, ending.reason))
        with self._changed:
            self._telling -= 1
            self._closing = self._closing or not (self._lives or self._telling)
            self._changed.notify_all()

    def _on_expired(self, error: ProcessExpiredError) -> None:
        # What is held may still be accepted, until someone claims.
        self._end_all(Ending(ExitCode.FENCED, str(error), drained=True))

    def _queued(self) -> dict[int, int]:
        with self._changed:
            lives = list(self._lives.values())
        return {life.receiver_id: queued for life in lives if (queued := life.queued()) is not None}

    # -- the watchdog's thread: takes no lock and writes no line, for what hangs may hold it -------------------------

    def _watched(self) -> Sequence[_ReceiverLife]:
        return list(self._lives.values())

    def _on_stuck(self, stuck: Sequence[Watched]) -> bool:
        """Have those that are stuck reported and the others drained, for a limited time; then end, whatever hangs.

        False, and nothing is ended, while no other process could go on: one that begins needs the driver log.
        """
        before = [(one, one.progress.done, one.progress.failures) for one in stuck]
        if (why := self._why_no_other_could_go_on()) is not None:
            for one in stuck:
                one.progress.failed(why)
            return False
        # A server that has only just gone on, or this machine with it, answers what hangs in it too.
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
                except Exception as error:  # noqa: BLE001  the process ends all the same
                    _log.warning("a process that is stuck could not do all at its end", what=name, error=str(error))
                finally:
                    done.release()

            # Where there is no thread to be had, there is none to wait for.
            with contextlib.suppress(RuntimeError, MemoryError):
                threading.Thread(target=act, name=name, daemon=True).start()

        deadline = self._clock.monotonic() + _LAST_SECONDS
        aside(lambda: self._give_up(lives), "giving up")
        aside(lambda: self._drain_others(lives, deadline), "draining")
        for _ in range(2):
            done.acquire(timeout=max(0.0, deadline - self._clock.monotonic()))
        # Told last: from here on the agent starts another process for them, whether or not this one can end.
        aside(lambda: self._tell_stuck(lives), "last line")
        done.acquire(timeout=_LAST_LINE_SECONDS)
        self._exit_process(ExitCode.STUCK)
        return True

    def _why_no_other_could_go_on(self) -> str | None:
        """A server that is stopped answers neither us nor another process; what waits for it goes on when it does."""
        found: list[str | None] = []
        answered = threading.Event()

        def ask() -> None:
            try:
                with connect_once(self._url(), application_name="forebay receiver that may be stuck"):
                    found.append(None)
            except Exception as error:  # noqa: BLE001  whatever it is, another process would meet it too
                found.append(f"the driver log takes no connection: {error}")
            finally:
                answered.set()

        try:
            threading.Thread(target=ask, name="asking the driver log", daemon=True).start()
        except (RuntimeError, MemoryError):
            # That is this process's trouble alone.
            return None
        answered.wait(_LAST_SECONDS)
        return found[0] if found else "the driver log answers no new connection"

    def _url(self) -> str:
        # For a connection of its own: those of the pool may all be in hands that hang.
        return self._engine.url.render_as_string(hide_password=False)

    def _give_up(self, lives: Sequence[_ReceiverLife]) -> None:
        process_id = None if self._shared is None else self._shared.process_id
        try:
            with connect_once(self._url(), application_name="forebay receiver that is stuck") as connection:
                for life in lives:
                    if process_id is not None:
                        life.give_up(connection, process_id)
        finally:
            for life in lives:
                _log.error(STUCK_MESSAGE, receiver_id=life.receiver_id, reason=life.stuck_reason)

    def _drain_others(self, lives: Sequence[_ReceiverLife], deadline: float) -> None:
        others = [life for life in self._watched() if life not in lives]
        for life in others:
            reason = f"receiver {lives[0].receiver_id}, which shares this process, is stuck"
            life.end(Ending(ExitCode.FAILED, reason, drained=True, again=True))
        pause = threading.Event()
        while any(life in others for life in self._watched()) and self._clock.monotonic() < deadline:
            pause.wait(0.05)

    def _tell_stuck(self, lives: Sequence[_ReceiverLife]) -> None:
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

    def _open(self, receivers: Sequence[tuple[int, int]]) -> _Shared:
        """Register the process, and start what its receivers share."""
        process_id = self._driver_log.until_answered(
            "register the process",
            lambda c: register_process(
                c, kind=ProcessKind.RECEIVER, name=_name(c, receivers), host=self._host, pid=os.getpid()
            ),
        )
        block_log = PostgresBlockLog(self._engine, process_id=process_id, queued=self._queued)
        shared = _Shared(
            engine=self._engine,
            process_id=process_id,
            block_store=self._block_store,
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

    def _close(self, shared: _Shared) -> None:
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
    """What operators read: the first receiver's stream and number, and how many others there are."""
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


class _ReceiverLife:
    """One receiver in this process, from its claim to its end, on a thread of its own: the supervisor's control thread.

    Besides it a receiver has the threads that its own code makes; all others are the process's.
    """

    def __init__(
        self,
        engine: sa.Engine,
        receiver_id: int,
        assignment: int,
        *,
        on_ended: Callable[[_ReceiverLife, Ending], None],
    ) -> None:
        self.receiver_id = receiver_id
        self.assignment = assignment
        self._on_ended = on_ended
        #: For the watchdog.
        self.progress = Progress()
        # Its own: to give up on one receiver's questions must not end another's.
        self._driver_log = DriverLog(engine, progress=self.progress, on_answer=self._on_answer)
        # From its turn to start to the supervisor's: what an earlier process has stored is salvaged meanwhile.
        self._starting = False
        self._limit = ReceiverSettings().progress_timeout
        self._lock = threading.Lock()
        self._supervisor: ReceiverSupervisor | None = None
        self._reporter: ReceiverReporter | None = None
        self._wanted_end: Ending | None = None

    # -- the watchdog's side (Watched) -------------------------------------------------------------------------------

    @property
    def progress_limit(self) -> float:
        """Seconds without progress, while it holds data, that are too many."""
        supervisor = self._supervisor
        return self._limit if supervisor is None else supervisor.progress_limit

    @property
    def holds_data(self) -> bool:
        """Whether something is to be salvaged, stored or registered. Takes no lock."""
        supervisor = self._supervisor
        return self._starting if supervisor is None else supervisor.block_path.holds_data

    @property
    def stuck_reason(self) -> str:
        """For people."""
        what = "starts" if self._supervisor is None else "holds data"
        return f"stuck: it {what}, and nothing was done or even failed for {self.progress_limit:g} s; {_REPLACED}"

    def on_hindered(self, seconds: float, why: str) -> None:
        """Say so."""
        supervisor = self._supervisor
        if supervisor is not None:
            supervisor.report_no_progress(seconds, why)
        else:
            # Only the driver log keeps a receiver from its start, and that can't be told so now.
            _log.warning("the receiver can't start", receiver_id=self.receiver_id, seconds=seconds, error=why)

    def on_moving(self) -> None:
        """Say so."""
        supervisor = self._supervisor
        if supervisor is not None:
            supervisor.report_progress()

    def give_up(self, connection: sa.Connection, process_id: int) -> None:
        """In the driver log this process does not hold it any more."""
        reason = self.stuck_reason
        if give_up_receiver(
            connection,
            receiver_id=self.receiver_id,
            assignment=self.assignment,
            process_id=process_id,
            reason=reason,
        ):
            report_event(
                connection,
                receiver_id=self.receiver_id,
                epoch=0,
                kind=ReceiverEventKind.ERROR,
                message=STUCK_MESSAGE,
                detail=reason,
            )

    def _on_answer(self) -> None:
        if self._supervisor is None:
            self.progress.made()

    # ----------------------------------------------------------------------------------------------------------------

    def start(self, shared: _Shared) -> None:
        """Begin to live; returns at once."""
        threading.Thread(target=self._run, args=(shared,), name=f"receiver {self.receiver_id}", daemon=True).start()

    def end(self, ending: Ending) -> None:
        """Ask for this end; any thread, at any time; returns at once. The first one counts."""
        with self._lock:
            supervisor = self._supervisor
            if supervisor is None:
                # Nothing is claimed or read yet, or will be.
                self._wanted_end = self._wanted_end or ending
                self._driver_log.give_up()
        if supervisor is not None:
            supervisor.end(ending)

    def queued(self) -> int | None:
        """Blocks that wait to be stored; None before it is claimed. Any thread, at any time; returns at once."""
        with self._lock:
            supervisor = self._supervisor
        return None if supervisor is None else supervisor.block_path.generator.waiting_blocks

    def _run(self, shared: _Shared) -> None:
        try:
            ending = self._live(shared)
        except BaseException as error:  # noqa: BLE001  whatever it is, it is this receiver's alone
            # A fault in the receiver's own code, or in ours: the agent starts it again, after a pause.
            ending = Ending(ExitCode.FAILED, f"{type(error).__name__}: {error}", drained=False)
            self._tell(ReceiverEventKind.ERROR, "the receiver ended by an error, starting it again", ending.reason)
            with contextlib.suppress(Exception):
                _log.error("the receiver ended by an error", receiver_id=self.receiver_id, exc_info=error)
        try:
            # Only now is everything of it written.
            shared.registrar.detach(self.receiver_id)
            if self._reporter is not None:
                shared.reporter.detach(self._reporter)
        finally:
            # Without it the process would wait for this receiver for ever.
            self._on_ended(self, ending)

    def _live(self, shared: _Shared) -> Ending:
        try:
            with shared.starting:
                self._starting = True
                supervisor = self._start(shared)
        except GivenUpError as error:
            return self._wanted_end or Ending(ExitCode.STOPPED, str(error), drained=True)
        except (_NotOursError, NotAssignedError, NoSuchReceiverError, ReceiverFencedError) as error:
            _log.warning("this receiver is not ours to run", receiver_id=self.receiver_id, error=str(error))
            return Ending(ExitCode.FENCED, str(error), drained=True)
        except DriverLogError as error:
            # Outrun by another claim, say: the agent starts it again, after a pause.
            _log.error("the receiver could not be claimed", receiver_id=self.receiver_id, error=str(error))
            self._tell(ReceiverEventKind.ERROR, "the receiver could not be claimed, trying again", str(error))
            return Ending(ExitCode.FAILED, str(error), drained=True)
        except (ValueError, BlockStoreError) as error:
            # The declaration or a setting: no restart heals it.
            _log.error("the receiver could not start", receiver_id=self.receiver_id, error=str(error))
            self._tell(ReceiverEventKind.FAILED, "the receiver could not start", str(error))
            return Ending(ExitCode.FAILED, str(error), drained=True)
        ending = supervisor.run()
        if ending.exit_code is ExitCode.FENCED:
            self._tell_lost_commits(supervisor)
        return ending

    def _tell_lost_commits(self, supervisor: ReceiverSupervisor) -> None:
        """Another epoch goes on from where ours ended: say so where that was before our last acknowledgement."""
        try:
            end = self._driver_log.once(lambda c: end_of_epoch(c, receiver_id=self.receiver_id, epoch=supervisor.epoch))
        except DriverLogError as error:
            _log.warning("could not compare with the driver log", receiver_id=self.receiver_id, error=str(error))
            return
        lost = supervisor.block_path.acknowledged.describe_after(end.sequence)
        if lost is not None:
            self._tell(
                ReceiverEventKind.ERROR,
                "the driver log lacks blocks that it had acknowledged, and another process has gone on without them",
                f"epoch {supervisor.epoch}: {lost}; its SALVAGED event says which of them are registered again, their "
                "files stay for an hour at least, and `forebay db check --against-store` lists what no row knows; "
                "see docs/runbooks/postgres-failover.md",
            )

    # -- the start, step by step -------------------------------------------------------------------------------------

    def _start(self, shared: _Shared) -> ReceiverSupervisor:
        spec = self._ask("read the receiver's declaration", lambda c: get_receiver(c, self.receiver_id))
        if spec.assignment != self.assignment:
            raise _NotOursError(
                f"assignment {spec.assignment} is in force, this process was started for {self.assignment}"
            )
        source = parse_source(spec.source)
        settings = ReceiverSettings.of_row(spec.settings)
        self._limit = progress_limit(settings)
        with self._unwatched():
            # The receiver's own code makes it, and may take its time: nothing is held yet.
            receiver = prepare_receiver(source, receiver_id=self.receiver_id, ask=self._ask)
        source_rule = receiver.source_rule or source.source_rule
        claimed = self._claim()
        if not self._ask(
            "say that the receiver is active",
            lambda c: set_receiver_state(
                c,
                receiver_id=self.receiver_id,
                assignment=self.assignment,
                state=ReceiverState.ACTIVE,
                reason=f"starting on {source.address}",
                process_id=shared.process_id,
            ),
        ):
            raise _NotOursError("the driver log has it under another assignment, or not as placed")
        steering = self._ask(
            "read what the receiver is to do",
            lambda c: heartbeat(c, process_id=shared.process_id, receiver_ids=[self.receiver_id]),
        )[0]
        self._reporter = shared.reporter.for_receiver(claimed, assignment=self.assignment, process_id=shared.process_id)
        expected = self._ask(
            "read which block store this host has",
            lambda c: attached_identities(c, root_names(shared.block_store), host=shared.host),
        )
        store = open_block_store(
            shared.block_store,
            min_replicas=settings.min_replicas,
            timeout=settings.block_store_timeout,
            listener=ReplicaReports(self._reporter, receiver_id=self.receiver_id),
            expected=expected,
        )
        with self._given_back(shared.starting):
            wait_for_store(store, driver_log=self._driver_log, reporter=self._reporter, progress=self.progress)
        location = store_location(shared.host, store, expected)
        claimed = salvage(
            self._driver_log,
            store,
            claimed=claimed,
            location=location,
            earlier_location=earlier_store_location(shared.host, store, expected),
            clock=shared.clock,
            progress=self.progress,
        )
        rows = ReceiverDriverLog(
            self._driver_log,
            claim=claimed,
            durability=settings.durability,
            store=location,
        )
        log = WriteAheadLog(
            store,
            rows,
            claim=claimed,
            source_rule=frame.SourceRule[source_rule.name],
            registered_through=RegisteredThrough(claimed.sequence),
            segment_interval=settings.segment_interval,
            max_segment_bytes=settings.max_segment_bytes,
            max_failures=settings.write_ahead_log_max_failures,
            durable=settings.durability == "durable",
            clock=shared.clock,
            progress=self.progress,
        )
        handler = BlockHandler(log, receiver.record_schema, compression=settings.compression)
        self._reporter.state(ReceiverState.ACTIVE, f"starting on {source.address}")
        self._reporter.event(ReceiverEventKind.STARTED, f"claimed on {shared.host}", f"epoch {claimed.epoch}")
        supervisor = ReceiverSupervisor(
            receiver,
            stream_id=spec.stream_id,
            stream_name=spec.stream_name,
            claim=claimed,
            assignment=self.assignment,
            settings=settings,
            handler=handler,
            registrar=shared.registrar,
            driver_log=rows,
            positions=rows,
            keys=rows,
            reporter=self._reporter,
            desired_state=steering.desired_state,
            rate_limit=steering.rate_limit,
            threads=shared.block_threads,
            reading_loop=shared.reading_loop,
            clock=shared.clock,
            progress=self.progress,
        )
        rows.tell(supervisor.block_path)
        with self._lock:
            if self._wanted_end is not None:
                # Asked for between two questions; nothing was read.
                raise GivenUpError(self._wanted_end.reason)
            self._supervisor = supervisor
        return supervisor

    @contextlib.contextmanager
    def _given_back(self, turn: threading.Semaphore) -> Iterator[None]:
        """Others may start meanwhile."""
        turn.release()
        try:
            yield
        finally:
            # The others may salvage for long, and it does nothing but wait for them.
            with self._unwatched():
                turn.acquire()

    @contextlib.contextmanager
    def _unwatched(self) -> Iterator[None]:
        """What lasts is no sign of a thread that hangs."""
        self._starting = False
        try:
            yield
        finally:
            self._starting = True

    def _claim(self) -> Claim:
        """Take the receiver over. A claim whose answer was lost is not ours, and is made again on top of it."""
        for attempt in range(_CLAIM_ATTEMPTS):
            try:
                return self._ask(
                    "claim the receiver",
                    lambda c: claim(
                        c,
                        receiver_id=self.receiver_id,
                        seen_epoch=newest_epoch(c, self.receiver_id),
                        assignment=self.assignment,
                    ),
                )
            except (ClaimLostError, ClaimBusyError):
                if attempt + 1 == _CLAIM_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def _tell(self, kind: ReceiverEventKind, message: str, detail: str) -> None:
        """What no supervisor is there to say; FAILED is a state too."""

        def tell(connection: sa.Connection) -> None:
            if kind is ReceiverEventKind.FAILED:
                set_receiver_state(
                    connection,
                    receiver_id=self.receiver_id,
                    assignment=self.assignment,
                    state=ReceiverState.FAILED,
                    reason=detail,
                )
            report_event(connection, receiver_id=self.receiver_id, epoch=0, kind=kind, message=message, detail=detail)

        try:
            self._driver_log.once(tell)
        except Exception as error:  # noqa: BLE001  the receiver ends whether or not that can be told
            with contextlib.suppress(Exception):
                _log.warning("could not report the receiver's end", receiver_id=self.receiver_id, error=str(error))

    def _ask(self, what: str, statement: Callable[[sa.Connection], T]) -> T:
        return self._driver_log.until_answered(what, statement)


class _AgentLine:
    """The way back to the agent; without a socket nobody is told."""

    def __init__(self, parent_pipe: int | None) -> None:
        self._lock = threading.Lock()
        self._socket = (
            socket.socket(fileno=os.dup(parent_pipe)) if parent_pipe is not None and _is_socket(parent_pipe) else None
        )

    def tell(self, message: Message) -> None:
        """Send a line; an agent that is gone is told nothing."""
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.sendall(encode(message))

    def close(self) -> None:
        """Give the descriptor back."""
        if self._socket is not None:
            self._socket.close()


class _Watcher:
    """Turns signals, and the end of the parent's pipe, into a wish to stop, and hands on what the agent says.

    The interpreter itself writes a byte when a signal comes, on whatever thread. A handler of ours would run on the
    main thread alone, which does not always wake up for it from its wait for a lock.
    """

    def __init__(
        self, stop: Callable[[str], None], obey: Callable[[Message], None], *, parent_pipe: int | None
    ) -> None:
        self._stop = stop
        self._obey = obey
        self._parent = parent_pipe if parent_pipe is not None and _can_end(parent_pipe) else None
        self._lines = Lines()
        self._read_end, self._write_end = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="signals and parent", daemon=True)
        self._handlers: dict[int, object] = {}
        self._wakeup_before = -1

    def start(self) -> None:
        os.set_blocking(self._write_end, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._handlers[number] = signal.signal(number, _do_nothing)
        self._thread.start()

    def stop(self) -> None:
        """Give the signals back and end the thread."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._wakeup_before)
        os.write(self._write_end, b"\0")
        self._thread.join()
        os.close(self._read_end)
        os.close(self._write_end)

    def _watch(self) -> None:
        signals = 0
        watched = [self._read_end] if self._parent is None else [self._read_end, self._parent]
        deadline: float | None = None
        clock = SystemClock()
        while True:
            left = None if deadline is None else max(0.0, deadline - clock.monotonic())
            ready, _, _ = select.select(watched, [], [], left)
            if not ready and left is not None:
                _end_at_once("not drained in time after the parent was gone, ending at once")
            if self._parent in ready and not self._hear():
                watched = [self._read_end]
                deadline = clock.monotonic() + _PARENT_GONE_SECONDS
                self._stop("the parent process is gone")
            if self._read_end in ready:
                number = os.read(self._read_end, 1)[0]
                if number == 0:
                    return
                if number not in self._handlers:
                    continue
                signals += 1
                if signals > 1:
                    _end_at_once("a second signal, ending at once")
                self._stop(signal.Signals(number).name)

    def _hear(self) -> bool:
        """Do what the parent says; False when it is gone."""
        try:
            data = os.read(self._parent or 0, 4096)
        except ConnectionResetError:
            return False
        try:
            for message in self._lines.feed(data):
                self._obey(message)
        except ValueError as error:
            _log.warning("the parent said what is not understood", error=str(error))
        return bool(data)


def _end_at_once(why: str) -> NoReturn:
    with contextlib.suppress(Exception):
        _log.error(why)
    os._exit(ExitCode.FAILED)


def _do_nothing(number: int, frame: object) -> None:
    """With a handler, the signal is one that the interpreter tells of."""


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _can_end(descriptor: int) -> bool:
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)

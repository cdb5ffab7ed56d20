"""End a process whose receivers hang, so that another takes them over, without waiting for what hangs.

Everything here runs on the watchdog's thread, or on threads that it starts. It takes no lock that a receiver's thread
may hold, and waits for nothing without a time limit.
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.process.process_control import Ended
from receiver_runtime.process.receiver_task import HANGING_MESSAGE
from receiver_runtime.supervisor.ending import Ending
from receiver_runtime.watching.exit_codes import ExitCode
from receiver_runtime.watching.progress import CHECK_SECONDS
from tracker_store.connection.engine import connect_once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import sqlalchemy as sa

    from receiver_runtime.process.process_control import Message
    from receiver_runtime.process.receiver_task import ReceiverTask
    from receiver_runtime.watching.clock import Clock

_log = structlog.get_logger(__name__)

# Seconds that a process with a hanging receiver gives its other receivers to drain, and the driver log to answer.
_LAST_SECONDS = 10.0
# Seconds that the last line to the agent may take: its socket may be full.
_LAST_LINE_SECONDS = 1.0


class HangingReceivers:
    """Deal with a process's hanging receivers; see the module.

    Args:
        engine: of the driver log; its pool is not used.
        running: returns the process's tasks.
        close: closes the process to new receivers; returns its id in the driver log, or None if it has none yet.
        send_to_agent: sends a message.
        exit_process: ends the process with this code, whatever hangs.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        running: Callable[[], Sequence[ReceiverTask]],
        close: Callable[[], int | None],
        send_to_agent: Callable[[Message], None],
        exit_process: Callable[[int], object],
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._running = running
        self._close = close
        self._send_to_agent = send_to_agent
        self._exit_process = exit_process
        self._clock = clock

    def end_process(self, hanging: Sequence[ReceiverTask]) -> bool:
        """Report the hanging receivers and drain the others, for a limited time; then end the process, whatever hangs.

        Return False and end nothing while no other process could take over, because a process needs the driver log to
        start, or when the receivers make progress again meanwhile.
        """
        before = [(one, one.progress.done, one.progress.failures) for one in hanging]
        if (why := self._why_none_can_take_over()) is not None:
            for one in hanging:
                one.progress.failed(why)
            return False
        # The server, or this machine, may have just resumed: give a pending question time to be answered.
        threading.Event().wait(CHECK_SECONDS)
        hanging = [
            one for one, done, failures in before if (one.progress.done, one.progress.failures) == (done, failures)
        ]
        if not hanging:
            return False
        process_id = self._close()
        tasks = [task for task in self._running() if task in hanging]
        done = threading.Semaphore(0)

        def aside(action: Callable[[], None], name: str) -> None:
            def act() -> None:
                try:
                    action()
                except Exception as error:  # noqa: BLE001  the process ends anyway
                    _log.warning("a process that hangs could not do all at its end", what=name, error=str(error))
                finally:
                    done.release()

            # Where no thread can be started, the waits below run into their time limits.
            with contextlib.suppress(RuntimeError, MemoryError):
                threading.Thread(target=act, name=name, daemon=True).start()

        deadline = self._clock.monotonic() + _LAST_SECONDS
        aside(lambda: self._give_up(tasks, process_id), "giving up")
        aside(lambda: self._drain_others(tasks, deadline), "draining")
        for _ in range(2):
            done.acquire(timeout=max(0.0, deadline - self._clock.monotonic()))
        # Last, because the agent then starts another process for them, whether or not this one can end.
        aside(lambda: self._report_hanging(tasks), "last line")
        done.acquire(timeout=_LAST_LINE_SECONDS)
        self._exit_process(ExitCode.HANGING)
        return True

    def _why_none_can_take_over(self) -> str | None:
        """Return why the driver log takes no new connection, or None where it does.

        A server that is stopped answers no other process either, and what waits for it resumes with it.
        """
        found: list[str | None] = []
        answered = threading.Event()

        def ask() -> None:
            try:
                with connect_once(self._url(), application_name="forebay receiver that may hang"):
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

    def _give_up(self, tasks: Sequence[ReceiverTask], process_id: int | None) -> None:
        try:
            with connect_once(self._url(), application_name="forebay receiver that hangs") as connection:
                for task in tasks:
                    if process_id is not None:
                        task.give_up(connection, process_id)
        finally:
            for task in tasks:
                _log.error(HANGING_MESSAGE, receiver_id=task.receiver_id, reason=task.hanging_reason)

    def _drain_others(self, tasks: Sequence[ReceiverTask], deadline: float) -> None:
        others = [task for task in self._running() if task not in tasks]
        for task in others:
            reason = f"receiver {tasks[0].receiver_id}, which shares this process, is hanging"
            task.end(Ending(ExitCode.FAILED, reason, drained=True, again=True))
        pause = threading.Event()
        while any(task in others for task in self._running()) and self._clock.monotonic() < deadline:
            pause.wait(0.05)

    def _report_hanging(self, tasks: Sequence[ReceiverTask]) -> None:
        for task in tasks:
            self._send_to_agent(Ended(task.receiver_id, task.assignment, ExitCode.HANGING, task.hanging_reason))

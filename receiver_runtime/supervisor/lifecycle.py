"""Hold the state of one receiver's supervisor, and what it is asked to do: restart, pause, end.

Any thread leaves a request here and returns. Only the supervisor's control thread acts on requests and moves the state.
"""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from receiver_runtime.supervisor.ending import Ending
from receiver_runtime.watching.exit_codes import ExitCode
from tracker_store.connection.errors import DriverLogError, ReceiverFencedError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from receiver_runtime.block_path.receiver_context import ReceiverContext
    from tracker_store.blocks.blocks import ControlResponse
    from tracker_store.schema.states import DesiredState


class SupervisorState(StrEnum):
    """Name the original's three states (S01)."""

    INITIALIZED = "Initialized"
    STARTED = "Started"
    STOPPED = "Stopped"


TRANSITIONS: Mapping[SupervisorState, frozenset[SupervisorState]] = {
    SupervisorState.INITIALIZED: frozenset({SupervisorState.STARTED}),
    SupervisorState.STARTED: frozenset({SupervisorState.STOPPED}),
    SupervisorState.STOPPED: frozenset({SupervisorState.STARTED}),
}


@dataclass(frozen=True, slots=True)
class RestartRequest:
    """Hold why a receiver asks for a restart, and its own delay in seconds, if it names one."""

    message: str
    error: BaseException | None
    delay: float | None


class ReceiverLifecycle:
    """Hold one receiver's lifecycle; see the module.

    Its condition is on the lock of the receiver's status: one lock guards both. The control thread holds it while it
    reads the fields below, and while it moves the state.
    """

    def __init__(self, context: ReceiverContext, desired_state: DesiredState) -> None:
        self._claim = context.claim
        self._assignment = context.assignment
        self._clock = context.clock
        #: Guards everything below.
        self.changed = threading.Condition(context.status.lock)
        self._state = SupervisorState.INITIALIZED
        self.desired = desired_state
        self.wanted_restart: RestartRequest | None = None
        self.wanted_end: Ending | None = None
        #: Why the driver log accepts nothing more of this epoch.
        self.refusal: BaseException | None = None
        self._older_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    # -- any thread --------------------------------------------------------------------------------------------------

    @property
    def state(self) -> SupervisorState:
        """Return the current state."""
        with self.changed:
            return self._state

    def is_older_than_start(self, thread: threading.Thread) -> bool:
        """Return whether a thread was there before the receiver was started last."""
        with self.changed:
            return thread in self._older_threads

    def request_restart(self, message: str, error: BaseException | None = None, delay: float | None = None) -> None:
        """Ask for a restart; return at once (R03, S05). Ignored unless Started, or if one is requested already."""
        with self.changed:
            if self._state is SupervisorState.STARTED and self.wanted_restart is None:
                self.wanted_restart = RestartRequest(message, error, delay)
                self.changed.notify_all()

    def stop(self, message: str, error: BaseException | None = None) -> None:
        """Ask for a drained end; return at once (S04). The first reason given counts."""
        code = ExitCode.STOPPED if error is None else ExitCode.FAILED
        self.end(Ending(code, message if error is None else f"{message}: {error}", drained=True))

    def end(self, ending: Ending) -> None:
        """Ask for this end; ``drained`` says whether to drain. Return at once."""
        with self.changed:
            self.wanted_end = ending if self.wanted_end is None else self.wanted_end
            self.changed.notify_all()

    # -- the driver log's answers, on the registrar's threads --------------------------------------------------------

    def refuse(self, error: BaseException) -> None:
        """Ask for an end without a drain: the driver log accepts nothing more of this epoch."""
        with self.changed:
            if self.refusal is not None:
                return
            self.refusal = error
            code = ExitCode.FENCED if isinstance(error, ReceiverFencedError) else ExitCode.FAILED
            # This replaces an end that was to drain: the driver log would accept nothing of what is drained.
            self.wanted_end = Ending(code, str(error), drained=False, again=code is ExitCode.FAILED)
            self.changed.notify_all()

    def apply(self, response: ControlResponse) -> None:
        """Note what the receiver is to do."""
        with self.changed:
            if self.desired is not response.desired_state:
                self.desired = response.desired_state
                self.changed.notify_all()
        if None not in (response.server, self._claim.server) and response.server != self._claim.server:
            # Blocks that the new server lacks are refused, and what this process holds is registered or salvaged.
            error = DriverLogError(
                f"the claim of epoch {self._claim.epoch} was answered by {self._claim.server}, and now "
                f"{response.server} answers (system identifier/timeline)",
                "Claim again and salvage what it may lack: the driver log is on another server or timeline now.",
            )
            self.end(Ending(ExitCode.FAILED, str(error), drained=True, again=True))
        if response.assignment > self._assignment:
            reason = f"moved: assignment {response.assignment} replaces ours"
            self.end(Ending(ExitCode.FENCED, reason, drained=True, moved=True))

    # -- the control thread ------------------------------------------------------------------------------------------

    def move(self, to: SupervisorState) -> None:
        """Move the state. The lock is held."""
        if to not in TRANSITIONS[self._state]:
            raise RuntimeError(
                f"{self._state} -> {to}: No transition joins the two states between which a supervisor moved: this is "
                "a bug, please report it."
            )
        if to is SupervisorState.STARTED:
            self._older_threads = weakref.WeakSet(threading.enumerate())
        self._state = to

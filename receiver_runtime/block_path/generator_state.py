"""Define the states of a block generator, and hold one generator's state with the lock of all its parts."""

from __future__ import annotations

import threading
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from receiver_runtime.block_path.load.block_threads import BlockThreads
    from receiver_runtime.sources.receiver_settings import ReceiverSettings
    from receiver_runtime.watching.clock import Clock


class GeneratorState(StrEnum):
    """Name the original's five states, in order (B01)."""

    INITIALIZED = "Initialized"
    ACTIVE = "Active"
    STOPPED_ADDING_DATA = "StoppedAddingData"
    STOPPED_GENERATING_BLOCKS = "StoppedGeneratingBlocks"
    STOPPED_ALL = "StoppedAll"


# A stop goes through all of them; an abort moves from any state directly to the last.
TRANSITIONS: Mapping[GeneratorState, frozenset[GeneratorState]] = {
    GeneratorState.INITIALIZED: frozenset({GeneratorState.ACTIVE, GeneratorState.STOPPED_ALL}),
    GeneratorState.ACTIVE: frozenset({GeneratorState.STOPPED_ADDING_DATA, GeneratorState.STOPPED_ALL}),
    GeneratorState.STOPPED_ADDING_DATA: frozenset(
        {GeneratorState.STOPPED_GENERATING_BLOCKS, GeneratorState.STOPPED_ALL}
    ),
    GeneratorState.STOPPED_GENERATING_BLOCKS: frozenset({GeneratorState.STOPPED_ALL}),
    GeneratorState.STOPPED_ALL: frozenset(),
}


class GeneratorStateError(RuntimeError):
    """Block generators start once, take data while Active, and end: this one is not in a state for the call."""


class GeneratorLifecycle:
    """Hold one generator's state, and what its parts share: the lock, the threads, the clock.

    The generator, its cutter and its queue guard what they own by this one lock.

    Args:
        threads: run the timer, and what takes long.
        is_sharing: whether other generators use the threads too.
        on_death: called with an error that ended one of the roles.
    """

    def __init__(
        self,
        settings: ReceiverSettings,
        threads: BlockThreads,
        *,
        is_sharing: bool,
        clock: Clock,
        on_death: Callable[[BaseException], None],
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.is_sharing = is_sharing
        self._threads = threads
        self._on_death = on_death
        #: Entering it takes a third of the time of entering the condition.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.state = GeneratorState.INITIALIZED
        self.is_aborted = False

    def submit(self, action: Callable[[], object]) -> None:
        """Have an action done on a push thread."""
        self._threads.submit(action, on_death=self._on_death)

    def at(self, moment: float, action: Callable[[], float | None]) -> None:
        """Have an action done on the timer; see ``BlockThreads.at``."""
        self._threads.at(moment, action, on_death=self._on_death)

    def require_active(self) -> None:
        """Raise GeneratorStateError in another state than Active."""
        if self.state is not GeneratorState.ACTIVE:
            raise GeneratorStateError(f"the block generator takes no data, it is {self.state}")

    def move(self, to: GeneratorState) -> None:
        """Move to a state. The lock is held."""
        if to not in TRANSITIONS[self.state]:
            raise GeneratorStateError(f"a block generator that is {self.state} can't become {to}")
        self.state = to

    def move_unless_ended(self, to: GeneratorState) -> None:
        """Move to a state, unless an abort came first. The lock is held."""
        if self.state is not GeneratorState.STOPPED_ALL:
            self.move(to)

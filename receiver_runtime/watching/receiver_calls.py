"""Watch calls between a supervisor and a receiver, in both directions, so that a receiver that hangs blocks nothing.

``WatchedCall`` is one call of the supervisor into the receiver's own code; ``InFlightCalls`` are the receiver's calls
into the supervisor with records. Neither decides anything: they only show what is going on.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from receiver_runtime.watching.clock import Clock


class WatchedCall:
    """Make one call on a thread of its own. The thread is a daemon: if it never returns, it ends with the process.

    Args:
        action: the receiver's code.
        name: of the thread.
        on_error: called on that thread when the call raises, before it counts as returned.
    """

    def __init__(
        self, action: Callable[[], None], *, name: str, clock: Clock, on_error: Callable[[BaseException], None]
    ) -> None:
        self._action = action
        self._clock = clock
        self._on_error = on_error
        self._changed = threading.Condition()
        self._returned = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Make the call; return at once."""
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait until the call has returned or raised, for at most these seconds; return whether it has."""
        deadline = self._clock.monotonic() + seconds
        with self._changed:
            while not self._returned and (left := deadline - self._clock.monotonic()) > 0:
                self._clock.wait_on(self._changed, left)
            return self._returned

    def _run(self) -> None:
        try:
            self._action()
        except BaseException as error:  # noqa: BLE001  whatever it is, it is handed on; nothing of ours is above
            self._on_error(error)
        finally:
            with self._changed:
                self._returned = True
                self._changed.notify_all()


class InFlightCalls:
    """Record which of the receiver's threads are inside the supervisor with records, and since when.

    Each thread has one entry. Used as a context around each hand-over. It takes no lock, because there is one hand-over
    for every record.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[int, float] = {}

    def __enter__(self) -> None:
        self._since[threading.get_ident()] = self._clock.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._since.pop(threading.get_ident(), None)

    def any_since(self, moment: float) -> bool:
        """Return whether the receiver waits for the supervisor in a hand-over that began at ``moment`` or before."""
        return any(since <= moment for since in list(self._since.values()))


def wait_for_calls(calls: list[WatchedCall], seconds: float, *, in_flight: InFlightCalls, clock: Clock) -> bool:
    """Wait until all calls have returned; return whether they have.

    Waits for at most these seconds, not counting the time in which the receiver itself waits for the supervisor: a
    source's last records are handed on however long the driver log is unavailable.
    """
    left = seconds
    for call in calls:
        while not call.wait(0):
            if left <= 0:
                return False
            began = clock.monotonic()
            returned = call.wait(min(left, seconds / 10))
            if not returned and not in_flight.any_since(began):
                left -= clock.monotonic() - began
    return True

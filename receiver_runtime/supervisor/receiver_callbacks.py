"""Call a receiver's ``on_start``, ``on_stop`` and ``on_pause`` on threads of their own, for limited times.

An ``on_start`` that blocks is reported and left running. An ``on_stop`` that hangs is reported, and is waited for no
longer. Decides nothing about what follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.watching.receiver_calls import WatchedCall, wait_for_calls

if TYPE_CHECKING:
    from collections.abc import Callable

    from receiver_runtime.block_path.receiver_context import ReceiverContext
    from receiver_runtime.supervisor.lifecycle import ReceiverLifecycle
    from receiver_runtime.supervisor.receiver import Receiver
    from receiver_runtime.watching.receiver_calls import InFlightCalls


class ReceiverCallbacks:
    """Call one receiver's own code. Only the control thread uses it.

    Args:
        in_flight: the time in which the receiver waits in one of them does not count against it.
    """

    def __init__(
        self, receiver: Receiver, context: ReceiverContext, lifecycle: ReceiverLifecycle, *, in_flight: InFlightCalls
    ) -> None:
        self._receiver = receiver
        self._receiver_id = context.receiver_id
        self._settings = context.settings
        self._reporter = context.reporter
        self._clock = context.clock
        self._lifecycle = lifecycle
        self._in_flight = in_flight
        # The newest on_start.
        self._on_start: WatchedCall | None = None
        #: Whether an ``on_stop`` did not return: the receiver's code may still do anything.
        self.stop_hung = False
        #: Whether the receiver is paused and keeps its address: on_start or on_stop is to follow.
        self.address_kept = False

    def start(self) -> None:
        """Call ``on_start``; return when it has returned, or its time is over."""
        self.address_kept = False
        self._on_start = self._call(self._receiver.on_start, self._on_start_failed)
        if not self._on_start.wait(self._settings.receiver_start_timeout):
            self._reporter.error(
                f"on_start has not returned after {self._settings.receiver_start_timeout:g} s and is left to run on: "
                "it must not block, start a thread in it"
            )

    def stop(self, *, was_started: bool, pausing: bool) -> bool:
        """Call ``on_stop``, or ``on_pause`` where it is ``pausing``; return False if that hangs."""
        self.address_kept = False
        calls = [self._call(self._receiver.on_pause if pausing else self._receiver.on_stop, self._on_stop_failed)]
        if was_started and self._on_start is not None:
            calls.append(self._on_start)
        returned = wait_for_calls(
            calls, self._settings.receiver_stop_timeout, in_flight=self._in_flight, clock=self._clock
        )
        self.address_kept = pausing and returned
        if not returned:
            self.stop_hung = True
            self._reporter.error(
                f"on_stop has not returned after {self._settings.receiver_stop_timeout:g} s, it is waited for no "
                "longer: what was handed over is stored, what the receiver still holds is lost"
            )
        return returned

    def _on_start_failed(self, error: BaseException) -> None:
        self._lifecycle.request_restart("Error starting receiver", error)

    def _on_stop_failed(self, error: BaseException) -> None:
        self._reporter.error("Error stopping receiver", error)

    def _call(self, action: Callable[[], None], on_error: Callable[[BaseException], None]) -> WatchedCall:
        name = f"receiver {self._receiver_id} {action.__name__}"
        call = WatchedCall(action, name=name, clock=self._clock, on_error=on_error)
        call.start()
        return call

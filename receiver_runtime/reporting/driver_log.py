"""Call the driver log for the data plane, apart from the registrar: each call is repeated until it is answered.

Owns the waiting: an unavailable driver log delays the caller, with bounded backoff, and is no error for the caller. It
must never wait on after the process was told to give up (``give_up``), and never retry what the driver log refuses for
good.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

import structlog

from receiver_runtime.watching.backoff import Backoff
from receiver_runtime.watching.clock import Clock
from receiver_runtime.watching.progress import Progress
from tracker_store.connection.engine import connect
from tracker_store.connection.until_answered import until_answered

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa

    from receiver_runtime.reporting.receiver_status import ReceiverStatus

_log = structlog.get_logger(__name__)

T = TypeVar("T")

FIRST_DELAY = 0.1
LONGEST_DELAY = 2.0

#: Seconds. A cut connection is restored sooner; a longer outage is reported to operators.
REPORT_AFTER = 1.0


class GivenUpError(Exception):
    """Nothing to do: the process is ending at once, so this call to the driver log was not made again."""


class DriverLog:
    """Make calls on the driver log until they are answered. Safe from any thread.

    Use it only for idempotent statements: each must change nothing if it was done already.
    """

    def __init__(
        self,
        engine: sa.Engine,
        *,
        clock: Clock | None = None,
        progress: Progress | None = None,
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare. Failed calls are counted in `progress`; `on_answer` is called for each call that was answered."""
        self._engine = engine
        self._progress = progress or Progress()
        self._on_answer = on_answer
        self._clock = clock or Clock()
        self._wakened = threading.Condition()
        self._gave_up = False

    def give_up(self) -> None:
        """End every wait, now and later, with GivenUpError."""
        with self._wakened:
            self._gave_up = True
            self._wakened.notify_all()

    def pause(self, seconds: float) -> None:
        """Wait between two attempts at something else. Raises GivenUpError as soon as the process is ending at once."""
        self._wait(seconds)
        with self._wakened:
            if self._gave_up:
                raise GivenUpError(GivenUpError.__doc__)

    def once(self, statement: Callable[[sa.Connection], T]) -> T:
        """Make a call once. Raises what it raises, and DriverLogUnavailableError if there is no connection."""
        with connect(self._engine) as connection:
            return statement(connection)

    def until_answered(
        self, what: str, statement: Callable[[sa.Connection], T], *, status: ReceiverStatus | None = None
    ) -> T:
        """Make a call, and repeat it while the driver log is unavailable; return the answer.

        Args:
            what: names the call in messages, for example "open a segment".
            status: shows it when the answer takes long, and again when it has come.

        Raises:
            GivenUpError: the process is ending at once.
            Exception: the driver log refused the call for good.
        """
        backoff = Backoff(FIRST_DELAY, LONGEST_DELAY)
        began = self._clock.monotonic()
        reported = False

        def ask() -> T:
            with self._wakened:
                if self._gave_up:
                    raise GivenUpError(f"{what}: {GivenUpError.__doc__}")
            return self.once(statement)

        def on_failure(error: Exception, _: float) -> None:
            nonlocal reported
            self._progress.failed(f"the driver log does not {what}: {error}")
            if backoff.failures == 1:
                _log.warning("the driver log is unavailable, trying again", call=what, error=str(error))
            if status is not None and not reported and self._clock.monotonic() - began >= REPORT_AFTER:
                reported = True
                status.driver_log_unavailable(what, error)

        answer = until_answered(ask, delay=backoff.next_delay, on_failure=on_failure, pause=self._wait)
        self._on_answer()
        if backoff.failures:
            _log.info("the driver log is available again", call=what, attempts=backoff.failures + 1)
        if status is not None and reported:
            status.driver_log_available(what, self._clock.monotonic() - began)
        return answer

    def _wait(self, seconds: float) -> None:
        """Wait; return early when the process is told to give up."""
        deadline = self._clock.monotonic() + seconds
        with self._wakened:
            while not self._gave_up and (left := deadline - self._clock.monotonic()) > 0:
                self._clock.wait_on(self._wakened, left)

"""Wrap a receiver's reporter and log its failures: a report that fails must not change what the receiver does."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.watching.descriptors import explain
from tracker_store.long_texts import stored
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from receiver_runtime.reporting.receiver_reporter import ReceiverReporter
    from tracker_store.schema.states import ReceiverState

# Characters of an error: with the words before it, it has room in an event, whose message loses the end at 2,000.
_LONGEST = 1_500

_log = structlog.get_logger(__name__)


class UnfailingReporter:
    """Report without ever raising. Any thread."""

    def __init__(self, reporter: ReceiverReporter, *, receiver_id: int) -> None:
        self._reporter = reporter
        self._receiver_id = receiver_id

    def state(self, state: ReceiverState, reason: str) -> None:
        """Report a state and its reason."""
        self._report(partial(self._reporter.state, state, reason))

    def reason(self, reason: str) -> None:
        """Report why the state is as it is."""
        self._report(partial(self._reporter.reason, reason))

    def event(self, kind: ReceiverEventKind, message: str, detail: str = "") -> None:
        """Report an event."""
        self._report(partial(self._reporter.event, kind, message, detail))

    def error(self, message: str, error: BaseException | None = None) -> None:
        """Report an event ERROR. The reporter logs it too, and counts its repeats instead of logging each."""
        self.event(ReceiverEventKind.ERROR, message, describe(error))

    def warning(self, message: str, error: BaseException | None) -> None:
        """Log a warning."""
        with suppress(Exception):
            _log.warning(message, receiver_id=self._receiver_id, error=describe(error))

    @staticmethod
    def _report(call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001  logged
            with suppress(Exception):
                _log.exception("a report failed")


def describe(error: BaseException | None) -> str:
    """Return an error's type and message, explained where that helps; nothing for None."""
    return "" if error is None else stored(f"{type(error).__name__}: {explain(error)}", _LONGEST)

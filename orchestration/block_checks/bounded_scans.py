"""Looks at several things that may hang, with one deadline for all.

Owns the deadline and the list of what did not answer. It never waits longer, and never ends a look that hangs: with a
stopped server or a dead mount the look's thread, a daemon, stays until the process ends.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.exc import DBAPIError

from tracker_store.connection.engine import server_said
from tracker_store.connection.errors import DriverLogError

if TYPE_CHECKING:
    from collections.abc import Callable

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Name a part that gave no answer, and why."""

    part: str
    reason: str


class BoundedScans:
    """Start each look in its own thread, then collect the answers that come by the deadline. Not thread-safe."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Set the deadline `seconds` from now; `clock` is monotonic, in seconds."""
        self._seconds = seconds
        self._clock = clock
        self._deadline = clock() + seconds
        self._scans: list[tuple[str, Future[Any], Future[Any] | None]] = []

    def left(self) -> float:
        """Return the seconds until the deadline, at least 0."""
        return max(0.0, self._deadline - self._clock())

    def start(self, part: str, look: Callable[[], Found], *, needs: Future[Any] | None = None) -> Future[Found]:
        """Run `look` in a thread; `part` names it for people.

        needs: a look whose answer this one needs; if that one fails, this one is not reported as well.
        """
        future: Future[Found] = Future()

        def run() -> None:
            try:
                future.set_result(look())
            except Exception as error:  # noqa: BLE001  any error: the other looks go on
                future.set_exception(error)

        self._scans.append((part, future, needs))
        threading.Thread(target=run, name=f"look at {part}", daemon=True).start()
        return future

    def unreachable(self) -> list[Unreachable]:
        """Wait until every look has answered, at most until the deadline; return those that did not."""
        wait([future for _, future, _ in self._scans], timeout=self.left())
        return [
            Unreachable(part, self._reason(future))
            for part, future, needs in self._scans
            if not has_answer(future) and (needs is None or has_answer(needs))
        ]

    def _reason(self, future: Future[Any]) -> str:
        if not future.done():
            return f"no answer within {self._seconds:.1f} s"
        error = future.exception()
        assert error is not None
        return _said(error)


def answer(future: Future[Found]) -> Found | None:
    """Return what a look has found; None if it has not answered."""
    return future.result() if has_answer(future) else None


def has_answer(future: Future[Any]) -> bool:
    """Return whether a look has answered, and not failed."""
    return future.done() and future.exception() is None


def _said(error: BaseException) -> str:
    """Return the error for people, on one line: without the SQL statement and without advice to its authors."""
    if isinstance(error, DBAPIError):
        return server_said(error.orig)
    if isinstance(error, DriverLogError):
        return " ".join((error.detail or str(error)).split())
    line = " ".join(str(error).split())
    return line if isinstance(error, OSError) else f"{type(error).__name__}: {line}"

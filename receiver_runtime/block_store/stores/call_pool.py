"""Make calls that may hang on threads of their own, so that no caller waits longer than a time-out.

A thread can't be stopped: after its caller gave up, it stays until the system answers. So the number of threads is
bounded, and if all of them hang, a new call is refused at once. Threads end when they have nothing to do.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_IDLE_SECONDS = 10.0


class CallsHangError(OSError):
    """Earlier calls were not answered in time and still are not."""


class CallPool:
    """Run calls on at most ``limit`` threads. With a limit of 1, calls run in the order of their submission."""

    def __init__(self, name: str, *, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Future[object], Callable[[], object]]] = deque()
        self._threads = 0
        self._idle = 0
        self._given_up: set[Future[object]] = set()

    @property
    def threads(self) -> int:
        """Return how many threads there are now."""
        with self._changed:
            return self._threads

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Have a call made. Raises CallsHangError if every thread hangs in a call that was given up."""
        future: Future[T] = Future()
        with self._changed:
            if len(self._given_up) >= self._limit:
                raise CallsHangError(f"{self._name}: {len(self._given_up)} earlier calls have not been answered yet")
            self._waiting.append((future, call))  # type: ignore[arg-type]
            if self._idle >= len(self._waiting):
                self._changed.notify()
            elif self._threads < self._limit:
                self._threads += 1
                threading.Thread(target=self._work, name=self._name, daemon=True).start()
        return future

    def wait(self, future: Future[T], seconds: float) -> T:
        """Return a call's result. Raises what it raised, or TimeoutError after ``seconds``, which gives the call up."""
        try:
            return future.result(max(0.0, seconds))
        except TimeoutError:
            if future.done():
                return future.result()
            self._give_up(future)
            raise TimeoutError(f"{self._name}: no answer in {seconds:g} s") from None

    def call(self, call: Callable[[], T], seconds: float) -> T:
        """Submit a call and wait for it."""
        return self.wait(self.submit(call), seconds)

    def _give_up(self, future: Future[T]) -> None:
        with self._changed:
            if not future.cancel() and not future.done():
                self._given_up.add(future)  # type: ignore[arg-type]

    def _work(self) -> None:
        while (job := self._next()) is not None:
            future, call = job
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001  given to the caller that waits
                future.set_exception(error)
            # In this order: a caller that gives up first checks whether the call is done, then adds it.
            with self._changed:
                self._given_up.discard(future)
            # A thread that waits for its next call must hold nothing of the last.
            del job, future, call

    def _next(self) -> tuple[Future[object], Callable[[], object]] | None:
        with self._changed:
            self._idle += 1
            try:
                if not self._waiting:
                    self._changed.wait(_IDLE_SECONDS)
                if self._waiting:
                    return self._waiting.popleft()
                self._threads -= 1
                return None
            finally:
                self._idle -= 1

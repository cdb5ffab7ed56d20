"""Wait for a state by polling, never by a sleep that is hoped to be long enough."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess
    from threading import Thread

_DEADLINE_SECONDS = 60.0
_STEP_SECONDS = 0.01


def eventually(
    predicate: Callable[[], object], what: str, *, seconds: float = _DEADLINE_SECONDS, step: float = _STEP_SECONDS
) -> None:
    """Return as soon as `predicate` is true; fail after `seconds`, naming `what` did not come."""
    deadline = time.monotonic() + seconds
    while not predicate():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}, in vain"
        time.sleep(step)


def joined(thread: Thread | BaseProcess, seconds: float = 60.0) -> None:
    """Wait for the end of a thread or process; fail if it goes on."""
    thread.join(seconds)
    assert not thread.is_alive(), f"{thread.name} still runs after {seconds:g} s"

"""Wait for a state by polling, never by a sleep that is hoped to be long enough."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

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

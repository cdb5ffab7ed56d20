"""Run `forebay status` again and again, as an operator does, and record each answer and how long it took."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

_ROOT = Path(__file__).parents[2]
_EVERY_SECONDS = 7.0
_GIVE_UP_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Poll:
    """One answer. `code`: None if none came; `at`: on the monotonic clock; `load`: the machine's load per core."""

    at: float
    seconds: float
    code: int | None
    said: str
    load: float

    @property
    def is_clear(self) -> bool:
        """Return whether the answer is meant for people: a report, or a sentence that says what is wrong."""
        # A report may contain the traceback of a batch that failed.
        return self.code == 0 or (self.code is not None and bool(self.said) and "Traceback (most" not in self.said)


class StatusPolls:
    """Poll while entered."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="status", daemon=True)
        self.polls: list[Poll] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(_GIVE_UP_SECONDS + 5)

    def _poll(self) -> None:
        while not self._ended.wait(_EVERY_SECONDS):
            begun = time.monotonic()
            code: int | None = None
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "forebay.cli", "status", "--json"],
                    cwd=_ROOT,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=_GIVE_UP_SECONDS,
                    check=False,
                )
                code, said = done.returncode, done.stdout + done.stderr
            except subprocess.TimeoutExpired:
                said = ""
            load = os.getloadavg()[0] / (os.cpu_count() or 1)
            self.polls.append(Poll(begun, time.monotonic() - begun, code, said, round(load, 2)))

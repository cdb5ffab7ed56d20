"""End the process of a test that outlives its time-out, and print where each of its threads was.

A time-out raises an error once, in Python. That has no effect while a call in C waits, as for the lock of a statement,
nor when what the test does at its end waits for a thread, and fixtures may not count. The run would wait until its step
is killed, and would not say where. So the process ends here: this test failed, and another process goes on.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

# Past its time-out: for fixtures that are not counted, and for what a test does when it has failed.
MORE_SECONDS = 240.0


class Watchdog:
    """A plugin of pytest."""

    def __init__(self, more_seconds: float = MORE_SECONDS) -> None:
        """Keep standard error as it is now: later it is captured for each test."""
        self._more_seconds = more_seconds
        self._output = os.dup(sys.stderr.fileno())
        # None between tests: the collection of a file may fail too.
        self._deadline: float | None = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Watch a test with its fixtures."""
        marker = item.get_closest_marker("timeout")
        limit = float(marker.args[0] if marker is not None else item.config.getini("timeout"))
        self._deadline = time.monotonic() + limit + self._more_seconds
        self._watch()
        try:
            return (yield)
        finally:
            self._deadline = None
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self) -> None:
        """Watch what follows a failure: there is one such timer, and pytest's own plugin has just cancelled it."""
        self._watch()

    def _watch(self) -> None:
        if self._deadline is not None:
            left = max(self._deadline - time.monotonic(), 1.0)
            faulthandler.dump_traceback_later(left, exit=True, file=self._output)

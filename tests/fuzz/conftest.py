"""Share the minutes of `make fuzz` among the targets."""

from __future__ import annotations

import os

import pytest

from tests.fuzz.target import SECONDS

_MINUTES = "FOREBAY_FUZZ_MINUTES"
_SHRINKING = 300  # seconds, besides a target's own: making smaller what was found


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each target its part of the minutes, and so much time more."""
    minutes = float(os.environ.get(_MINUTES, "0"))
    if not minutes or not items:
        return
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    seconds = minutes * 60 * workers / len(items)
    os.environ[SECONDS] = str(seconds)
    for item in items:
        item.add_marker(pytest.mark.timeout(seconds + _SHRINKING))

"""One running system with data in it for all tests here, and a real Chromium that shows its pages."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import sync_playwright

from tests.e2e.pages import Pages
from tests.support.machine.state_directory import state_directory
from tests.support.systems.numbered_source import NumberedSource
from tests.support.systems.running_system import running_system

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

    from tests.support.systems.running_system import RunningSystem
    from tracker_store.reports.status import BatchStats

# The directory for screenshots, for people who check a CI run.
SCREENSHOTS = Path(os.environ.get("E2E_SCREENSHOTS", Path(__file__).parents[2] / "build" / "screenshots"))
_PLOTTED = 4
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
# Without these options, a browser in a closed network sends many requests to its vendor's hosts.
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Start Debian's Chromium; playwright's own is not downloaded."""
    path = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if path is None:
        pytest.fail("there is no Chromium on PATH: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(OPTIONS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def system() -> Iterator[RunningSystem]:
    """Start a pipeline that has completed batches, and one whose first batch was quarantined."""
    with (
        state_directory() as home,
        NumberedSource() as source,
        # Any free port: the tracker of another system may have its usual one.
        running_system(home, source, "tests.e2e.pages_pipeline", FOREBAY_TRACKER_HTTP="127.0.0.1:0") as system,
    ):
        system.receive(1000)
        # Enough for a line in each chart.
        system.until("batches to plot", lambda: len(_completed(system)) >= _PLOTTED, 300)
        system.source.pause()
        system.until("a batch that was given up", lambda: "QUARANTINED" in _states(system, "brittle"), 150)
        system.until("completed batches", lambda: "COMPLETED" in _states(system, "numbered"), 150)
        yield system


def _completed(system: RunningSystem) -> list[BatchStats]:
    return [row for row in system.batches() if (row.pipeline, row.state) == ("numbered", "COMPLETED") and row.records]


def _states(system: RunningSystem, pipeline: str) -> set[str]:
    return {row.state for row in system.batches() if row.pipeline == pipeline and row.records}


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """Return the directory for screenshots."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return SCREENSHOTS


@pytest.fixture
def pages(browser: Browser, system: RunningSystem, screenshots: Path) -> Iterator[Pages]:
    """Open the UI in a new window."""
    context = browser.new_context(viewport={"width": 1600, "height": 1000})
    page = context.new_page()
    # As a person does: the link leaves a cookie.
    page.goto(system.ui_link)
    yield Pages(page, system.ui_url, screenshots)
    context.close()

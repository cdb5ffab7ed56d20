"""Drive Dagster's pages as an operator does: open one, wait for a text, take a screenshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

# In seconds. Dagster's pages load their data in steps, on a machine that also runs Spark beside the browser.
SECONDS = 60.0


class Pages:
    """One browser window; every page that is asserted on leaves a screenshot."""

    def __init__(self, page: Page, url: str, screenshots: Path) -> None:
        self.page = page
        self._url = url
        self._screenshots = screenshots

    def open(self, path: str) -> None:
        """Open a page of the UI."""
        self.page.goto(f"{self._url}{path}", timeout=SECONDS * 1000)

    def shows(self, *texts: str) -> None:
        """Wait until each text is visible."""
        for text in texts:
            expect(self.page.get_by_text(text).locator("visible=true").first).to_be_visible(timeout=SECONDS * 1000)

    def picture(self, name: str) -> None:
        """Save a screenshot as NAME.png."""
        self.page.screenshot(path=self._screenshots / f"{name}.png")

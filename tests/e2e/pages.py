"""Dagster's pages as an operator sees them: go to one, wait for a text, take its picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

# Dagster's pages ask for their data in steps, on a machine that runs Spark beside the browser.
SECONDS = 60.0


class Pages:
    """One browser window; every page that is asserted on leaves a picture."""

    def __init__(self, page: Page, url: str, screenshots: Path) -> None:
        self.page = page
        self._url = url
        self._screenshots = screenshots

    def open(self, path: str) -> None:
        """Go to a page of the UI."""
        self.page.goto(f"{self._url}{path}", timeout=SECONDS * 1000)

    def shows(self, *texts: str) -> None:
        """Wait until each text is to be seen."""
        for text in texts:
            expect(self.page.get_by_text(text).locator("visible=true").first).to_be_visible(timeout=SECONDS * 1000)

    def picture(self, name: str) -> None:
        """Keep what is to be seen as NAME.png."""
        self.page.screenshot(path=self._screenshots / f"{name}.png")

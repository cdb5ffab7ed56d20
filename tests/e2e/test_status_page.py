"""Look at the status page of a running system in a real browser: figures, links, sorting, accessibility."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from orchestration.status_page import addresses, shown
from tests.e2e.pages import SECONDS, Pages
from tracker_store.connection.engine import connect
from tracker_store.reports import status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

    from tests.support.systems.running_system import RunningSystem

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
# axe-core 4.14.1 of npm, with its licence beside it.
AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1400, "height": 1000}


@pytest.fixture
def status_pages(
    browser: Browser, system: RunningSystem, screenshots: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[Pages, str]]:
    """Open the page in a new window, in which each message of the browser about an error is a failure."""
    url = (system.home / "run" / "tracker.url").read_text().strip()
    context = browser.new_context(
        viewport=PHONE if request.param == "phone" else DESKTOP,  # type: ignore[arg-type]
        color_scheme="dark" if request.param == "dark" else "light",
    )
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    yield Pages(page, url, screenshots), request.param
    context.close()
    assert said == []


def check(pages: Pages) -> None:
    """Check that axe-core finds nothing wrong, and that the page is as wide as its window."""
    # Through the debugger: the page's own policy lets in no other script.
    found: list[dict[str, Any]] = pages.page.evaluate(
        f"() => {{ {AXE}; return axe.run().then((all) => all.violations); }}"
    )
    assert [f"{each['id']}: {json.dumps(each['nodes'])[:500]}" for each in found] == []
    assert pages.page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("status_pages", ["light", "dark", "phone"], indirect=True)
def test_o02_all_pages_show_the_figures_of_the_views(status_pages: tuple[Pages, str], system: RunningSystem) -> None:
    pages, mode = status_pages
    with connect(system.engine) as connection:
        batches = [row for row in status.batch_stats(connection, limit=1000) if row.pipeline == "numbered"]
    done = next(row for row in batches if row.state == "COMPLETED" and row.records)
    pages.open("/")
    pages.shows("numbered", "brittle", "numbers", "QUARANTINED")
    check(pages)
    # One of the two pictures is drawn; its boxes are links.
    expect(pages.page.locator("svg.flow:visible")).to_have_count(1)
    expect(pages.page.locator("svg.flow:visible g.arrow")).to_have_count(5)
    pages.picture(f"status-overview-{mode}")
    pages.page.get_by_role("link", name=re.compile("^Stream numbers")).click()
    expect(pages.page).to_have_url(re.compile(re.escape(addresses.stream("numbers"))))
    pages.open("/")

    pages.page.get_by_role("link", name="numbered", exact=True).first.click()
    expect(pages.page).to_have_url(re.compile(re.escape(addresses.pipeline("numbered"))))
    for title in ("Input rate", "Scheduling delay", "Processing time", "Total delay"):
        pages.shows(title)
    expect(pages.page.locator(".timeline canvas")).to_have_count(4)
    check(pages)
    pages.picture(f"status-pipeline-{mode}")

    # Sorted by records, the largest are first.
    finished = pages.page.get_by_role("group", name="Finished batches")
    finished.get_by_role("link", name="Records", exact=True).click()
    rows = finished.locator("tbody tr")
    records = [int(text.replace(",", "")) for text in rows.locator("td:nth-child(2)").all_inner_texts()]
    assert records == sorted(records, reverse=True)
    assert records[0] == max(row.records for row in batches if row.state == "COMPLETED")

    pages.open(addresses.batch("numbered", done.batch_time))
    pages.shows(shown.moment(done.batch_time), shown.count(done.records), shown.span(done.processing_time), "seen")
    assert done.run_id
    run = pages.page.get_by_role("link", name="Dagster run").first
    assert run.get_attribute("href") == f"{system.ui_url}/runs/{done.run_id}"
    check(pages)
    pages.picture(f"status-batch-{mode}")

    pages.open(addresses.stream("numbers"))
    pages.shows("ACTIVE", "Dead letters")
    check(pages)
    pages.picture(f"status-stream-{mode}")

    pages.open(addresses.EVENTS)
    pages.shows("batch_completed")
    check(pages)
    pages.picture(f"status-events-{mode}")


@pytest.mark.parametrize("status_pages", ["light"], indirect=True)
def test_figures_are_reloaded_until_a_person_pauses(status_pages: tuple[Pages, str]) -> None:
    pages, _ = status_pages
    pages.open(addresses.ROOT)
    time = pages.page.locator("#freshness time")
    first = time.get_attribute("datetime")
    expect(time).not_to_have_attribute("datetime", str(first), timeout=SECONDS * 1000)
    pages.page.get_by_role("button", name="Pause").click()
    expect(pages.page.get_by_role("button", name="Continue")).to_be_visible()


def test_dagsters_asset_links_to_the_page(pages: Pages, system: RunningSystem) -> None:
    pages.open("/assets/numbered/batches?view=events")
    pages.shows("status_page")
    url = (system.home / "run" / "tracker.url").read_text().strip()
    assert pages.page.locator(f'a[href^="{url}{addresses.pipeline("numbered")}"]').count() > 0

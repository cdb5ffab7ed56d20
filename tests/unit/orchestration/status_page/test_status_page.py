"""Test what the status page shows of values: text, charts, addresses, and what it makes of a query."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from orchestration.declarations.settings import Settings
from orchestration.status_page import addresses, shown
from orchestration.status_page.addresses import DagsterPages
from orchestration.status_page.charts import charts, histogram, input_rate, pipeline_spark, stream_spark
from orchestration.status_page.rendering import POLICY, Renderer
from orchestration.status_page.requests import WINDOW, FinishedAsked, OpenAsked, position, whole
from orchestration.tracker.http.status_address import batch_page, pipeline_page, status_page
from tracker_store.reports.status_page import BatchOrder, FinishedState, PageBatch

if TYPE_CHECKING:
    from pathlib import Path

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
RUN = "0123abcd-0123-4567-89ab-0123456789ab"


def batch(number: int, *, records: int = 100, took: float | None = 4.0, merged: int = 0) -> PageBatch:
    time = NOON + number * 10 * SECOND
    started = None if took is None else time + SECOND
    processing = None if took is None else took * SECOND
    return PageBatch(
        pipeline_id=1,
        batch_time=time,
        oldest_time=time - merged * 10 * SECOND,
        state="COMPLETED",
        attempt=1,
        records=records,
        bytes=10,
        blocks=1,
        reason="",
        run_id=None,
        processing_started_at=started,
        completed_at=None if processing is None or started is None else started + processing,
        scheduling_delay=None if took is None else SECOND,
        processing_time=processing,
        total_delay=None if processing is None else SECOND + processing,
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, shown.NOTHING),
        (timedelta(0), "0 ms"),
        (timedelta(milliseconds=999.6), "1.0 s"),
        (timedelta(seconds=9.96), "10 s"),
        (timedelta(seconds=59.6), "1 min"),
        (timedelta(seconds=3725), "1 h 2 min"),
        (timedelta(days=2, hours=3), "2 d 3 h"),
        (timedelta(seconds=-3), "-3.0 s"),
        (0.25, "250 ms"),
    ],
)
def test_a_duration_has_its_two_largest_units(value: timedelta | float | None, text: str) -> None:
    assert shown.span(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1023 * 1024, "1.0 MiB"), (2**50, "1,024 TiB")],
)
def test_a_size_has_at_most_three_digits(value: int, text: str) -> None:
    assert shown.size(value) == text


def test_a_time_is_utc_and_a_future_one_is_now() -> None:
    assert shown.moment(NOON + timedelta(milliseconds=7)) == "2026-01-01 12:00:00.007"
    assert shown.since(NOON + SECOND, NOON) == "0 ms"
    assert shown.time_of(shown.milliseconds(NOON)) == NOON


def test_the_charts_of_o02_have_a_line_at_the_interval_and_a_gap_where_nothing_ran() -> None:
    found = {chart.key: chart for chart in charts([batch(1), batch(2, took=None, records=0), batch(3)], 10 * SECOND)}
    assert list(found) == ["input-rate", "scheduling-delay", "processing-time", "total-delay"]
    times, values = json.loads(found["processing-time"].data)
    assert values == [4.0, None, 4.0]
    assert times[0] == (NOON + 10 * SECOND).timestamp()
    assert found["processing-time"].line == 10.0
    assert found["total-delay"].line is None
    assert sum(bar.batches for bar in found["total-delay"].bars) == 2
    assert json.loads(found["input-rate"].data)[1] == [10.0, 0.0, 10.0]
    assert found["processing-time"].average == "4.0 s"


def test_a_small_timeline_shows_what_was_late_or_failed_and_a_gap_where_nothing_ran() -> None:
    failed = replace(batch(4, took=None), state="QUARANTINED")
    spark = pipeline_spark([batch(1), batch(2, took=None, records=0), batch(3, took=21.0), failed], 10 * SECOND)
    assert spark is not None
    assert spark.bars == [(5.0, "plain"), None, (22.0, "warn"), (22.0, "bad")]
    assert spark.said == "Total delay of the newest 4 batches: 5.0 s to 22 s, 1 quarantined"
    assert pipeline_spark([batch(1, took=None)], SECOND) is None
    only_failed = pipeline_spark([failed], SECOND)
    assert only_failed is not None
    assert only_failed.bars == [(22.0, "bad")]
    assert stream_spark([0.0, 0.0], "words") is None
    rates = stream_spark([0.0, 11.0, 22.0], "words")
    assert rates is not None
    assert [bar and bar[0] for bar in rates.bars] == [1.5, 11.0, 22.0]


def test_a_merged_batch_has_the_rate_of_all_its_intervals() -> None:
    assert input_rate(batch(5, records=300, merged=2), 10 * SECOND) == 10.0


@pytest.mark.parametrize("values", [[0.0], [1.0, 2.0, 10.0], [0.001] * 5, [1e6, 3.3]])
def test_a_histogram_counts_each_value_once_in_few_bars(values: list[float]) -> None:
    bars = histogram(values, str)
    assert sum(bar.batches for bar in bars) == len(values)
    assert len(bars) <= 11
    assert max(bar.share for bar in bars) == 1.0


def test_links_quote_names_and_lead_to_no_other_scheme() -> None:
    assert addresses.pipeline("a/b?c") == "/status/pipelines/a%2Fb%3Fc"
    assert addresses.batch("p", NOON).endswith(f"/batches/{shown.milliseconds(NOON)}")
    pages = DagsterPages("http://someone:secret@dagster.example:3000/ui/")
    assert pages.run(RUN) == f"http://dagster.example:3000/ui/runs/{RUN}"
    assert pages.run("forebay batches replay") is None
    assert DagsterPages("javascript:alert(1)").home is None
    assert DagsterPages(None).run(RUN) is None


def test_what_users_wrote_is_escaped_and_nothing_else_may_run() -> None:
    page = Renderer("host:1", DagsterPages(None)).page(
        "problem", 404, title="<script>alert(1)</script>", detail='"><img src=x onerror=alert(2)>'
    )
    text = bytes(page.body).decode()
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "&lt;script&gt;" in text
    assert page.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    # No script and no style is in the page itself, which the policy would refuse.
    assert " style=" not in text
    assert " onclick" not in text


@pytest.mark.parametrize("text", ["", "-1", "+1", "1_0", "٣", "9" * 30, str(2**63), None])
def test_what_is_no_number_is_none(text: str | None) -> None:
    assert whole(text) is None


def test_a_query_that_cannot_be_read_is_the_default() -> None:
    asked = FinishedAsked.of({"sort": "; DROP TABLE", "state": "RUNNING", "page": "x", "before": "9" * 18})
    assert asked.order is BatchOrder.TIME
    assert asked.state is None
    assert asked.before is None
    assert asked.page == 1
    assert set(asked.states) == set(FinishedState)
    assert FinishedAsked.of({"page": "99999999"}).page * 50 <= WINDOW
    assert position("5-6") == (5, 6)
    assert position("5") is None


def test_the_page_is_where_the_tracker_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_HOME", str(tmp_path))
    monkeypatch.setenv("FOREBAY_TRACKER_TOKEN", "x")
    for value, expected in (
        ("off", None),
        ("0.0.0.0:3070", "http://127.0.0.1:3070/status"),
        ("[::1]:81", "http://[::1]:81/status"),
        ("127.0.0.1:0", None),
    ):
        monkeypatch.setenv("FOREBAY_TRACKER_HTTP", value)
        assert status_page(Settings()) == expected
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tracker.url").write_text("http://127.0.0.1:5\n")
    assert pipeline_page(Settings(), "a b") == "http://127.0.0.1:5/status/pipelines/a%20b"
    assert batch_page(Settings(), "p", NOON) == f"http://127.0.0.1:5{addresses.batch('p', NOON)}"


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        ({}, [1, 2, 3]),
        ({"open": "batch_time"}, [3, 2, 1]),
        ({"open": "batch_time", "open_direction": "up"}, [1, 2, 3]),
        ({"open": "records"}, [2, 3, 1]),
        ({"open": "records", "open_direction": "up"}, [1, 3, 2]),
        ({"open": "scheduling_delay"}, [1, 3, 2]),
        ({"open": "total_delay"}, [1, 2, 3]),
        ({"open": "nonsense", "direction": "up"}, [1, 2, 3]),
    ],
    ids=str,
)
def test_open_batches_are_sorted_as_asked(query: dict[str, str], numbers: list[int]) -> None:
    # The second has not begun, and so no scheduling delay.
    batches = [batch(1, records=1), batch(2, records=3, took=None), batch(3, records=2)]
    times = [NOON + number * 10 * SECOND for number in numbers]
    assert [each.batch_time for each in OpenAsked.of(query).sorted(batches)] == times

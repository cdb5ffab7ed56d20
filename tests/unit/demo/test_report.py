"""Check what the demo prints: the right words for the right numbers."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from typing import TYPE_CHECKING

import pytest
from rich.console import Console, RenderableType

from forebay.demo import comparison, flights, report
from forebay.demo.comparison import RunningTotal
from forebay.demo.progress import BatchFacts, ProgressSnapshot, Timings

if TYPE_CHECKING:
    from forebay.demo.comparison import FlightTotals, GroupKey

TIMINGS = Timings(
    first_batch_completed=31.2,
    finished=88.8,
    records_per_second=5_599.6,
    batches=7,
    median_scheduling_delay=0.4,
    median_processing_time=None,
)


@pytest.fixture(scope="module")
def expected() -> dict[GroupKey, FlightTotals]:
    return comparison.expected_totals(flights.read_flights())


def running_of(totals: dict[GroupKey, FlightTotals]) -> dict[str | None, RunningTotal]:
    parts = {name: [part for (carrier, _), part in totals.items() if carrier == name] for name, _ in totals}
    return {
        name: RunningTotal(
            sum(part.flights for part in of_carrier),
            sum(part.departures for part in of_carrier),
            sum(part.delay_sum for part in of_carrier),
        )
        for name, of_carrier in parts.items()
    }


def rendered(renderable: RenderableType, width: int = 80) -> str:
    output = StringIO()
    Console(file=output, width=width, force_terminal=False).print(renderable)
    return output.getvalue()


def test_agreement_is_ok_in_every_row(expected: dict[GroupKey, FlightTotals]) -> None:
    result = comparison.compare(expected, expected, running_of(expected))
    text = rendered(report.comparison_table(result))
    assert text.count(f" {report.SAME} ") == 17
    assert all(len(line) <= 80 for line in text.splitlines()), "wider than a plain terminal"
    assert report.DIFFERENT not in text
    assert "58,665" in text
    assert "336,776" in text
    assert "35 of 35" in text
    assert report.verdict(result).startswith("OK")


def test_a_wrong_count_is_different_with_its_group(expected: dict[GroupKey, FlightTotals]) -> None:
    wrong = dict(expected)
    wrong["UA", "EWR"] = replace(wrong["UA", "EWR"], flights=46_086)
    result = comparison.compare(wrong, expected, running_of(expected))
    text = rendered(report.comparison_table(result), width=120)
    assert text.count(f"{report.DIFFERENT}: flights") == 3  # carrier, all, group
    assert "UA EWR" in text
    assert "34 of 35" in text
    assert report.verdict(result).startswith("DIFFERENT")
    assert "58,664 flights published, the known answer is 58,665" in report.verdict(result)
    assert report.as_json(result, TIMINGS)["same"] is False


def test_a_wrong_running_total_is_different_in_its_carrier(expected: dict[GroupKey, FlightTotals]) -> None:
    running = running_of(expected)
    running["UA"] = replace(running["UA"], flights=58_664)
    result = comparison.compare(expected, expected, running)
    text = rendered(report.comparison_table(result), width=120)
    assert text.count(report.DIFFERENT) == 2  # carrier and all
    assert "58,664" in text
    assert "35 of 35" in text
    assert report.verdict(result).startswith("DIFFERENT")
    assert "UA: the running total is 58,664 flights, the known answer is 58,665" in report.verdict(result)
    rows = {row["carrier"]: row["running_total"] for row in report.as_json(result, TIMINGS)["carriers"]}
    assert (rows["UA"], rows["OO"]) == (58_664, 32)


def test_the_timings_have_units(expected: dict[GroupKey, FlightTotals]) -> None:
    text = rendered(report.timings_table(TIMINGS))
    assert "31.2 s" in text
    assert "5,600/s" in text
    assert "-" in text


def test_progress_is_one_plain_line() -> None:
    look = ProgressSnapshot(
        at=65,
        expected=336_776,
        replayed=200_000,
        received=150_000,
        blocks=700,
        batches=(
            BatchFacts(datetime(2025, 1, 1, tzinfo=UTC), "COMPLETED", 50_000),
            BatchFacts(datetime(2025, 1, 2, tzinfo=UTC), "RUNNING", 40_000),
        ),
    )
    line = report.progress_line(look)
    assert "\n" not in line
    for words in ("01:05", "150,000 of 336,776", "700 blocks", "1 RUNNING, 1 COMPLETED", "lag 100,000"):
        assert words in line
    view = rendered(report.progress_view(look, "http://127.0.0.1:3000"))
    for words in ("http://127.0.0.1:3000", "150,000", "200,000", "700", "100,000"):
        assert words in view

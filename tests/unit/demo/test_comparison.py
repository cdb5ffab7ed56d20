"""Check the comparison with the known answer: it agrees with the right totals only, and says where totals differ."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.demo import comparison, flights
from forebay.demo.comparison import FlightTotals, GroupKey

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return flights.read_flights()


@pytest.fixture(scope="module")
def expected(table: pa.Table) -> dict[GroupKey, FlightTotals]:
    return comparison.expected_totals(table)


def as_published(table: pa.Table, path: Path, batches: int) -> None:
    """Write what the pipeline would publish for the table cut into `batches` batches."""
    size = -(-table.num_rows // batches)
    for number in range(batches):
        part = table.slice(number * size, size)
        grouped = part.group_by(["carrier", "origin"]).aggregate(
            [([], "count_all"), ("dep_delay", "count"), ("dep_delay", "sum"), ("dep_delay", "mean")]
        )
        renamed = pa.table(
            {
                "carrier": grouped["carrier"],
                "origin": grouped["origin"],
                "flights": grouped["count_all"],
                "departures": grouped["dep_delay_count"],
                "departure_delay_sum": grouped["dep_delay_sum"],
                "departure_delay_mean": grouped["dep_delay_mean"],
            }
        )
        folder = path / "date=2025-01-01" / "hour=00" / f"batch_time=2025-01-01T00-00-{number:02}Z"
        folder.mkdir(parents=True)
        pq.write_table(renamed, folder / "part-0.parquet")


def test_batches_add_up_exactly(table: pa.Table, expected: dict[GroupKey, FlightTotals], tmp_path: Path) -> None:
    path = tmp_path / ".forebay" / "_output"  # hidden parents hide nothing
    as_published(table, path, batches=7)
    result = comparison.compare(comparison.published_totals(comparison.read_published(path)), expected)
    assert result.problems == ()
    assert result.same
    assert result.exit_code == 0
    assert len(result.carriers) == 16
    assert len(result.groups) == 35
    by_name = {row.name: row.published.flights for row in result.carriers}
    assert (by_name["UA"], by_name["B6"], by_name["EV"]) == (58_665, 54_635, 54_173)
    assert result.total.published.delay_mean == pytest.approx(4_152_200 / 328_521, abs=1e-9)


def test_nothing_published_differs(expected: dict[GroupKey, FlightTotals], tmp_path: Path) -> None:
    published = comparison.read_published(tmp_path / "nothing")
    assert published.num_rows == 0
    result = comparison.compare(comparison.published_totals(published), expected)
    assert result.exit_code == 1
    assert "0 flights published, the known answer is 336,776" in result.problems


@pytest.mark.parametrize(
    "change",
    [
        {"flights": 1},
        {"flights": -1},
        {"departures": 1},
        {"delay_sum": 1},
        {"weighted_mean_sum": 0.1},
    ],
)
def test_one_wrong_number_is_a_difference(expected: dict[GroupKey, FlightTotals], change: dict[str, float]) -> None:
    name, step = next(iter(change.items()))
    published = dict(expected)
    before = published["UA", "EWR"]
    published["UA", "EWR"] = replace(before, **{name: getattr(before, name) + step})
    result = comparison.compare(published, expected)
    assert not result.same
    assert result.exit_code == 1
    assert [row.name for row in result.groups if not row.same] == ["UA EWR"]
    assert [row.name for row in result.carriers if not row.same] == ["UA"]


def test_errors_that_cancel_out_are_still_differences(expected: dict[GroupKey, FlightTotals]) -> None:
    published = dict(expected)
    for key, step in ((("UA", "EWR"), 1), (("UA", "JFK"), -1)):
        published[key] = replace(published[key], flights=published[key].flights + step)
    result = comparison.compare(published, expected)
    assert result.total.same
    assert all(row.same for row in result.carriers)
    assert result.exit_code == 1


def test_a_missing_group_and_a_further_group_differ(expected: dict[GroupKey, FlightTotals]) -> None:
    published = dict(expected)
    del published["OO", "EWR"]
    published[None, None] = FlightTotals()
    result = comparison.compare(published, expected)
    assert result.exit_code == 1
    assert {row.name for row in result.groups if not row.same} == {"OO EWR", "(unreadable) (unreadable)"}


def test_a_changed_data_file_is_found_by_the_constants(table: pa.Table) -> None:
    short = comparison.expected_totals(table.slice(0, 336_775))
    result = comparison.compare(short, short)
    assert all(row.same for row in result.groups)
    assert result.exit_code == 1
    assert any("336,775 flights in the data file" in problem for problem in result.problems)

"""Check the comparison with the known answer: it agrees with the right totals only, and says where totals differ."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.demo import comparison, flights
from forebay.demo.comparison import FlightTotals, GroupKey, RunningTotal

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return flights.read_flights()


@pytest.fixture(scope="module")
def expected(table: pa.Table) -> dict[GroupKey, FlightTotals]:
    return comparison.expected_totals(table)


@pytest.fixture(scope="module")
def running(expected: dict[GroupKey, FlightTotals]) -> dict[str | None, RunningTotal]:
    return running_of(expected)


def running_of(totals: dict[GroupKey, FlightTotals]) -> dict[str | None, RunningTotal]:
    found: dict[str | None, RunningTotal] = {}
    for (carrier, _), part in totals.items():
        before = found.get(carrier, RunningTotal())
        found[carrier] = RunningTotal(
            before.flights + part.flights, before.departures + part.departures, before.delay_sum + part.delay_sum
        )
    return found


def write_running(path: Path, batch: str, **totals: int) -> None:
    folder = path / f"date={batch.partition('T')[0]}" / "hour=00" / f"batch_time={batch}"
    folder.mkdir(parents=True)
    rows = [
        {"carrier": carrier, "flights": flights, "departures": flights, "departure_delay_sum": -flights}
        for carrier, flights in totals.items()
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "part-0.parquet")


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


def test_batches_add_up_exactly(
    table: pa.Table,
    expected: dict[GroupKey, FlightTotals],
    running: dict[str | None, RunningTotal],
    tmp_path: Path,
) -> None:
    path = tmp_path / ".forebay" / "_output"  # hidden parents hide nothing
    as_published(table, path, batches=7)
    result = comparison.compare(comparison.published_totals(comparison.read_published(path)), expected, running)
    assert result.problems == ()
    assert result.same
    assert result.exit_code == 0
    assert len(result.carriers) == 16
    assert len(result.groups) == 35
    by_name = {row.name: row.published.flights for row in result.carriers}
    assert (by_name["UA"], by_name["B6"], by_name["EV"]) == (58_665, 54_635, 54_173)
    assert result.total.published.delay_mean == pytest.approx(4_152_200 / 328_521, abs=1e-9)


def test_nothing_published_differs(
    expected: dict[GroupKey, FlightTotals], running: dict[str | None, RunningTotal], tmp_path: Path
) -> None:
    published = comparison.read_published(tmp_path / "nothing")
    assert published.num_rows == 0
    result = comparison.compare(comparison.published_totals(published), expected, running)
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
def test_one_wrong_number_is_a_difference(
    expected: dict[GroupKey, FlightTotals], running: dict[str | None, RunningTotal], change: dict[str, float]
) -> None:
    name, step = next(iter(change.items()))
    published = dict(expected)
    before = published["UA", "EWR"]
    published["UA", "EWR"] = replace(before, **{name: getattr(before, name) + step})
    result = comparison.compare(published, expected, running)
    assert not result.same
    assert result.exit_code == 1
    assert [row.name for row in result.groups if not row.same] == ["UA EWR"]
    assert [row.name for row in result.carriers if not row.same] == ["UA"]


def test_errors_that_cancel_out_are_still_differences(
    expected: dict[GroupKey, FlightTotals], running: dict[str | None, RunningTotal]
) -> None:
    published = dict(expected)
    for key, step in ((("UA", "EWR"), 1), (("UA", "JFK"), -1)):
        published[key] = replace(published[key], flights=published[key].flights + step)
    result = comparison.compare(published, expected, running)
    assert result.total.same
    assert all(row.same for row in result.carriers)
    assert result.exit_code == 1


def test_a_missing_group_and_a_further_group_differ(
    expected: dict[GroupKey, FlightTotals], running: dict[str | None, RunningTotal]
) -> None:
    published = dict(expected)
    del published["OO", "EWR"]
    published[None, None] = FlightTotals()
    result = comparison.compare(published, expected, running)
    assert result.exit_code == 1
    assert {row.name for row in result.groups if not row.same} == {"OO EWR", "(unreadable) (unreadable)"}


def test_a_changed_data_file_is_found_by_the_constants(table: pa.Table) -> None:
    short = comparison.expected_totals(table.slice(0, 336_775))
    result = comparison.compare(short, short, running_of(short))
    assert all(row.same for row in result.groups)
    assert result.exit_code == 1
    assert any("336,775 flights in the data file" in problem for problem in result.problems)


def test_the_newest_running_total_of_each_carrier_counts(tmp_path: Path) -> None:
    write_running(tmp_path, "20260131T235950Z", UA=7, OO=2)
    write_running(tmp_path, "20260201T000000Z", UA=9)
    assert comparison.running_totals(comparison.read_running(tmp_path)) == {
        "UA": RunningTotal(9, 9, -9),
        "OO": RunningTotal(2, 2, -2),
    }
    assert comparison.running_totals(comparison.read_running(tmp_path / "nothing")) == {}


@pytest.mark.parametrize("change", [{"flights": 1}, {"departures": -1}, {"delay_sum": 1}])
def test_one_wrong_running_total_is_a_difference(
    expected: dict[GroupKey, FlightTotals], running: dict[str | None, RunningTotal], change: dict[str, int]
) -> None:
    name, step = next(iter(change.items()))
    wrong = {**running, "UA": replace(running["UA"], **{name: getattr(running["UA"], name) + step})}
    result = comparison.compare(expected, expected, wrong)
    assert result.exit_code == 1
    assert [(row.name, row.differences) for row in result.carriers if not row.same] == [("UA", ("running total",))]
    assert result.total.differences == ("running total",)


def test_a_carrier_without_a_running_total_and_one_that_is_unknown_differ(
    expected: dict[GroupKey, FlightTotals], running: dict[str | None, RunningTotal]
) -> None:
    wrong = {name: total for name, total in running.items() if name != "OO"} | {None: running["OO"]}
    result = comparison.compare(expected, expected, wrong)
    assert result.total.same
    assert result.exit_code == 1
    assert [row.name for row in result.carriers if not row.same] == ["OO", "(unreadable)"]
    assert result.problems == (
        "(unreadable): the running total is 32 flights, the known answer is 0",
        "OO: the running total is 0 flights, the known answer is 32",
    )

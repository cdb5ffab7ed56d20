"""Compare what the pipeline published with the known answer: pure functions over Arrow tables.

Arrow computes the expected totals per carrier and origin from the data file, with no code in common with the
pipeline; the counts per carrier are also compared with the constants of `known_answer`. The newest running total of
each carrier must be the same totals. This module must never round a difference away: counts and sums agree exactly or
not at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay.demo import known_answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Minutes. Means are weighted sums of doubles: equal except for the rounding of the last digits.
MEAN_TOLERANCE = 1e-9

GroupKey = tuple[str | None, str | None]  # carrier, origin; None where a line could not be parsed

COLUMNS = {
    "carrier": pa.string(),
    "origin": pa.string(),
    "flights": pa.int64(),
    "departures": pa.int64(),
    "departure_delay_sum": pa.int64(),
    "departure_delay_mean": pa.float64(),
}

# `batch_time` is the name of the folder: 20260131T120000Z, which sorts as the times do.
RUNNING_COLUMNS = {
    "carrier": pa.string(),
    "flights": pa.int64(),
    "departures": pa.int64(),
    "departure_delay_sum": pa.int64(),
    "batch_time": pa.string(),
}


@dataclass(frozen=True, slots=True)
class FlightTotals:
    """Sums over flights: `departures` are those with a known delay; delays are in minutes."""

    flights: int = 0
    departures: int = 0
    delay_sum: int = 0
    # Mean times departures, added up over batches, so that the published mean column itself is checked.
    weighted_mean_sum: float = 0.0

    @property
    def delay_mean(self) -> float | None:
        """Return the mean departure delay in minutes; None if no delay is known."""
        return self.weighted_mean_sum / self.departures if self.departures else None

    def plus(self, other: FlightTotals) -> FlightTotals:
        return FlightTotals(
            self.flights + other.flights,
            self.departures + other.departures,
            self.delay_sum + other.delay_sum,
            self.weighted_mean_sum + other.weighted_mean_sum,
        )

    def differences(self, other: FlightTotals) -> tuple[str, ...]:
        """Return what differs from `other`: counts and sums at all, means by more than `MEAN_TOLERANCE` minutes."""
        found = [
            name
            for name, mine, theirs in (
                ("flights", self.flights, other.flights),
                ("known delays", self.departures, other.departures),
                ("delay sum", self.delay_sum, other.delay_sum),
            )
            if mine != theirs
        ]
        if not _nearly_equal(self.delay_mean, other.delay_mean):
            found.append("mean delay")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class RunningTotal:
    """Hold the state of a carrier: `delay_sum` is in minutes."""

    flights: int = 0
    departures: int = 0
    delay_sum: int = 0

    def is_of(self, totals: FlightTotals) -> bool:
        """Return whether these are the same counts and the same sum."""
        return self == RunningTotal(totals.flights, totals.departures, totals.delay_sum)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the comparison. `name` is a carrier, or carrier and origin; the latter has no running total."""

    name: str
    published: FlightTotals
    expected: FlightTotals
    running: RunningTotal | None
    # What differs, in words; empty if all values are equal.
    differences: tuple[str, ...]

    @property
    def same(self) -> bool:
        return not self.differences


@dataclass(frozen=True, slots=True)
class Comparison:
    """Hold the whole comparison; `same` is True only if every row agrees and the known answer holds."""

    carriers: tuple[Row, ...]
    groups: tuple[Row, ...]
    total: Row
    problems: tuple[str, ...]

    @property
    def same(self) -> bool:
        return not self.problems and self.total.same and all(row.same for row in (*self.carriers, *self.groups))

    @property
    def exit_code(self) -> int:
        """Return 0 if everything agrees exactly, else 1."""
        return 0 if self.same else 1


def expected_totals(flights: pa.Table) -> dict[GroupKey, FlightTotals]:
    """Return the totals per carrier and origin of the data file's table (`flights.read_flights()`)."""
    grouped = flights.group_by(["carrier", "origin"]).aggregate(
        [([], "count_all"), ("dep_delay", "count"), ("dep_delay", "sum"), ("dep_delay", "mean")]
    )
    return {
        (row["carrier"], row["origin"]): FlightTotals(
            flights=row["count_all"],
            departures=row["dep_delay_count"],
            delay_sum=row["dep_delay_sum"] or 0,
            weighted_mean_sum=(row["dep_delay_mean"] or 0.0) * row["dep_delay_count"],
        )
        for row in grouped.to_pylist()
    }


def read_published(path: str | Path) -> pa.Table:
    """Return all rows published under `path`, over all batches, as a `pyarrow.Table`; no rows if nothing is there.

    Arrow skips names that begin with `_` or `.`, and so skips unpublished attempts.
    """
    return _read(Path(path), COLUMNS)


def read_running(path: str | Path) -> pa.Table:
    """Return the same of the running totals, each with its batch's time."""
    return _read(Path(path), RUNNING_COLUMNS)


def _read(root: Path, columns: Mapping[str, pa.DataType]) -> pa.Table:
    schema = pa.schema(list(columns.items()))
    if not root.is_dir():
        return schema.empty_table()
    import pyarrow.dataset  # noqa: PLC0415  loads pandas, which would take half of every command's start

    dataset = pyarrow.dataset.dataset(root, format="parquet", schema=schema, partitioning="hive")
    return dataset.to_table(columns=list(columns))


def running_totals(running: pa.Table) -> dict[str | None, RunningTotal]:
    """Return the newest total of each carrier (a row per batch, and carrier that occurs in it)."""
    rows = sorted(running.to_pylist(), key=lambda row: row["batch_time"])
    return {row["carrier"]: RunningTotal(row["flights"], row["departures"], row["departure_delay_sum"]) for row in rows}


def published_totals(published: pa.Table) -> dict[GroupKey, FlightTotals]:
    """Return the totals per carrier and origin over the rows of all batches (a row per batch, carrier and origin)."""
    totals: dict[GroupKey, FlightTotals] = {}
    for row in published.to_pylist():
        key = (row["carrier"], row["origin"])
        departures = row["departures"] or 0
        part = FlightTotals(
            flights=row["flights"] or 0,
            departures=departures,
            delay_sum=row["departure_delay_sum"] or 0,
            weighted_mean_sum=(row["departure_delay_mean"] or 0.0) * departures,
        )
        totals[key] = totals.get(key, FlightTotals()).plus(part)
    return totals


def compare(
    published: Mapping[GroupKey, FlightTotals],
    expected: Mapping[GroupKey, FlightTotals],
    running: Mapping[str | None, RunningTotal],
) -> Comparison:
    """Compare the totals and the running totals with the expected ones and with the constants of the known answer."""
    keys = sorted({*published, *expected}, key=lambda key: (key[0] or "~", key[1] or "~"))
    groups = tuple(_row(f"{_text(c)} {_text(o)}", published.get((c, o)), expected.get((c, o))) for c, o in keys)
    names = sorted({*(key[0] for key in keys), *running}, key=lambda carrier: carrier or "~")
    carriers = tuple(
        _with_running(
            _row(_text(name), _of_carrier(published, name), _of_carrier(expected, name)),
            running.get(name, RunningTotal()),
        )
        for name in names
    )
    total = _with_running(
        _row("all", _sum(published.values()), _sum(expected.values())), _sum_running(running.values())
    )
    problems = (*_known_answer_problems(published, expected), *_running_problems(running))
    return Comparison(carriers, groups, total, problems)


def _with_running(row: Row, running: RunningTotal) -> Row:
    differences = row.differences if running.is_of(row.expected) else (*row.differences, "running total")
    return replace(row, running=running, differences=differences)


def _sum_running(parts: Iterable[RunningTotal]) -> RunningTotal:
    flights = departures = delay_sum = 0
    for part in parts:
        flights, departures = flights + part.flights, departures + part.departures
        delay_sum += part.delay_sum
    return RunningTotal(flights, departures, delay_sum)


def _running_problems(running: Mapping[str | None, RunningTotal]) -> list[str]:
    counts = {carrier: total.flights for carrier, total in running.items()}
    return [
        f"{_text(carrier)}: the running total is {counts.get(carrier, 0):,} flights, the known answer is {known:,}"
        for carrier in sorted({*counts, *known_answer.FLIGHTS_BY_CARRIER}, key=_text)
        if counts.get(carrier, 0) != (known := known_answer.FLIGHTS_BY_CARRIER.get(carrier or "", 0))
    ]


def _known_answer_problems(
    published: Mapping[GroupKey, FlightTotals], expected: Mapping[GroupKey, FlightTotals]
) -> list[str]:
    problems: list[str] = []
    for what, totals in (("published", published), ("in the data file", expected)):
        rows = _sum(totals.values()).flights
        if rows != known_answer.ROWS:
            problems.append(f"{rows:,} flights {what}, the known answer is {known_answer.ROWS:,}")
        carriers = {carrier for carrier, _ in totals} | set(known_answer.FLIGHTS_BY_CARRIER)
        for carrier in sorted(carriers, key=_text):
            count = _of_carrier(totals, carrier).flights
            known = known_answer.FLIGHTS_BY_CARRIER.get(carrier or "", 0)
            if count != known:
                problems.append(f"{_text(carrier)}: {count:,} flights {what}, the known answer is {known:,}")
    return problems


def _nearly_equal(mine: float | None, theirs: float | None) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    return abs(mine - theirs) <= MEAN_TOLERANCE


def _row(name: str, published: FlightTotals | None, expected: FlightTotals | None) -> Row:
    # A group that is on one side only is a difference, even if all its numbers are 0.
    if published is None:
        differences: tuple[str, ...] = ("not published",)
    elif expected is None:
        differences = ("not known",)
    else:
        differences = published.differences(expected)
    return Row(name, published or FlightTotals(), expected or FlightTotals(), None, differences)


def _of_carrier(totals: Mapping[GroupKey, FlightTotals], carrier: str | None) -> FlightTotals:
    return _sum(part for (name, _), part in totals.items() if name == carrier)


def _sum(parts: Iterable[FlightTotals]) -> FlightTotals:
    total = FlightTotals()
    for part in parts:
        total = total.plus(part)
    return total


def _text(name: str | None) -> str:
    return "(unreadable)" if name is None else name

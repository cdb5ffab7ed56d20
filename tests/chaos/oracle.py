"""Judge a run: compare what came out with what was acknowledged. Shares no code with the product.

It reads Parquet with pyarrow, the table with SQL, and the driver log with SQL on the views that are made for people.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg2
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from tests.chaos.ledger import Told

WINDOW = timedelta(seconds=15)
WINDOWED = ("http", "kafka")
#: The sources that each output must contain.
OUTPUTS: Mapping[str, tuple[str, ...]] = {"seen": ("http", "kafka", "files", "socket"), "delivered": ("http", "kafka")}
#: Of the windows by event time, in seconds, as numbers of records are.
EVENT_LENGTH, EVENT_LATENESS = 100, 60
_SHOWN = 10
_BATCH_TIME = re.compile(r"batch_time=(\d{8}T\d{6})(?:\.(\d+))?Z?$")

Record = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule. `kind` is a word for tables."""

    kind: str
    text: str


class ParquetReader:
    """Read one published output, each file once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[tuple[str, int, int], list[dict[str, Any]]] = {}

    def rows(self) -> dict[datetime, list[dict[str, Any]]]:
        """Return the rows by batch time."""
        found: dict[datetime, list[dict[str, Any]]] = {}
        for folder in sorted(self._path.glob("date=*/hour=*/batch_time=*")):
            rows = found.setdefault(batch_time(folder.name), [])
            for file in sorted(folder.glob("*.parquet")):
                status = file.stat()
                key = (str(file), status.st_ino, status.st_mtime_ns)
                if key not in self._known:
                    # Not by path: pyarrow would turn the folders' names into columns.
                    with file.open("rb") as data:
                        self._known[key] = pq.read_table(data).to_pylist()
                rows += self._known[key]
        return found


def batch_time(folder: str) -> datetime:
    """Return the time in a batch folder's name."""
    match = _BATCH_TIME.match(folder)
    if match is None:
        raise ValueError(f"{folder} is no batch's folder")
    at = datetime.strptime(match[1], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    return at + timedelta(microseconds=int((match[2] or "0").ljust(6, "0")[:6]))


def records(batches: Mapping[datetime, Iterable[Mapping[str, Any]]]) -> Counter[Record]:
    """Count how often each record came out."""
    return Counter((row["source"], row["number"]) for rows in batches.values() for row in rows)


def table_records(dsn: str) -> Counter[Record]:
    """Count how often each record is in the table; return no records if the table does not exist."""
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass('delivered')")
        if cursor.fetchone() == (None,):
            return Counter()
        cursor.execute("SELECT source, number, count(*) FROM delivered GROUP BY source, number")
        return Counter({(source, number): count for source, number, count in cursor})


@dataclass(frozen=True, slots=True)
class EventWindows:
    """The table of the windows by event time, and the batches of which it is made.

    `windows`: (records, total) by the window's start, in seconds since 1970. `batches`: the numbers of each batch.
    """

    windows: Mapping[int, tuple[int, int]]
    batches: Mapping[datetime, Sequence[int]]


def event_windows(dsn: str) -> EventWindows:
    """Read both tables as they are at one moment; return none if one of them does not exist."""
    with contextlib.closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
        cursor.execute("SELECT to_regclass('delivered') IS NULL OR to_regclass('event_windows') IS NULL")
        if cursor.fetchone() == (True,):
            return EventWindows({}, {})
        cursor.execute("SELECT extract(epoch FROM window_start)::bigint, records, total FROM event_windows")
        windows = {start: (records, total) for start, records, total in cursor}
        cursor.execute("SELECT _batch_time, array_agg(number) FROM delivered WHERE source = 'http' GROUP BY 1")
        return EventWindows(windows, dict(cursor.fetchall()))


def missing(output: str, told: Mapping[str, Told], out: Mapping[Record, int]) -> list[Violation]:
    """Return, per source, the acknowledged records that did not come out."""
    found = []
    for source in OUTPUTS[output]:
        lost = sorted(number for number in told[source].acknowledged if not out.get((source, number)))
        if lost:
            found.append(
                Violation("missing", f"{output}: {len(lost)} acknowledged records of {source}: {_first(lost)}")
            )
    return found


def too_many(output: str, told: Mapping[str, Told], out: Mapping[Record, int]) -> list[Violation]:
    """Return the records that came out twice, and those that were never sent."""
    twice: dict[str, list[int]] = {}
    unknown: dict[str, list[int]] = {}
    for (source, number), count in out.items():
        if count > 1:
            twice.setdefault(source, []).append(number)
        if source not in OUTPUTS[output] or number not in told[source].sent:
            unknown.setdefault(source, []).append(number)
    return [
        *(
            Violation("duplicate", f"{output}: {len(numbers)} records of {source} came out twice: {_first(numbers)}")
            for source, numbers in twice.items()
        ),
        *(
            Violation("unknown", f"{output}: {len(numbers)} records of {source} were never sent: {_first(numbers)}")
            for source, numbers in unknown.items()
        ),
    ]


def wrong_windows(
    seen: Mapping[datetime, Sequence[Mapping[str, Any]]], windows: Mapping[datetime, Sequence[Mapping[str, Any]]]
) -> list[Violation]:
    """Return each window that differs from the count and sum of its batches' records, which define it."""
    of_batch = {at: Counter[Record](_sums(rows)) for at, rows in seen.items()}
    wrong = []
    for at, rows in sorted(windows.items()):
        expected: Counter[Record] = Counter()
        for time, sums in of_batch.items():
            if at - WINDOW < time <= at:
                expected += sums
        given = Counter[Record]()
        for row in rows:
            given[row["source"], 0] += row["records"]
            given[row["source"], 1] += row["total"]
        if given != expected:
            wrong.append(f"{at:%H:%M:%S} has {dict(given)}, and its batches {dict(expected)}")
    return [Violation("window", f"{len(wrong)} windows: {'; '.join(wrong[:3])}")] if wrong else []


def wrong_totals(
    seen: Mapping[datetime, Sequence[Mapping[str, Any]]], totals: Mapping[datetime, Sequence[Mapping[str, Any]]]
) -> list[Violation]:
    """Return each batch whose running totals are not the count and sum of all records up to it, by its sources."""
    wrong = []
    expected: Counter[Record] = Counter()
    for at in sorted(seen.keys() | totals.keys()):
        of_batch = _sums(seen.get(at, ()))
        expected.update(of_batch)
        wanted = {source: (expected[source, 0], expected[source, 1]) for source, _ in of_batch}
        rows = totals.get(at, ())
        given = {row["source"]: (row["records"], row["total"]) for row in rows}
        if given != wanted or len(given) != len(rows):
            wrong.append(f"{at:%H:%M:%S} has {[dict(row) for row in rows]}, and all up to it {wanted}")
    return [Violation("totals", f"{len(wrong)} batches: {'; '.join(wrong[:3])}")] if wrong else []


def wrong_event_windows(found: EventWindows) -> list[Violation]:
    """Return each window by event time that is not the count and sum of its records but those that came too late."""
    expected: dict[int, tuple[int, int]] = {}
    watermark: int | None = None
    for _, numbers in sorted(found.batches.items()):
        for number in numbers:
            time = event_time(number)
            start = time - time % EVENT_LENGTH
            if watermark is None or start + EVENT_LENGTH > watermark:
                records, total = expected.get(start, (0, 0))
                expected[start] = (records + 1, total + number)
        reached = max(map(event_time, numbers)) - EVENT_LATENESS
        watermark = reached if watermark is None else max(watermark, reached)
    wrong = [
        f"{start} has {found.windows.get(start)}, and its records {expected.get(start)}"
        for start in sorted(expected.keys() | found.windows.keys())
        if found.windows.get(start) != expected.get(start)
    ]
    return [Violation("event window", f"{len(wrong)} windows: {'; '.join(wrong[:3])}")] if wrong else []


def event_time(number: int) -> int:
    """Return a record's time in seconds since 1970, as the pipeline has it."""
    return number - number * 37 % 11 * 20


def _sums(rows: Iterable[Mapping[str, Any]]) -> dict[Record, int]:
    sums: Counter[Record] = Counter()
    for row in rows:
        if row["source"] in WINDOWED:
            sums[row["source"], 0] += 1
            sums[row["source"], 1] += row["number"]
    return dict(sums)


def _first(numbers: Sequence[int]) -> str:
    shown = ", ".join(str(number) for number in sorted(numbers)[:_SHOWN])
    return shown if len(numbers) <= _SHOWN else f"{shown}, … {max(numbers)}"


class DriverLog:
    """Query the views of the driver log with plain SQL. `dsn` changes with a failover."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def not_at_rest(self) -> list[str]:
        """Return what still waits or does not run; empty when all is at rest. Raises psycopg2.Error."""
        found = [
            f"pipeline {name}: {records} records wait, {unfinished} batches are unfinished"
            for name, records, unfinished in self._rows(
                "SELECT pipeline, waiting_records, unfinished_batches FROM forebay.pipeline_status "
                "WHERE waiting_records > 0 OR unfinished_batches > 0"
            )
        ]
        found += [
            f"receiver {stream}/{ordinal} is {state}: {reason}"
            for stream, ordinal, state, reason in self._rows(
                "SELECT stream, ordinal, state, reason FROM forebay.receiver_status WHERE state <> 'ACTIVE'"
            )
        ]
        return found

    def given_up(self) -> list[str]:
        """Return each batch that is not retried automatically any more."""
        return [
            f"batch {at:%H:%M:%S} of {name} is {state} after {attempt} attempts: {reason}"
            for name, at, state, attempt, reason in self._rows(
                "SELECT pipeline, batch_time, state, attempt, reason FROM forebay.batch_stats "
                "WHERE state NOT IN ('COMPLETED', 'ALLOCATED', 'RUNNING', 'FAILED', 'BLOCKED') ORDER BY batch_time"
            )
        ]

    def batches(self) -> int:
        """Return how many batches were completed."""
        [(count,)] = self._rows("SELECT count(*) FROM forebay.batch_stats WHERE state = 'COMPLETED'")
        return int(count)

    def hosts_with_receivers(self) -> set[str]:
        """Return the names of the hosts on which receivers are placed."""
        return {host for (host,) in self._rows("SELECT host FROM forebay.receiver_status WHERE host IS NOT NULL")}

    def said(self) -> list[str]:
        """Return the text of all events and reasons."""
        events = self._rows(
            "SELECT DISTINCT event || ' ' || coalesce(detail, '') FROM forebay.driver_log "
            "WHERE source = 'receiver_events'"
        )
        errors = self._rows("SELECT DISTINCT error FROM forebay.batch_history WHERE error <> ''")
        return [text for (text,) in [*events, *errors]]

    def _rows(self, statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(psycopg2.connect(self._dsn)) as connection, connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = '20s'")
            cursor.execute(statement)
            return list(cursor.fetchall())

"""Check that the oracle of `make chaos` reports each fault planted here."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.chaos import ledger, oracle
from tests.chaos.ledger import Ledger, Told

if TYPE_CHECKING:
    from pathlib import Path

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TOLD = {
    "http": Told(set(range(1, 11)), set(range(1, 9))),
    "kafka": Told({1, 2, 3}, {1, 2, 3}),
    "files": Told({1, 2}, {1, 2}),
    "socket": Told({1, 2, 3}, set()),
}


def everything() -> Counter[oracle.Record]:
    return Counter(
        (source, number)
        for source, told in TOLD.items()
        for number in (told.sent if source == "socket" else told.acknowledged)
    )


def test_acknowledged_record_that_came_out_once_is_right() -> None:
    assert oracle.missing("seen", TOLD, everything()) == []
    assert oracle.too_many("seen", TOLD, everything()) == []


def test_unacknowledged_record_may_come_out_or_be_missing() -> None:
    out = everything()
    out["http", 10] += 1
    del out["socket", 3]
    assert oracle.missing("seen", TOLD, out) == []
    assert oracle.too_many("seen", TOLD, out) == []


def test_a_missing_record_is_named() -> None:
    out = everything()
    del out["http", 4]
    del out["files", 2]
    found = oracle.missing("seen", TOLD, out)
    assert [violation.text for violation in found] == [
        "seen: 1 acknowledged records of http: 4",
        "seen: 1 acknowledged records of files: 2",
    ]


def test_duplicate_record_is_named_even_if_never_acknowledged() -> None:
    out = everything()
    out["socket", 3] += 1
    [violation] = oracle.too_many("seen", TOLD, out)
    assert violation == oracle.Violation("duplicate", "seen: 1 records of socket came out twice: 3")


def test_unsent_record_is_named() -> None:
    out = everything()
    out["kafka", 99] += 1
    [violation] = oracle.too_many("seen", TOLD, out)
    assert violation.kind == "unknown"
    assert "99" in violation.text


def test_the_table_has_only_its_own_sources() -> None:
    assert oracle.missing("delivered", TOLD, everything()) == []
    assert {violation.kind for violation in oracle.too_many("delivered", TOLD, everything())} == {"unknown"}


def batch(*numbers: int, source: str = "http") -> list[dict[str, object]]:
    return [{"source": source, "number": number} for number in numbers]


def window(records: int, total: int) -> list[dict[str, object]]:
    return [{"source": "http", "records": records, "total": total}]


def test_window_is_the_batches_within_its_length_up_to_its_own() -> None:
    step = timedelta(seconds=5)
    seen = {NOON + step * number: batch(number) for number in range(5)}
    right = {NOON: window(1, 0), NOON + 2 * step: window(3, 3), NOON + 4 * step: window(3, 9)}
    assert oracle.wrong_windows(seen, right) == []
    for wrong in (window(3, 8), window(4, 9), []):
        [violation] = oracle.wrong_windows(seen, right | {NOON + 4 * step: wrong})
        assert "12:00:20" in violation.text


def test_totals_are_of_all_batches_up_to_their_own() -> None:
    step = timedelta(seconds=5)
    seen = {NOON + step * number: batch(number) + batch(9, source="socket") for number in range(1, 4)}
    right = {NOON + step: window(1, 1), NOON + 2 * step: window(2, 3), NOON + 3 * step: window(3, 6)}
    assert oracle.wrong_totals(seen, right) == []
    for wrong in (
        window(3, 5),
        window(2, 6),
        [],
        window(3, 6) * 2,
        [*window(3, 6), {"source": "kafka", "records": 1, "total": 9}],
    ):
        [violation] = oracle.wrong_totals(seen, right | {NOON + 3 * step: wrong})
        assert "12:00:15" in violation.text
    [violation] = oracle.wrong_totals(seen, right | {NOON + 4 * step: window(3, 6)})
    assert "12:00:20" in violation.text, "the batch has no record"


def test_event_windows_have_all_records_but_those_that_are_too_late() -> None:
    step = timedelta(seconds=6)
    # Record 3 comes too late for the window that begins at -100.
    batches = {NOON: [11, 1, 2], NOON + step: [220], NOON + 2 * step: [3, 12]}
    times = {number: oracle.event_time(number) for numbers in batches.values() for number in numbers}
    assert times == {11: 11, 1: -79, 2: -158, 220: 220, 3: -17, 12: -68}
    right = {0: (1, 11), -100: (1, 1), -200: (1, 2), 200: (1, 220)}
    assert oracle.wrong_event_windows(oracle.EventWindows(right, batches)) == []
    for wrong in (right | {-100: (2, 4)}, right | {0: (1, 12)}, right | {300: (1, 300)}, {**right, 200: (0, 0)}):
        [violation] = oracle.wrong_event_windows(oracle.EventWindows(wrong, batches))
        assert violation.kind == "event window"
    del right[-200]
    [violation] = oracle.wrong_event_windows(oracle.EventWindows(right, batches))
    assert "-200 has None, and its records (1, 2)" in violation.text


def test_window_covers_only_its_own_sources() -> None:
    assert oracle.wrong_windows({NOON: batch(1) + batch(5, source="socket")}, {NOON: window(1, 1)}) == []


def test_parquet_is_read_by_batch_without_hidden_folders(tmp_path: Path) -> None:
    for folder in (
        "date=2026-01-01/hour=12/batch_time=20260101T120000Z",
        "_attempts/x",
        "date=2026-01-01/hour=12/.old",
    ):
        (tmp_path / folder).mkdir(parents=True)
        pq.write_table(pa.table({"source": ["http"], "number": [1]}), tmp_path / folder / "part.parquet")
    rows = oracle.ParquetReader(tmp_path).rows()
    assert rows == {NOON: batch(1)}
    assert oracle.records(rows) == {("http", 1): 1}


@pytest.mark.parametrize(
    ("folder", "at"),
    [("batch_time=20260101T120000Z", NOON), ("batch_time=20260101T120000.250Z", NOON + timedelta(seconds=0.25))],
)
def test_folder_name_gives_batch_time(folder: str, at: datetime) -> None:
    assert oracle.batch_time(folder) == at


def test_a_ledger_is_read_back(tmp_path: Path) -> None:
    written = Ledger(tmp_path, "http")
    written.sent(1, 8)
    written.acknowledged(1, 4)
    # The acknowledgement for another sender may come first.
    written.sent(9, 9)
    written.acknowledged(9, 9)
    written.close()
    assert ledger.read(tmp_path) == {"http": Told(set(range(1, 10)), {1, 2, 3, 4, 9})}

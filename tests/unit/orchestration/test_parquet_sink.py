"""What a ParquetSink publishes, without Spark: attempts' directories are made by hand."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from forebay import ParquetSink
from orchestration.spark.sinks.parquet import ATTEMPTS, batch_directory

if TYPE_CHECKING:
    from pathlib import Path

TIME = datetime(2026, 1, 1, 12, 0, 10, tzinfo=UTC)


@pytest.fixture
def sink(tmp_path: Path) -> ParquetSink:
    return ParquetSink(tmp_path / "counts")


def attempt(sink: ParquetSink, number: int, *files: list[int]) -> str:
    """An attempt's directory as Spark leaves it."""
    directory = sink.path / ATTEMPTS / "20260101T120010Z" / f"attempt={number}"
    directory.mkdir(parents=True)
    (directory / "_SUCCESS").touch()
    for index, values in enumerate(files):
        pq.write_table(pa.table({"n": values}), directory / f"part-{index}-attempt{number}.parquet")
        (directory / f".part-{index}.parquet.crc").touch()
    return str(directory)


def visible(sink: ParquetSink) -> list[int]:
    return sorted(ds.dataset(sink.path, partitioning="hive", format="parquet").to_table()["n"].to_pylist())


def test_the_layout_is_by_date_hour_and_batch_time() -> None:
    assert batch_directory(TIME) == "date=2026-01-01/hour=12/batch_time=20260101T120010Z"
    assert batch_directory(TIME.replace(microsecond=500_000)).endswith("batch_time=20260101T120010.500000Z")


def test_an_attempt_is_not_seen_before_it_is_published(sink: ParquetSink) -> None:
    location = attempt(sink, 1, [1, 2], [3])
    assert ds.dataset(sink.path, format="parquet").files == []
    sink.publish(location, batch_time=TIME)
    assert visible(sink) == [1, 2, 3]


def test_publishing_again_changes_nothing(sink: ParquetSink) -> None:
    location = attempt(sink, 1, [1])
    sink.publish(location, batch_time=TIME)
    [before] = sink.path.glob("date=*/hour=*/batch_time=*")
    inode = before.stat().st_ino
    sink.publish(location, batch_time=TIME)
    assert before.stat().st_ino == inode
    assert visible(sink) == [1]


def test_another_attempt_replaces_what_was_published_and_adds_nothing(sink: ParquetSink) -> None:
    sink.publish(attempt(sink, 1, [1], [2]), batch_time=TIME)
    sink.publish(attempt(sink, 2, [7]), batch_time=TIME)
    assert visible(sink) == [7]
    [hour] = sink.path.glob("date=*/hour=*")
    assert [entry.name for entry in hour.iterdir()] == ["batch_time=20260101T120010Z"]


@pytest.mark.parametrize("left", [".batch_time=20260101T120010Z.attempt=1", ".batch_time=20260101T120010Z.replaced"])
def test_what_a_crash_left_half_done_is_done_again(sink: ParquetSink, left: str) -> None:
    location = attempt(sink, 1, [1])
    hour = sink.path / "date=2026-01-01" / "hour=12"
    (hour / left).mkdir(parents=True)
    (hour / left / "part-0-other.parquet").touch()
    sink.publish(location, batch_time=TIME)
    assert visible(sink) == [1]


def test_a_result_without_rows_is_published_as_nothing(sink: ParquetSink) -> None:
    sink.publish(attempt(sink, 1), batch_time=TIME)
    [directory] = sink.path.glob("date=*/hour=*/batch_time=*")
    assert list(directory.iterdir()) == []

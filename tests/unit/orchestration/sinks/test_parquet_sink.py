"""Check what a ParquetSink publishes, without Spark: the tests make attempts' directories themselves."""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from forebay import EnvVar, ParquetSink
from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.sink import SinkError, TargetUnavailableError
from orchestration.sinks import directories
from orchestration.sinks.parquet.parquet_object_hours import hours_with_work
from orchestration.sinks.parquet.parquet_zone import FolderZone
from orchestration.sinks.parquet_names import ATTEMPTS, FILES, attempt_directory, batch_directory
from tests.support.polling import eventually
from tests.support.sinks.upkeep import keep_hour

TIME = datetime(2026, 1, 1, 12, 0, 10, tzinfo=UTC)


@pytest.fixture
def sink(tmp_path: Path) -> ParquetSink:
    return ParquetSink(tmp_path / "counts")


def attempt(sink: ParquetSink, number: int, *files: list[int]) -> str:
    """Make an attempt's directory as tasks leave it, with the file of a task attempt that lost."""
    directory = sink.path / attempt_directory(TIME, number)
    directory.mkdir(parents=True)
    names = [f"part-{index}-attempt{number}.parquet" for index in range(len(files))]
    for name, values in zip([*names, "part-lost.parquet"], [*files, [-1]], strict=True):
        pq.write_table(pa.table({"n": values}), directory / name)
    (directory / FILES).write_text(json.dumps(names))
    return str(directory)


def visible(sink: ParquetSink) -> list[int]:
    return sorted(ds.dataset(sink.path, partitioning="hive", format="parquet").to_table()["n"].to_pylist())


def test_the_layout_is_by_date_hour_and_batch_time() -> None:
    assert batch_directory(TIME) == "date=2026-01-01/hour=12/batch_time=20260101T120010Z"
    assert batch_directory(TIME.replace(microsecond=500_000)).endswith("batch_time=20260101T120010.500000Z")


def test_output_written_before_attempts_had_tokens_is_published_and_replaced(sink: ParquetSink) -> None:
    """Check an upgrade between a commit and its publishing."""
    location = attempt(sink, 1, [1, 2])
    before = location.rpartition("-")[0]
    Path(location).rename(before)
    sink.publish(before, batch_time=TIME)
    assert visible(sink) == [1, 2]
    sink.publish(attempt(sink, 2, [7]), batch_time=TIME)
    assert visible(sink) == [7]
    assert not Path(before).exists()


def test_a_directory_that_is_replaced_while_it_is_listed_is_listed_again(
    sink: ParquetSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check this because Arrow passes over what vanishes while it lists: a reader saw none of an hour's rows."""
    sink.publish(attempt(sink, 1, [1]), batch_time=TIME)
    listings = 0
    found = ds.dataset

    def listed(*arguments: Any, **more: Any) -> ds.Dataset:  # noqa: ANN401
        nonlocal listings
        listings += 1
        if listings > 1:
            return found(*arguments, **more)
        sink.publish(attempt(sink, 2, [7]), batch_time=TIME)
        return found(pa.table({"n": pa.array([], pa.int64())}))

    monkeypatch.setattr("pyarrow.dataset.dataset", listed)
    assert sink.dataset().to_table()["n"].to_pylist() == [7]
    assert listings == 2


def parted(sink: ParquetSink, number: int, **values: int) -> str:
    """Make an attempt's directory with a folder for each country."""
    directory = sink.path / attempt_directory(TIME, number)
    names = [f"country={country}/part-{number}.parquet" for country in values]
    for name, value in zip(names, values.values(), strict=True):
        (directory / name).parent.mkdir(parents=True)
        pq.write_table(pa.table({"n": [value]}), directory / name)
    directory.mkdir(exist_ok=True)
    (directory / FILES).write_text(json.dumps(names))
    return str(directory)


def test_folders_of_values_are_published_and_replaced_whole(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "counts", partition_by=["country"])
    first = parted(sink, 1, DE=1, FR=2)
    for _ in range(2):
        sink.publish(first, batch_time=TIME)
        assert sink.dataset().to_table(columns=["n", "country"]).to_pylist() == [
            {"n": 1, "country": "DE"},
            {"n": 2, "country": "FR"},
        ]
    sink.publish(parted(sink, 2, DE=3), batch_time=TIME)
    assert sink.dataset().to_table(columns=["n", "country"]).to_pylist() == [{"n": 3, "country": "DE"}]
    sink.publish(parted(sink, 3), batch_time=TIME)
    assert not list(sink.path.glob("date=*/hour=*/batch_time=*/*"))


def test_other_folders_beside_published_ones_are_refused(tmp_path: Path) -> None:
    sink = ParquetSink(tmp_path / "counts", partition_by=["country"])
    sink.check_target()
    sink.publish(parted(sink, 1, DE=1), batch_time=TIME)
    sink.check_target()
    for other in ([], ["city"], ["country", "city"]):
        with pytest.raises(SinkError, match="have folders of country, and partition_by="):
            ParquetSink(sink.path, partition_by=other).check_target()


def test_a_directory_of_a_delta_table_is_refused(sink: ParquetSink) -> None:
    """An output that was a DeltaSink's: the table's vacuum would delete the results."""
    (sink.path / "_delta_log").mkdir(parents=True)
    with pytest.raises(SinkError, match="is a Delta table, which deletes other files"):
        sink.check_target()


def test_the_days_of_the_past_are_not_listed_for_each_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = ParquetSink(tmp_path / "counts")
    sink.publish(attempt(sink, 1, [1]), batch_time=TIME)
    listed: list[str] = []
    glob = Path.glob

    def seen(path: Path, pattern: str, **more: Any) -> Any:  # noqa: ANN401  as glob, which later Pythons give more
        listed.append(pattern)
        return glob(path, pattern, **more)

    monkeypatch.setattr(Path, "glob", seen)
    for hours, is_near in ((0, True), (1, True), (2, False)):
        listed.clear()
        sink._check_folders("x", TIME + timedelta(hours=hours))
        assert ("date=*" in listed) == (not is_near)


def test_publishing_removes_attempts_that_can_no_longer_be_committed(sink: ParquetSink) -> None:
    """Another process's copy of this attempt and older attempts go; a newer attempt stays: it may be in progress."""
    made = [attempt(sink, number, [number]) for number in (1, 2, 2, 3)]
    named_before = sink.path / ATTEMPTS / "20260101T120010Z" / "attempt=1"
    named_before.mkdir()
    sink.publish(made[1], batch_time=TIME)
    assert visible(sink) == [2]
    assert {str(left) for left in sink.path.glob("_attempts/*/*")} == {made[1], made[3]}


@pytest.mark.parametrize("left", [".batch_time=20260101T120010Z.attempt=1", ".batch_time=20260101T120010Z.replaced"])
def test_publishing_is_completed_after_a_crash_halfway(sink: ParquetSink, left: str) -> None:
    location = attempt(sink, 1, [1])
    hour = sink.path / "date=2026-01-01" / "hour=12"
    (hour / left).mkdir(parents=True)
    (hour / left / "part-0-other.parquet").touch()
    sink.publish(location, batch_time=TIME)
    assert visible(sink) == [1]


def test_a_result_without_rows_is_published_as_an_empty_directory(sink: ParquetSink) -> None:
    sink.publish(attempt(sink, 1), batch_time=TIME)
    [directory] = sink.path.glob("date=*/hour=*/batch_time=*")
    assert list(directory.iterdir()) == []


def test_a_batch_is_never_absent_while_it_is_replaced(sink: ParquetSink) -> None:
    """Two renames would leave a moment without the batch: here the two directories are exchanged in one step."""
    first, *others = [attempt(sink, number, [number]) for number in range(1, 202)]
    sink.publish(first, batch_time=TIME)
    target = sink.path / batch_directory(TIME)
    absent: list[bool] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            absent.append(not target.exists())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    for number, other in enumerate(others):
        # The looking thread looks far more often than this, unless it gets no time to run.
        eventually(lambda: len(absent) > number, "a look", step=0.0)  # noqa: B023  called in this iteration
        sink.publish(other, batch_time=TIME)
    done.set()
    thread.join(10)
    assert len(absent) > 100
    assert not any(absent)


def test_where_directories_can_not_be_exchanged_it_takes_two_renames(
    sink: ParquetSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "exchanged", lambda *_: False)
    sink.publish(attempt(sink, 1, [1]), batch_time=TIME)
    sink.publish(attempt(sink, 2, [2]), batch_time=TIME)
    assert visible(sink) == [2]
    sink.publish(attempt(sink, 3, [3]), batch_time=TIME)
    assert visible(sink) == [3]


def test_replaced_output_stays_for_current_readers_and_is_removed_later(
    sink: ParquetSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that lists a directory while it is emptied would see half of a batch."""
    sink.publish(attempt(sink, 1, [1], [2]), batch_time=TIME)
    target = sink.path / batch_directory(TIME)
    with os.scandir(target) as listing:
        sink.publish(attempt(sink, 2, [7]), batch_time=TIME)
        assert len(list(listing)) == 2
    [left] = target.parent.glob(".*")
    assert sink.upkeep_hours() == [TIME.replace(minute=0, second=0)]
    assert keep_hour(sink, TIME, {}) is None
    assert left.is_dir()
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + directories.LEFT_SECONDS + 1)
    assert keep_hour(sink, TIME, {}) is None
    assert not left.exists()
    assert sink.upkeep_hours() == []
    assert visible(sink) == [7]


def test_an_hour_missing_between_two_renames_is_restored(sink: ParquetSink) -> None:
    sink.publish(attempt(sink, 1, [1]), batch_time=TIME)
    hour = sink.path / "date=2026-01-01" / "hour=12"
    hour.rename(hour.with_name(".hour=12.replaced"))
    sink.compact = True
    assert sink.upkeep_hours() == [TIME.replace(minute=0, second=0)]
    sink.publish(attempt(sink, 2, [2]), batch_time=TIME + timedelta(seconds=10))
    assert visible(sink) == [1, 2]


def test_an_hour_with_files_without_batch_time_is_not_compacted(sink: ParquetSink) -> None:
    for second in (0, 1):
        sink.publish(attempt(sink, second, [second]), batch_time=TIME + timedelta(seconds=second))
    sink.compact = True
    with pytest.raises(SinkError, match=r"no column _batch_time.*compact=True"):
        keep_hour(sink, TIME, {})
    assert visible(sink) == [0, 1]
    assert list(sink.path.glob("date=*/.*")) == []


def test_later_columns_are_null_in_earlier_batches_of_a_compacted_hour(sink: ParquetSink) -> None:
    later = TIME + timedelta(seconds=10)
    for batch_time, columns in ((TIME, {"n": [1]}), (later, {"n": [2], "more": ["x"]})):
        stamped = pa.table({**columns, "_batch_time": pa.array([batch_time], pa.timestamp("us", "UTC"))})
        directory = sink.path / batch_directory(batch_time)
        directory.mkdir(parents=True)
        pq.write_table(stamped, directory / "part-0.parquet")
    sink.compact = True
    assert keep_hour(sink, TIME, {}) == 2
    rows = ds.dataset(sink.path, partitioning="hive", format="parquet").to_table().to_pylist()
    assert [(row["n"], row["more"], row["_batch_time"]) for row in rows] == [(1, None, TIME), (2, "x", later)]


@pytest.mark.parametrize(
    ("path", "says"),
    [
        *((path, r": .*(write|give)") for path in ("", "~/out", "$HOME/out", "/data/${DAY}", "file:/data", "dbfs:/x")),
        (Path("s3://bucket/p"), r": .*(write|give)"),
        ("s3://key:word@bucket/x", r"'s3://bucket/x' has a user or a password.*EnvVar"),
        ("s3://key:pl4/nted@bucket/x", r"'s3://bucket/x' has a user or a password.*EnvVar"),
        ("/data/" + "ä" * 128 + "/x", r"its 'ä{20}'… has 256 bytes: a file system takes 255 for one name"),
        ("hdfs://host/x", r"neither a directory nor of an object store"),
        ("s3:///x", r"neither a directory nor of an object store"),
    ],
)
def test_an_invalid_directory_or_object_store_is_refused_when_declared(path: str | Path, says: str) -> None:
    with pytest.raises(DeclarationError, match=says) as refused:
        ParquetSink(path)
    assert "word" not in str(refused.value).replace("password", "")


def local_sink(path: Path, zone: str | None = "Europe/Berlin", **more: Any) -> ParquetSink:  # noqa: ANN401
    sink = ParquetSink(path, **more)
    sink.in_timezone(zone)
    return sink


# 02:00 and 02:30 in Berlin, each twice.
DOUBLED = [datetime(2025, 10, 26, 0, tzinfo=UTC) + n * timedelta(minutes=30) for n in range(4)]


def test_two_hours_that_the_clock_shows_alike_share_a_folder_a_lock_and_a_turn(tmp_path: Path) -> None:
    sink = local_sink(tmp_path / "out", compact=True)
    for number, at in enumerate([DOUBLED[0] - timedelta(minutes=1), *DOUBLED, DOUBLED[3] + timedelta(minutes=30)]):
        stamped = pa.table({"n": [number], "_batch_time": pa.array([at], pa.timestamp("us", "UTC"))})
        sink.publish(attempt_of(sink, at, 1, stamped), batch_time=at)
    folder = sink.path / "date=2025-10-26" / "hour=02"
    assert len(list(folder.iterdir())) == 4
    assert {sink.published_hour(at) for at in DOUBLED} == {(DOUBLED[0], DOUBLED[0] + timedelta(hours=2))}
    assert sink.upkeep_hours() == [DOUBLED[0]]
    assert keep_hour(sink, DOUBLED[0], dict.fromkeys(DOUBLED, 1)) == 4
    assert [entry.name for entry in folder.iterdir()] == ["batch_time=20251026T02"]
    assert visible(sink) == [0, 1, 2, 3, 4, 5]
    # A replay of one batch of the compacted folder replaces its rows, and no others.
    again = pa.table({"n": [70], "_batch_time": pa.array([DOUBLED[3]], pa.timestamp("us", "UTC"))})
    sink.publish(attempt_of(sink, DOUBLED[3], 2, again), batch_time=DOUBLED[3])
    assert visible(sink) == [0, 1, 2, 3, 5, 70]
    assert sink.dataset(date(2025, 10, 26)).count_rows() == 6


def test_a_path_keeps_the_zone_of_its_first_batch(tmp_path: Path, sink: ParquetSink) -> None:
    late = datetime(2026, 1, 1, 23, 30, tzinfo=UTC)
    own = local_sink(tmp_path / "own")
    own.publish(attempt_of(own, late, 1, pa.table({"n": [1]})), batch_time=late)
    assert [folder.name for folder in own.path.glob("date=*/hour=*/batch_time=*")] == ["batch_time=20260101T233000Z"]
    assert (own.path / "date=2026-01-02" / "hour=00").is_dir()
    # Whatever its pipeline's zone is now, a batch that is published again lies where it lay.
    for number, other in enumerate((local_sink(own.path, None), local_sink(own.path, "Asia/Kolkata")), start=2):
        other.publish(attempt_of(own, late, number, pa.table({"n": [number]})), batch_time=late)
        assert visible(own) == [number]
        with pytest.raises(TargetUnavailableError, match=r'timezone="Europe/Berlin"'):
            other.check_target()
    sink.publish(attempt(sink, 1, [1]), batch_time=TIME)
    before = local_sink(sink.path)
    before.publish(attempt(sink, 2, [2]), batch_time=TIME)
    assert visible(sink) == [2]
    with pytest.raises(TargetUnavailableError, match=r'named in the time of UTC.*timezone="UTC"'):
        before.check_target()
    assert local_sink(sink.path, timezone="UTC").check_target() is not None


def test_the_zone_of_folders_is_declared_only_where_it_is_not_utc() -> None:
    assert "timezone" not in local_sink(Path("/out"), None).declaration()
    assert "timezone" not in local_sink(Path("/out"), timezone="UTC").declaration()
    assert local_sink(Path("/out")).declaration()["timezone"] == "Europe/Berlin"
    with pytest.raises(DeclarationError, match="ParquetSink: timezone: 'Berlin' is no time zone"):
        ParquetSink("/out", timezone="Berlin")


def attempt_of(sink: ParquetSink, batch_time: datetime, number: int, rows: pa.Table) -> str:
    directory = sink.path / attempt_directory(batch_time, number)
    directory.mkdir(parents=True)
    pq.write_table(rows, directory / f"part-{number}.parquet")
    (directory / FILES).write_text(json.dumps([f"part-{number}.parquet"]))
    return str(directory)


def test_hours_with_work_of_local_folders_begin_at_the_first_time_that_shows_them() -> None:
    keys = [
        f"date=2025-10-26/hour=02/batch_time=20251026T00{n}000Z/{name}" for n in (0, 3) for name in ("_SUCCESS", "a")
    ]
    assert hours_with_work(keys, FolderZone("Europe/Berlin")) == [DOUBLED[0]]


def test_hours_with_work_in_an_object_store_are_found_by_names_alone() -> None:
    hour = "date=2026-01-01/hour"
    keys = [
        *(f"{hour}=00/batch_time=20260101T000{minute}00Z/{name}" for minute in (1, 2) for name in ("_SUCCESS", "a")),
        *(f"{hour}=01/batch_time=20260101T01/{name}" for name in ("_SUCCESS", "part-a")),
        *(f"{hour}=02/batch_time=20260101T02/{name}" for name in ("_SUCCESS", "part-a", "part-replaced")),
        *(f"{hour}=03/batch_time=20260101T030000Z/{name}" for name in ("_SUCCESS", "a", "b", "c")),
        "_attempts/20260101T000100Z/attempt=1-00/part-a",
    ]
    assert [time.hour for time in hours_with_work(keys)] == [0, 2]


def test_the_declaration_holds_references_and_the_location_of_the_files() -> None:
    assert ParquetSink("/out").declaration() == {"kind": "parquet", "path": "/out"}
    assert ParquetSink("/out", compact=True).declaration() == {"kind": "parquet", "path": "/out", "compact": True}
    assert ParquetSink("s3://bucket/x?region=eu").declaration()["path"] == "s3://bucket/x?region=eu"
    assert ParquetSink(EnvVar("RESULTS")).declaration()["path"] == "env:RESULTS"

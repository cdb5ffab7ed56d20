"""Test sinks under Spark's own tasks: a retried or raced task counts once, and every type comes through."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from forebay import DeltaSink, EnvVar, IcebergSink, ParquetSink, PostgresSink
from orchestration.declarations.settings import Settings
from orchestration.spark.session.session import spark_session
from tests.integration.orchestration.target_database import TIME, Target, attempt
from tests.support.sinks.upkeep import keep_hour

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from orchestration.declarations.sink import Sink
    from orchestration.sinks.postgres.postgres_staging import Staging

    Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory, no_shared_session: None) -> Iterator[SparkSession]:
    """Yield a session that tries a task three times, as on a cluster."""
    settings = Settings(home=tmp_path_factory.mktemp("spark"), spark_master="local[2,3]")
    made = spark_session(settings, application="tests")
    yield made
    made.stop()


# Spark would read these from a folder's name as numbers, times or null.
REFUSED = (
    "",
    "01",
    "1e5",
    "NaN",
    "1d",
    "2026",
    "2026-01-02",
    "2026-01",
    "12:30",
    "T12:30",
    "__HIVE_DEFAULT_PARTITION__",
)


def frame(session: SparkSession, *rows: tuple[str, int]) -> DataFrame:
    values = ", ".join(f"('{word}', {n}L)" for word, n in rows)
    return session.sql(f"SELECT * FROM VALUES {values} AS t(word, n)").repartition(2)


class AfterTheCopy(PostgresSink):
    """A sink whose tasks call `after` when their rows are committed in the staging table, before Spark knows."""

    after: Callable[[Staging, str], None]

    def _task(self, staging: Staging) -> Task:
        stage, after = super()._task(staging), self.after

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for answer in stage(batches):
                after(staging, answer.column("staging")[0].as_py())
                yield answer

        return task


def test_a_task_that_is_run_again_after_its_copy_does_not_double_its_rows(
    session: SparkSession, target: Target
) -> None:
    sink = AfterTheCopy(EnvVar("TARGET_URL"), "counts")

    def fails_once(_: Staging, __: str) -> None:
        from pyspark import TaskContext  # noqa: PLC0415 - in the worker

        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0:
            raise OSError("died after its copy")

    sink.after = fails_once
    sink.write(frame(session, *((f"w{n}", n) for n in range(20))), attempt())
    assert target.counts() == sorted((f"w{n}", n) for n in range(20))
    assert target.staging() == []


@pytest.mark.parametrize("kind", ["delta", "postgres"])
def test_tasks_name_the_windows_whose_rows_are_replaced(
    session: SparkSession, target: Target, tmp_path: Path, kind: str
) -> None:
    merge: dict[str, Any] = {"mode": "merge", "key": ["start", "word"]}
    made: dict[str, Callable[[], Sink]] = {
        "delta": lambda: DeltaSink(tmp_path / "counts", **merge),
        "postgres": lambda: PostgresSink(EnvVar("TARGET_URL"), "counts", **merge),
    }
    sink = made[kind]()

    def sessions(*rows: tuple[str, int]) -> DataFrame:
        return frame(session, *rows).selectExpr("timestamp_seconds(n * 60) AS start", "word", "n")

    sink.write(sessions(*((word, n) for word in "abc" for n in range(6))), attempt())
    windows = sessions(*(("any", n) for n in range(6) for _ in range(2) if n != 3)).select("start")
    later = replace(attempt(time=TIME + timedelta(seconds=10)), replaced=windows)
    sink.write(sessions(("a", 1), ("d", 5)), later)
    reads: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "delta": lambda: DeltaTable(tmp_path / "counts").to_pyarrow_table(columns=["word", "n"]).to_pylist(),
        "postgres": lambda: [{"word": word, "n": n} for word, n in target.counts()],
    }
    found = reads[kind]()
    assert sorted((row["word"], row["n"]) for row in found) == [("a", 1), ("a", 3), ("b", 3), ("c", 3), ("d", 5)]


def test_the_copy_of_a_speculative_task_that_lost_does_not_count(session: SparkSession, target: Target) -> None:
    """Check two task attempts at one partition, both of which have committed their copy: only one is passed on."""
    sink = AfterTheCopy(EnvVar("TARGET_URL"), "counts")

    def copied_by_another_too(staging: Staging, table: str) -> None:
        with contextlib.closing(staging.address.connect()) as connection, connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {table}9 AS TABLE {table}")

    sink.after = copied_by_another_too
    sink.write(frame(session, ("a", 1), ("b", 2)), attempt())
    assert target.counts() == [("a", 1), ("b", 2)]
    assert target.staging() == []


def test_a_result_of_one_column_keeps_its_nulls(session: SparkSession, target: Target) -> None:
    result = session.createDataFrame([("a",), (None,), ("",)], "word string")
    PostgresSink(EnvVar("TARGET_URL"), "counts").write(result, attempt())
    assert sorted(target.rows("SELECT word FROM counts"), key=repr) == sorted([("a",), (None,), ("",)], key=repr)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_each_row_is_once_in_a_table_of_files_despite_a_retried_task(
    session: SparkSession, tmp_path: Path, kind: str
) -> None:
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    sink = DeltaSink(tmp_path / "counts") if kind == "delta" else IcebergSink("shop.counts", catalog=catalog)
    failed = tmp_path / "failed"

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Fail after all rows of the task were written, and before its answer counts."""
        yield from batches
        if not failed.exists():
            failed.touch()
            raise OSError("died after its rows")

    result = frame(session, ("a", 1), ("b", 2))
    sink.write(result.mapInArrow(fails_once, result.schema), attempt())
    assert failed.exists()
    found = (
        DeltaTable(str(tmp_path / "counts")).to_pyarrow_table()
        if kind == "delta"
        else load_catalog("forebay", **catalog).load_table("shop.counts").scan().to_arrow()
    )
    assert sorted((row["word"], row["n"]) for row in found.to_pylist()) == [("a", 1), ("b", 2)]


def test_spark_reads_a_compacted_hour_as_it_read_its_batches(session: SparkSession, tmp_path: Path) -> None:
    """Check with a task that is retried after its rows: its first file is next to the other, and nothing names it."""
    sink = ParquetSink(tmp_path / "files", compact=True)
    failed = tmp_path / "failed"

    def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not failed.exists():
            failed.touch()
            raise OSError("died after its rows")

    def seen() -> tuple[str, list[tuple[object, ...]]]:
        read = session.read.parquet(str(tmp_path / "files")).drop("batch_time")
        return read.schema.simpleString(), sorted(tuple(row) for row in read.collect())

    for minute in (1, 2):
        result = session.sql(f"SELECT {minute} AS n, timestamp'2026-01-02 03:04:05.678901' AS at, array('x') AS tags")
        of_batch = attempt(time=datetime(2026, 1, 2, 3, minute, tzinfo=UTC))
        written = sink.write(result.mapInArrow(fails_once, result.schema), of_batch)
        assert written.rows == 1
        sink.publish(written.location, batch_time=of_batch.batch_time)
    before = seen()
    assert failed.exists()
    assert [row[0] for row in before[1]] == [1, 2]
    assert keep_hour(sink, datetime(2026, 1, 2, 3, tzinfo=UTC), {}) == 2
    assert len(list((tmp_path / "files").glob("date=*/hour=*/batch_time=*"))) == 1
    assert seen() == before


def test_results_are_where_only_their_owner_can_enter(session: SparkSession, tmp_path: Path) -> None:
    """Check with the umask of services, which Hadoop does not use."""
    sink = ParquetSink(str(tmp_path / "results"))
    before = os.umask(0o077)
    try:
        written = sink.write(frame(session, ("a", 1)), attempt())
        sink.publish(written.location, batch_time=attempt().batch_time)
    finally:
        os.umask(before)
    results = tmp_path / "results"
    assert {path.stat().st_mode & 0o77 for path in (results, *results.iterdir())} == {0}


def test_rows_that_sparks_tasks_refuse_are_put_aside(session: SparkSession, tmp_path: Path) -> None:
    rows = [f"(CAST({word} AS STRING), {n}L, X'00FF')" for n, word in enumerate(("'a'", "X'4772FC6E'", "'b'"))]
    bad = session.sql(f"SELECT * FROM VALUES {', '.join(rows)} AS t(word, n, raw)").coalesce(1)
    sink = ParquetSink(tmp_path, on_bad_rows="dead_letter")
    written = sink.write(bad, attempt())
    sink.publish(written.location, batch_time=attempt().batch_time)
    assert (written.rows, written.refused) == (2, 1)
    assert sink.dataset().to_table(columns=["word"]).to_pylist() == [{"word": "a"}, {"word": "b"}]
    assert session.read.parquet(str(tmp_path)).count() == 2
    [row] = session.read.json(str(tmp_path / "_refused_rows")).collect()
    assert (row["refused_row"]["word"], row["refused_row"]["n"]) == ("Gr\\xfcn", 1)
    assert row["reason"] == "column word is 'Gr\\\\xfcn', which is not UTF-8"


def test_spark_reads_folders_of_values_as_the_rows_were(session: SparkSession, tmp_path: Path) -> None:
    """Check what Spark infers of all folders together, and that rows are refused that it would take for others."""
    texts = ["DE", "a/b=c%", "2026-Q1", "é", " x", "1-2", "x" * 200, *REFUSED]
    rows = ", ".join(f"('{text}', {n}, date'2026-01-{n + 1:02}')" for n, text in enumerate(texts))
    result = session.sql(
        f"SELECT text, n, n * 3000000000 AS wide, day, n AS kept FROM VALUES {rows} AS t(text, n, day)"
    )
    sink = ParquetSink(tmp_path, partition_by=["text", "n", "wide", "day"], on_bad_rows="dead_letter")
    for of_batch in (attempt(), attempt(time=attempt().batch_time + timedelta(hours=1))):
        written = sink.write(result, of_batch)
        sink.publish(written.location, batch_time=of_batch.batch_time)
        assert written.refused == len(REFUSED)
    read = session.read.parquet(str(tmp_path))
    found = sorted(tuple(row) for row in read.select("kept", "n", "wide", "day", "text").distinct().collect())
    good = texts[: -len(REFUSED)]
    assert found == [(n, n, n * 3_000_000_000, date(2026, 1, n + 1), text) for n, text in enumerate(good)]
    assert read.count() == 2 * len(good)


def test_spark_reads_the_columns_of_all_batches(session: SparkSession, tmp_path: Path) -> None:
    """Check a column that came later and a wider one: Spark takes them of `_common_metadata`."""
    sink = ParquetSink(tmp_path, partition_by="word")
    results = ["'a' AS word, 1 AS n", "'b' AS word, 3000000000 AS n, 'x' AS more"]
    for at, columns in enumerate(results):
        of_batch = attempt(time=attempt().batch_time + timedelta(hours=at))
        written = sink.write(session.sql(f"SELECT {columns}"), of_batch)
        sink.publish(written.location, batch_time=of_batch.batch_time)
    read = session.read.parquet(str(tmp_path)).select("word", "n", "more")
    assert sorted(tuple(row) for row in read.collect()) == [("a", 1, None), ("b", 3_000_000_000, "x")]


def test_columns_are_kept_whose_names_spark_takes_for_expressions(
    session: SparkSession, target: Target, tmp_path: Path
) -> None:
    names = ["a.b", "a`b", "x.", ".", "`c`", "plain"]
    rows = [tuple(range(len(names))), (None,) * len(names)]
    result = session.createDataFrame(rows, ", ".join(f"c{n} INT" for n in range(len(names)))).toDF(*names)
    files = ParquetSink(tmp_path)
    files.publish(files.write(result, attempt()).location, batch_time=attempt().batch_time)
    read = files.dataset().to_table(columns=names).to_pylist()
    assert sorted((tuple(row[name] for name in names) for row in read), key=str) == sorted(rows, key=str)
    PostgresSink(EnvVar("TARGET_URL"), "odd").write(result, attempt())
    quoted = ", ".join(f'"{name}"' for name in names)
    assert sorted(target.rows(f"SELECT {quoted} FROM odd"), key=str) == sorted(rows, key=str)

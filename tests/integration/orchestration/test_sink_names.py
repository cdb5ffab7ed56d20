"""Check that each name that Spark lets a column have is read back as it is, or refused before a row is written.

What a sink takes in one batch it takes in the next, and in a replay.
"""

from __future__ import annotations

import tempfile
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg2.sql
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StringType, StructField, StructType

from forebay import DeclarationError, DeltaSink, EnvVar, IcebergSink, ParquetSink, PostgresSink
from orchestration.declarations.sink import SinkError
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark
from tests.integration.orchestration.target_database import TIME, Target, attempt
from tests.support.searches import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestration.declarations.sink import OutputAttempt, Sink

LATER = TIME + timedelta(hours=2)
#: Names that a statement, a path, a format or a reader may take for something else.
ODD = st.sampled_from(
    [
        *("%", "cpu %", "%s", "%(target)s", "{names}", 'a"b', "a'b", "`a`", "a.b", "a b", "a,b;c", "a=b", "a/b", "\\"),
        *("date", "Date", "hour", "batch_time", "_batch_time", "_BATCH_TIME", "ctid", "xmin", "select", "value"),
        *("a" * 63, "a" * 64, "é" * 31, "é" * 32, " ", "", "\0", "a\nb", "ä", "A", "a", "\U0001f600", "\u202e"),
    ]
)
NAMES = st.lists(ODD | st.text(max_size=5), min_size=1, max_size=3)


def frame(names: Sequence[str], *values: str) -> Any:  # noqa: ANN401  a DataFrame
    schema = StructType([StructField(name, StringType()) for name in names])
    return FrameWithoutSpark([tuple(f"{value}{at}" for at in range(len(names))) for value in values], schema=schema)


def rows(names: Sequence[str], *values: str) -> list[dict[str, str]]:
    return [{name: f"{value}{at}" for at, name in enumerate(names)} for value in values]


def put(sink: Sink, names: Sequence[str], value: str, at: OutputAttempt) -> None:
    written = sink.write(frame(names, value), at)
    if sink.publishes:
        sink.publish(written.location, batch_time=at.batch_time)


def check(sink: Sink, names: Sequence[str], read: Any) -> None:  # noqa: ANN401  a function
    """Write two batches and replay the first; the target must have them all, or refuse the first one and have none."""
    try:
        put(sink, names, "first", attempt())
    except SinkError:
        assert read() == [], "it was refused, after rows were written"
        return
    put(sink, names, "second", attempt(time=LATER))
    put(sink, names, "again", attempt(2))
    found = [{name: value for name, value in row.items() if name in names} for row in read()]
    assert sorted(found, key=str) == sorted(rows(names, "again", "second"), key=str)


@pytest.mark.search
@pytest.mark.parametrize("mode", ["append", "overwrite", "merge"])
@settings(max_examples=examples(120), suppress_health_check=list(HealthCheck))
@given(names=NAMES, table=ODD | st.just("counts"))
@example(["cpu %"], "counts")
@example(["a"], "100 %")
def test_postgres(target: Target, mode: Any, names: list[str], table: str) -> None:  # noqa: ANN401
    assume("." not in table)
    key = names[0] if mode == "merge" else None
    try:
        sink = PostgresSink(EnvVar("TARGET_URL"), f"public.{table}", mode=mode, key=key)
    except DeclarationError:
        return
    at = psycopg2.sql.SQL("SELECT * FROM {}").format(psycopg2.sql.Identifier("public", table))

    def read() -> list[dict[str, Any]]:
        with psycopg2.connect(target.url) as connection, connection.cursor() as cursor:
            cursor.execute(at)
            columns = [column.name for column in cursor.description]
            return [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]

    def read_if_there() -> list[dict[str, Any]]:
        with suppress(psycopg2.errors.UndefinedTable):
            return read()
        return []

    try:
        if mode == "append":
            check(sink, names, read_if_there)
        else:
            with suppress(SinkError):
                put(sink, names, "first", attempt())
                put(sink, names, "second", attempt(time=LATER))
                assert {tuple(row[name] for name in names) for row in read()} >= {
                    tuple(f"second{number}" for number in range(len(names)))
                }
    finally:
        with psycopg2.connect(target.url) as connection, connection.cursor() as cursor:
            cursor.execute(psycopg2.sql.SQL("DROP TABLE IF EXISTS {}").format(psycopg2.sql.Identifier("public", table)))
            cursor.execute("DROP TABLE IF EXISTS forebay_commits")


@pytest.mark.search
@settings(max_examples=examples(200), suppress_health_check=list(HealthCheck))
@given(names=NAMES)
@example(["date", "hour"])
@example(["a", "A"])
def test_parquet(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sink = ParquetSink(folder, compact=True)
        check(sink, names, lambda: sink.dataset().to_table().to_pylist() if any(Path(folder).glob("date=*")) else [])


@pytest.mark.search
@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
@given(names=NAMES)
@example(["a b"])
def test_delta(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/counts"

        def read() -> list[dict[str, Any]]:
            return DeltaTable(path).to_pyarrow_table().to_pylist() if DeltaTable.is_deltatable(path) else []

        check(DeltaSink(path), names, read)


@pytest.mark.search
@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(names=NAMES)
@example(["a.b"])
def test_iceberg(names: list[str]) -> None:
    from pyiceberg.catalog import load_catalog  # noqa: PLC0415
    from pyiceberg.exceptions import NoSuchTableError  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}

        def read() -> list[dict[str, Any]]:
            with suppress(NoSuchTableError):
                found: list[dict[str, Any]] = (
                    load_catalog("forebay", **catalog).load_table("s.counts").scan().to_arrow().to_pylist()
                )
                return found
            return []

        check(IcebergSink("s.counts", catalog=catalog), names, read)


def test_a_column_that_readers_take_from_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    for compact in (False, True):
        with pytest.raises(SinkError, match=r"has a column 'Date', 'batch_time', which is the target's own: rename"):
            ParquetSink(tmp_path, compact=compact).write(frame(["a", "Date", "batch_time"], "x"), attempt())
    assert list(tmp_path.iterdir()) == []

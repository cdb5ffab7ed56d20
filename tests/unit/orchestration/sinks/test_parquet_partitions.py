"""Check that folders of values give back what they were made of, or that the row is refused."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types

from forebay import ParquetSink
from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.sink import SinkError
from orchestration.sinks import parquet_partitions
from orchestration.sinks.file_stores import LocalFiles
from orchestration.sinks.parquet_partitions import FoldersOfValues, check_partitions, parted, partitions_of
from orchestration.sinks.parquet_staging import ParquetStaging
from orchestration.sinks.refused_rows import RefusedRows, RefusedRowsError
from tests.support.searches import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

ODD = [
    "",
    "01",
    "1e5",
    ".5",
    "NaN",
    "Infinity",
    "1f",
    "0x1p3",
    "2026",
    "2026-01-01",
    "T12:00",
    "12:00",
    "a/b=c%",
    "%41",
]
TEXTS = st.none() | st.sampled_from([*ODD, "__HIVE_DEFAULT_PARTITION__", "2026-Q1", "é", " x", "x" * 300]) | st.text()


NULLS = ds.partitioning(pa.schema([("text", pa.string()), ("n", pa.int32())]), flavor="hive")


def staged(directory: str, table: pa.Table, *columns: str, keeps: bool = True) -> list[dict[str, Any]]:
    schema = table.schema.serialize().to_pybytes()
    staging = ParquetStaging(LocalFiles(directory), "", schema, None, keeps, FoldersOfValues(columns))
    return [row for batch in staging.stage(table.to_batches()) for row in batch.to_pylist()]


@pytest.mark.search
@given(rows=st.lists(st.tuples(TEXTS, st.integers(-(2**31), 2**31 - 1), TEXTS), min_size=1, max_size=20))
@settings(max_examples=examples(300), deadline=None)
def test_each_value_is_read_back_or_its_row_is_refused(rows: list[tuple[str | None, int, str | None]]) -> None:
    kept = [(text, number, other) for text, number, other in rows if not _has_surrogates(text, other)]
    text, number, other = zip(*kept, strict=True) if kept else ((), (), ())
    table = pa.table(
        {
            "text": pa.array(text, pa.string()),
            "n": pa.array(number, pa.int32()),
            "other": pa.array(other, pa.string()),
            "row": pa.array(range(len(kept)), pa.int32()),
        }
    )
    with TemporaryDirectory() as directory:
        answers = staged(directory, table, "text", "n")
        refused = {
            json.loads(line)["refused_row"]["row"] for answer in answers for line in answer["refused_rows"].splitlines()
        }
        back = {}
        for answer in answers:
            if answer["path"] is not None:
                # Each file by itself: Arrow infers a column's type from all folders, and none from those of nulls.
                found = Path(directory, answer["path"])
                assert partitions_of(Path(answer["path"]).parts) == ("text", "n")
                how = NULLS if "text=__HIVE" in str(found) else "hive"
                read = ds.dataset(found, partitioning=how, partition_base_dir=directory).to_table()
                back.update({row["row"]: (row["text"], row["n"], row["other"]) for row in read.to_pylist()})
    assert back == {at: row for at, row in enumerate(kept) if at not in refused}
    for at in refused:
        assert (
            kept[at][0] in {*ODD, "__HIVE_DEFAULT_PARTITION__"}
            or len(kept[at][0].encode()) > 80
            or _is_odd(kept[at][0])
        )


def _has_surrogates(*texts: str | None) -> bool:
    return any(text is not None and any("\ud800" <= one <= "\udfff" for one in text) for text in texts)


def _is_odd(text: str) -> bool:
    return parquet_partitions._INFERRED.fullmatch(text) is not None


def test_many_columns_with_many_values_keep_their_rows_apart() -> None:
    """Check with a product of values that no 64 bits hold."""
    columns = [f"c{number}" for number in range(8)]
    table = pa.table({**{name: [f"v{row}" for row in range(400)] for name in columns}, "n": range(400)})
    found = {folder: rows.to_pylist() for folder, rows in parted(table, columns, RefusedRows())}
    assert found == {"/".join(f"{name}=v{row}" for name in columns): [{"n": row}] for row in range(400)}


def test_days_that_no_reader_takes_are_refused(tmp_path: Path) -> None:
    table = pa.table(
        {"day": pa.array([20_000, 2_932_897, -719_163, None], pa.int32()).cast(pa.date32()), "n": range(4)}
    )
    [one, null] = sorted(staged(str(tmp_path), table, "day"), key=lambda answer: answer["path"])
    assert Path(null["path"]).parent.name == "day=__HIVE_DEFAULT_PARTITION__"
    assert Path(one["path"]).parent.name == f"day={date.fromordinal(date(1970, 1, 1).toordinal() + 20_000)}"
    assert one["refused"] + null["refused"] == 2
    with pytest.raises(RefusedRowsError, match="column day is the day 2,932,897 since 1970"):
        staged(str(tmp_path), table, "day", keeps=False)


def test_a_task_fills_a_bounded_number_of_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_partitions, "MOST_FOLDERS", 2)
    table = pa.table({"id": ["a", "b", "c"], "n": [1, 2, 3]})
    with pytest.raises(RefusedRowsError, match="more than 2 folders"):
        staged(str(tmp_path), table, "id")


@pytest.mark.parametrize(
    ("partition_by", "compact", "message"),
    [
        ([5], False, r"is no list of columns: write partition_by=\['country'\]"),
        (["a", "a"], False, "has 'a' twice"),
        (["_a"], False, "rename '_a'"),
        (["a"], True, "choose one of the two"),
    ],
)
def test_a_declaration_that_can_not_work_is_refused(partition_by: Sequence[str], compact: bool, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        ParquetSink("out", compact=compact, partition_by=partition_by)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (["other"], "has no column 'other' of partition_by: it has n, share"),
        (["share"], "partition_by has 'share', a double"),
        (["n", "n2"], "has no column 'n2'"),
    ],
)
def test_columns_that_do_not_fit_are_named(columns: list[str], message: str) -> None:
    schema = types.StructType(
        [types.StructField("n", types.LongType()), types.StructField("share", types.DoubleType())]
    )
    with pytest.raises(SinkError, match=message):
        check_partitions(schema, columns, "output counts")
    check_partitions(schema, ["n"], "output counts")


def test_files_keep_a_column() -> None:
    schema = types.StructType([types.StructField("n", types.LongType())])
    with pytest.raises(SinkError, match="all of its columns"):
        check_partitions(schema, ["n"], "output counts")

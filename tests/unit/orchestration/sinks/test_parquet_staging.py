"""Check what tasks stage in a store: durable files, and rows that a table can't hold put aside."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orchestration.sinks.file_stores import LocalFiles, ObjectFiles
from orchestration.sinks.parquet_staging import ParquetStaging, staged_files
from orchestration.sinks.refused_files import show
from orchestration.sinks.refused_rows import RefusedRowsError
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark
from tests.integration.orchestration.target_database import TIME

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame

WORDS = pa.schema([pa.field("word", pa.string(), nullable=False), pa.field("n", pa.int64())])


def frame(*partitions: list[tuple[object, ...]]) -> DataFrame:
    return cast("DataFrame", FrameWithoutSpark(*partitions))


def staging(folder: Path, *, keeps: bool) -> ParquetStaging:
    return ParquetStaging(LocalFiles(str(folder)), "a/b", WORDS.serialize().to_pybytes(), TIME, keeps)


def rows(folder: Path, paths: Sequence[str]) -> list[tuple[str, int]]:
    found = [row for path in paths for row in pq.ParquetFile(folder / path).read().to_pylist()]
    return sorted((row["word"], row["n"]) for row in found)


def test_rows_with_a_null_that_must_not_be_are_refused(tmp_path: Path) -> None:
    result = frame([("a", 1), (None, 2)], [(None, 3)], [("b", None)])
    staged = staged_files(result, staging(tmp_path, keeps=True))
    assert (rows(tmp_path, [file.path for file in staged.files]), staged.rows, staged.refused) == (
        [("a", 1), ("b", None)],
        2,
        2,
    )
    with pytest.raises(RefusedRowsError, match="column word is null, and must have a value"):
        staged_files(result, staging(tmp_path, keeps=False))


def test_rows_that_share_a_key_are_refused_in_whatever_task_they_are(tmp_path: Path) -> None:
    result = frame([("a", 1), ("b", 1), ("c", 1)], [("a", 2), ("d", 1), ("d", 2)], [("a", 3)])
    staged = staged_files(result, staging(tmp_path, keeps=True), ["word"])
    assert rows(tmp_path, [file.path for file in staged.files]) == [("b", 1), ("c", 1)]
    assert (staged.rows, staged.refused) == (2, 5)
    show(LocalFiles(str(tmp_path)), "a/b", TIME, lambda: None)
    [shown] = (tmp_path / "_refused_rows").iterdir()
    refused = [json.loads(line)["refused_row"] for line in shown.read_text().splitlines()]
    assert sorted((row["word"], row["n"]) for row in refused) == [("a", 1), ("a", 2), ("a", 3), ("d", 1), ("d", 2)]
    whole = staged_files(result, staging(tmp_path, keeps=True), ["word", "n"])
    assert (whole.rows, whole.refused) == (7, 0)
    with pytest.raises(RefusedRowsError, match=r"the key \(word='a'\): several rows of the batch have this key"):
        staged_files(result, staging(tmp_path, keeps=False), ["word"])


def test_a_file_is_shown_in_place_of_an_earlier_one_when_the_check_lets_it(tmp_path: Path) -> None:
    store = LocalFiles(str(tmp_path))
    for number in (1, 2):
        store.put(f"staged/{number}", str(number).encode())
    store.show("staged/1", "shown/file", lambda: None)

    def lost() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        store.show("staged/2", "shown/file", lost)
    assert store.open("shown/file").read() == b"1"
    store.show("staged/2", "shown/file", lambda: None)
    assert store.open("shown/file").read() == b"2"
    assert (store.exists("staged/2"), store.exists("staged/3")) == (True, False)
    for _ in range(2):
        store.remove("shown/file")
    assert not store.exists("shown/file")


def test_a_store_is_pickled_with_its_secrets_and_printed_without() -> None:
    store = ObjectFiles("s3://key:very-secret@bucket/prefix?region=x")
    assert pickle.loads(pickle.dumps(store)) == store
    assert (store.place, "very-secret" in repr(store)) == ("s3://bucket/prefix", False)

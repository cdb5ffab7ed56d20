"""Check that readers which filter a table's rows find each of them, whatever is said of a file's bounds."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, QueryBuilder

from forebay import DeltaSink
from forebay_contrib.delta import commits
from orchestration.declarations.sink import Upkeep
from orchestration.sinks.batch_column import BATCH_TIME
from tests.integration.orchestration.frame_without_spark import words
from tests.integration.orchestration.target_database import TIME, attempt

if TYPE_CHECKING:
    from pathlib import Path


def found(path: Path) -> list[set[int]]:
    """Return the numbers that each reader finds by a condition which all rows meet."""
    table = DeltaTable(path)
    orders = table.to_pyarrow_dataset()
    from_duckdb = duckdb.from_arrow(orders).filter("n > 0 AND word <> ''").fetchall()
    by_sql = QueryBuilder().register("orders", table).execute("SELECT n FROM orders WHERE n > 0 AND word <> ''")
    return [
        set(orders.to_table(filter=(pc.field("n") > 0) & (pc.field("word") != ""))["n"].to_pylist()),
        set(table.to_pyarrow_table(filters=[("n", ">", 0)])["n"].to_pylist()),
        {row[orders.schema.get_field_index("n")] for row in from_duckdb},
        set(pa.table(by_sql.read_all())["n"].to_pylist()),
    ]


@pytest.mark.parametrize(
    "options", [{}, {"partition_by": "word"}, {"mode": "merge", "key": "n"}], ids=["append", "partitions", "merge"]
)
def test_a_filter_finds_every_row(tmp_path: Path, options: dict[str, Any]) -> None:
    sink = DeltaSink(tmp_path / "t", **options)
    for number in range(3):
        sink.write(words(("a", 2 * number + 1), ("b", 2 * number + 2)), attempt(time=TIME + timedelta(seconds=number)))
        assert found(tmp_path / "t") == [set(range(1, 2 * number + 3))] * 4
    sink.write(words(("a", 1), ("c", 7)), attempt(2))
    assert found(tmp_path / "t") == [{1, 3, 4, 5, 6, 7}] * 4


def test_upkeep_repairs_the_bounds_that_hid_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check files of version 0.1.0, which had bounds of the batch time alone."""
    stamp = TIME.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    old = {"minValues": {BATCH_TIME: stamp}, "maxValues": {BATCH_TIME: stamp}}
    sink = DeltaSink(tmp_path / "t")
    with monkeypatch.context() as patched:
        patched.setattr(commits, "rows_alone", lambda rows: json.dumps({"numRecords": rows, **old}))
        sink.write(words(("a", 1), ("b", 2)), attempt())
    assert found(tmp_path / "t")[0] == set(), "else this test proves nothing"
    sink.upkeep(Upkeep("words", "counts"))
    assert found(tmp_path / "t") == [{1, 2}] * 4
    commits_of = DeltaTable(tmp_path / "t").version()
    sink.upkeep(Upkeep("words", "counts"))
    assert DeltaTable(tmp_path / "t").version() == commits_of
    sink.write(words(("c", 3)), attempt(2))
    assert found(tmp_path / "t") == [{3}] * 4

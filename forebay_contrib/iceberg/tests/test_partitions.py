"""Check how a task's rows are parted: no value is another one's partition, and a row that has none is refused."""

from __future__ import annotations

import pickle
import sys
from datetime import UTC, datetime
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.transforms import parse_transform

from forebay_contrib.iceberg.data_files import iceberg_schema
from forebay_contrib.iceberg.partitions import Partition, PartitionedRows, spec_of
from orchestration.sinks.refused_rows import RefusedRows

_COLUMNS = pa.schema([("word", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
_YEAR_20000 = 568_971_820_800_000_000


def parting(*by: str) -> PartitionedRows:
    schema = iceberg_schema(_COLUMNS)
    spec = spec_of([Partition.of(text) for text in by], schema)
    return PartitionedRows.of(spec, schema, datetime(2026, 1, 1, tzinfo=UTC))


def table(*rows: tuple[str | None, int | None, int | None]) -> pa.Table:
    return pa.table([[row[at] for row in rows] for at in range(3)], schema=_COLUMNS)


@pytest.mark.parametrize(
    ("text", "read", "shown"),
    [
        ("country", Partition("country"), "country"),
        ("days(at)", Partition("at", "day"), "day(at)"),
        ("bucket(016,  a b)", Partition("a b", "bucket[16]"), "bucket(16, a b)"),
        ("truncate(4, f(x))", Partition("f(x)", "truncate[4]"), "truncate(4, f(x))"),
    ],
)
def test_a_declared_partition_is_read(text: str, read: Partition, shown: str) -> None:
    assert (Partition.of(text), Partition.of(text).shown) == (read, shown)
    assert Partition.of(shown) == read


@pytest.mark.parametrize("by", ["year(at)", "month(at)", "day(at)", "hour(at)", "at"])
def test_a_time_that_a_commit_does_not_take_refuses_its_row_alone(by: str) -> None:
    refused = RefusedRows(keeps=True)
    parts = parting(by, "word").parted(table(("a", 1, 0), ("b", 2, _YEAR_20000), (None, 4, None)), refused)
    assert sorted(part["n"].to_pylist() for _, part in parts) == [[1], [4]]
    word = by.partition("(")[0].replace("at", "identity")
    assert [row.reason for row in refused.rows] == [f"column at is beyond what {word} of a partition takes"]


@given(
    rows=st.lists(
        st.tuples(
            st.none() | st.sampled_from(["", "null", "None", "a", "aa", "é"]) | st.text(max_size=3),
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.integers(-(2**55), 2**55),
        ),
        max_size=12,
    )
)
def test_each_row_is_in_the_partition_of_its_values_and_no_other_is_there(
    rows: list[tuple[str | None, int | None, int | None]],
) -> None:
    by = [("word", "truncate[1]"), ("n", "bucket[3]"), ("at", "hour")]
    parted = parting("truncate(1, word)", "bucket(3, n)", "hour(at)")
    types = {field.name: field.field_type for field in iceberg_schema(_COLUMNS).fields}
    transforms = [parse_transform(transform).transform(types[name]) for name, transform in by]
    folders: dict[str, tuple[object, ...]] = {}
    seen = []
    for folder, part in parted.parted(table(*rows), RefusedRows()):
        plain = part.set_column(2, "at", part["at"].cast(pa.int64()))
        for row in plain.to_pylist():
            seen.append((row["word"], row["n"], row["at"]))
            values = tuple(transform(row[name]) for (name, _), transform in zip(by, transforms, strict=True))
            assert folders.setdefault(folder, values) == values == parted.partition(part.slice(0, 1))
    assert len({*folders.values()}) == len(folders)
    assert sorted(map(repr, seen)) == sorted(map(repr, rows))


def test_a_table_without_partitions_needs_no_pyiceberg_where_tasks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    parted = pickle.loads(pickle.dumps(parting()))
    monkeypatch.setitem(cast("dict[str, Any]", sys.modules), "pyiceberg.transforms", None)
    [(folder, part)] = parted.parted(table(("a", 1, 0)), RefusedRows())
    assert (folder, part.num_rows) == ("", 1)

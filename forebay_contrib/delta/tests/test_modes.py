"""Check what the modes, new columns and partitions of a DeltaSink do to a table, whatever is killed or comes late."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema, write_deltalake
from deltalake.schema import PrimitiveType
from pyspark.sql import types

from forebay import DeclarationError, DeltaSink
from forebay.testing.sinks import Died, _die, at
from forebay_contrib.delta.commits import Commit
from orchestration.declarations.sink import AttemptOutdatedError, SinkError, Step
from orchestration.sinks.refused_rows import RefusedRowsError
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark, words
from tests.integration.orchestration.target_database import TIME, attempt

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from orchestration.sinks.column_changes import ColumnPolicy

EARLIER, LATER, LAST = (TIME + timedelta(seconds=seconds) for seconds in (-10, 10, 20))
WORD, N = ("word", types.StringType()), ("n", types.LongType())
EXTRA = ("extra", types.StringType())


def frame(rows: list[tuple[Any, ...]], *fields: tuple[str, types.DataType]) -> DataFrame:
    schema = types.StructType([types.StructField(*field) for field in fields])
    return cast("DataFrame", FrameWithoutSpark(rows[::2], rows[1::2], schema=schema))


def rows(sink: DeltaSink, *names: str) -> list[tuple[Any, ...]]:
    found = DeltaTable(sink.target).to_pyarrow_table().to_pylist()
    return sorted((tuple(row[name] for name in names or ("word", "n")) for row in found), key=str)


def newest_entries(sink: DeltaSink) -> set[str]:
    """Return the kinds of the entries in the newest commit."""
    log = Path(sink.target, "_delta_log", f"{DeltaTable(sink.target).version():020}.json")
    return {kind for line in log.read_text().splitlines() if line for kind in json.loads(line)}


def test_overwrite_has_the_rows_of_the_newest_batch(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", mode="overwrite")
    sink.write(words(("a", 1)), attempt())
    sink.write(words(("b", 2)), attempt(time=LATER))
    assert rows(sink) == [("b", 2)]
    late = sink.write(words(("c", 3)), attempt(2))
    assert (rows(sink), late.rows) == ([("b", 2)], 1)
    found = sink.committed(attempt(3))
    assert found is not None
    assert found.attempt == 2
    sink.write(words(("d", 4)), attempt(2, time=LATER))
    assert rows(sink) == [("d", 4)]
    sink.write(words(), attempt(time=LAST))
    sink.write(words(("e", 5)), attempt(3, time=LATER))
    assert rows(sink) == []
    # Its pipeline was removed and added again.
    sink.write(words(("new", 1)), attempt(pipeline_id=8))
    sink.write(words(("f", 6)), attempt(4, time=LAST))
    assert rows(sink) == [("new", 1)]


def test_overwrite_of_a_table_that_was_appended_to_goes_by_its_rows(tmp_path: Path) -> None:
    DeltaSink(tmp_path / "t").write(words(("a", 1)), attempt(time=LATER))
    sink = DeltaSink(tmp_path / "t", mode="overwrite")
    sink.write(words(("late", 0)), attempt())
    assert rows(sink) == [("a", 1)]
    sink.write(words(("b", 2)), attempt(time=LAST))
    assert rows(sink) == [("b", 2)]


def test_batches_of_a_pipeline_that_was_added_again_are_newer(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", mode="overwrite")
    sink.write(words(("a", 1)), attempt(time=LATER))
    sink.write(words(("new", 1)), attempt(pipeline_id=8))
    assert rows(sink) == [("new", 1)]
    sink.write(words(("old", 1)), attempt(time=LAST))
    assert rows(sink) == [("new", 1)]


def test_a_merged_row_keeps_nothing_of_the_row_before(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", mode="merge", key="word")
    sink.write(frame([("a", 1, "old"), ("b", 1, "old")], WORD, N, EXTRA), attempt())
    sink.write(frame([("a", 2)], WORD, N), attempt(time=LATER))
    assert rows(sink, "word", "n", "extra") == [("a", 2, None), ("b", 1, "old")]


def test_a_key_is_one_across_the_partitions_of_other_columns(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", mode="merge", key="n", partition_by=["word", "n"], on_bad_rows="dead_letter")
    written = sink.write(frame([("a", 1, "x"), ("b/%", 1, "y"), ("a", 2, "z")], WORD, N, EXTRA), attempt())
    sink.publish(written.location, batch_time=TIME)
    assert rows(sink) == [("a", 2)]
    [shown] = (tmp_path / "t").glob("_refused_rows/*.jsonl")
    refused = [json.loads(line)["refused_row"] for line in shown.read_text().splitlines()]
    assert sorted((row["word"], row["n"], row["extra"]) for row in refused) == [("a", "1", "x"), ("b/%", "1", "y")]


def test_a_float_is_no_key(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", mode="merge", key="x")
    with pytest.raises(SinkError, match="column 'x' of key is a double"):
        sink.check_columns(frame([], ("x", types.DoubleType())).schema, "counts")


def test_a_text_that_makes_no_name_of_a_folder_is_refused(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", partition_by="word")
    with pytest.raises(RefusedRowsError, match="too long for a folder's name"):
        sink.write(words(("é" * 50, 1)), attempt())
    sink.write(words(("é" * 40, 1)), attempt())
    sink.write(words(("b", 1)), attempt(time=LATER))
    DeltaTable(sink.target).optimize.z_order(["n"])
    sink.write(words(("é" * 40, 2)), attempt(2))
    assert rows(sink) == [("b", 1), ("é" * 40, 2)]


def _drop(path: Path) -> None:
    shutil.rmtree(path)


def _replace(path: Path) -> None:
    columns = DeltaTable(path).schema()
    shutil.rmtree(path)
    DeltaTable.create(path, columns)


def _part(path: Path) -> None:
    columns = Schema(
        [
            Field(name, PrimitiveType(of))
            for name, of in [("word", "string"), ("n", "long"), ("_batch_time", "timestamp")]
        ]
    )
    DeltaTable.create(path, columns, partition_by=["word"])


def _constrain(path: Path) -> None:
    DeltaTable(path).alter.add_constraint({"positive": "n > 0"})


@pytest.mark.parametrize(
    ("then", "said"),
    [
        (_drop, "another one than when the tasks wrote its files"),
        (_replace, "another one than when the tasks wrote its files"),
        (_part, "another one than when the tasks wrote its files"),
        (_constrain, r"delta\.constraints\.positive"),
    ],
)
def test_a_table_that_became_another_since_its_files_were_written_gets_none_of_them(
    tmp_path: Path, then: Callable[[Path], None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = DeltaSink(tmp_path / "t")
    if then is not _part:
        sink.write(words(("a", 1)), attempt())
    monkeypatch.setattr(sink, "reached", at(Step.STAGED, lambda: then(tmp_path / "t")))
    with pytest.raises(SinkError, match=said):
        sink.write(words(("b", -1)), attempt(time=LATER))
    if then is not _drop:
        assert ("b", -1) not in rows(sink)


def test_merge_keeps_the_newest_batchs_row_of_each_key(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", mode="merge", key="word")
    sink.write(words(("a", 1), ("b", 1)), attempt())
    sink.write(words(("a", 2)), attempt(time=LATER))
    assert rows(sink) == [("a", 2), ("b", 1)]
    # A replay: a key that it no longer has is deleted, and one of a newer batch stays.
    sink.write(words(("a", 9), ("c", 9)), attempt(2))
    assert rows(sink) == [("a", 2), ("c", 9)]
    sink.write(words(("a", 0), ("c", 0), ("d", 0)), attempt(time=EARLIER))
    assert rows(sink) == [("a", 2), ("c", 9), ("d", 0)]
    sink.write(words(), attempt(3))
    assert rows(sink) == [("a", 2), ("d", 0)]
    # A row without a batch time is another writer's.
    others = pa.table({"word": ["z"], "n": [7], "_batch_time": pa.nulls(1, pa.timestamp("us", "UTC"))})
    write_deltalake(tmp_path / "t", others, mode="append")
    sink.write(words(("z", 8)), attempt(time=LAST))
    assert rows(sink) == [("a", 2), ("d", 0), ("z", 7)]
    # That changed no row, and is a commit all the same.
    sink.write(words(), attempt(4))
    with pytest.raises(AttemptOutdatedError):
        sink.write(words(("late", 1)), attempt(3))


def test_rows_of_one_key_or_without_one_are_refused(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", mode="merge", key=["word"])
    with pytest.raises(RefusedRowsError, match=r"the key \(word='z'\): several rows of the batch have this key"):
        # In two tasks.
        sink.write(frame([("z", 1), ("z", 2)], WORD, N), attempt())
    with pytest.raises(RefusedRowsError, match="column word is null, and must have a value"):
        sink.write(frame([(None, 1)], WORD, N), attempt())
    keeping = DeltaSink(tmp_path / "t", mode="merge", key=["word"], on_bad_rows="dead_letter")
    written = keeping.write(frame([("z", 1), ("z", 2), (None, 3), ("y", 4)], WORD, N), attempt())
    keeping.publish(written.location, batch_time=TIME)
    assert (written.rows, written.refused, rows(sink)) == (1, 3, [("y", 4)])
    [shown] = (tmp_path / "t").glob("_refused_rows/*.jsonl")
    refused = [json.loads(line)["refused_row"] for line in shown.read_text().splitlines()]
    assert sorted(row["n"] for row in refused) == [1, 2, 3]


@pytest.mark.parametrize("step", [Step.PREPARED, Step.STAGED, Step.COMMITTED])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"mode": "overwrite"}, [("a", 2), ("b", 3)]),
        ({"mode": "merge", "key": "word"}, [("a", 2), ("b", 3), ("old", 0)]),
        ({"partition_by": "word"}, [("a", 0), ("a", 2), ("b", 3), ("old", 0)]),
    ],
)
def test_an_attempt_that_dies_comes_out_once(
    tmp_path: Path, options: dict[str, Any], expected: list[Any], step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sink() -> DeltaSink:
        return DeltaSink(tmp_path / "t", **options)

    sink().write(words(("a", 0), ("old", 0)), attempt(time=EARLIER))
    dying = sink()
    monkeypatch.setattr(dying, "reached", at(step, _die))
    with pytest.raises(Died):
        dying.write(words(("a", 2), ("b", 3)), attempt())
    found = sink().committed(attempt(2))
    assert (found is not None) == (step is Step.COMMITTED)
    if found is None:
        sink().write(words(("a", 2), ("b", 3)), attempt(2))
    assert rows(sink()) == expected
    sink().write(words(("a", 2), ("b", 3)), attempt(3))
    assert rows(sink()) == expected


@pytest.mark.parametrize(
    "options", [{}, {"mode": "overwrite"}, {"mode": "merge", "key": "word"}, {"partition_by": "n"}]
)
def test_a_column_that_comes_later_is_added_with_its_first_rows(tmp_path: Path, options: dict[str, Any]) -> None:
    sink = DeltaSink(tmp_path / "t", **options)
    sink.write(words(("a", 1)), attempt())
    table = DeltaTable(sink.target).metadata()
    sink.write(frame([("b", 2, "x")], WORD, N, EXTRA), attempt(time=LATER))
    entries = newest_entries(sink)
    kept = [] if sink.mode == "overwrite" else [("a", 1, None)]
    assert rows(sink, "word", "n", "extra") == [*kept, ("b", 2, "x")]
    if sink.mode != "merge":
        assert {"metaData", "add", "txn"} <= entries, "one commit"
    now = DeltaTable(sink.target).metadata()
    assert (now.id, now.description) == (table.id, table.description)
    # A replay of a batch from before the column, and one with it.
    sink.write(words(("a", 3)), attempt(2))
    sink.write(frame([("b", 4, "y")], WORD, N, EXTRA), attempt(2, time=LATER))
    kept = [] if sink.mode == "overwrite" else [("a", 3, None)]
    assert rows(sink, "word", "n", "extra") == [*kept, ("b", 4, "y")]


@pytest.mark.parametrize("columns", ["add", "refuse"])
def test_a_merged_row_loses_what_the_result_lacks_only_if_the_columns_are_the_sinks(
    tmp_path: Path, columns: ColumnPolicy
) -> None:
    more = ("more", types.ArrayType(types.LongType()))
    first = DeltaSink(tmp_path / "t", mode="merge", key="word", partition_by="extra")
    first.write(frame([("a", 1, "x", [1, None]), ("b", 1, "y", [])], WORD, N, EXTRA, more), attempt())
    first.write(frame([("new", 9, "y", [9])], WORD, N, EXTRA, more), attempt(time=LAST))
    sink = DeltaSink(tmp_path / "t", mode="merge", key="word", columns=columns)
    for number in (1, 2):
        sink.write(words(("a", number), ("c", 2), ("new", 2)), attempt(number, time=LATER))
    assert rows(sink, "word", "n", "extra", "more") == [
        ("a", 2, *(("x", [1, None]) if columns == "refuse" else (None, None))),
        ("b", 1, "y", []),
        ("c", 2, None, None),
        ("new", 9, "y", [9]),
    ]


def test_a_column_without_a_zone_that_comes_later_leaves_a_table_that_can_be_read(tmp_path: Path) -> None:
    for options in ({}, {"mode": "overwrite"}, {"mode": "merge", "key": "word"}):
        sink = DeltaSink(tmp_path / str(options.get("mode")), **cast("Any", options))
        sink.write(words(("a", 1)), attempt())
        sink.write(frame([("b", 2, None)], WORD, N, ("at", types.TimestampNTZType())), attempt(time=LATER))
        assert ("b", 2) in rows(sink)


def test_a_column_is_added_to_anothers_table_if_it_is_said(tmp_path: Path) -> None:
    time = pa.array([0], pa.timestamp("us", "UTC"))
    write_deltalake(tmp_path / "t", pa.table({"word": ["x"], "n": [1], "_batch_time": time}))
    extra = frame([("b", 2, "x")], WORD, N, EXTRA)
    with pytest.raises(
        SinkError, match=r"the table has no column extra \(string\): ALTER TABLE .* or say columns='add'"
    ):
        DeltaSink(tmp_path / "t").write(extra, attempt())
    assert DeltaSink(tmp_path / "t").check_target(extra.schema).health == "failed"
    sink = DeltaSink(tmp_path / "t", columns="add")
    checked = sink.check_target(extra.schema)
    assert (checked.health, checked.found.rpartition("; ")[2]) == ("ok", "its next batch adds extra")
    sink.write(extra, attempt())
    assert rows(sink, "word", "extra") == [("b", "x"), ("x", None)]
    own = DeltaSink(tmp_path / "own", columns="refuse")
    own.write(words(("a", 1)), attempt())
    with pytest.raises(SinkError, match="has no column extra"):
        own.write(extra, attempt(2))


def test_two_batches_that_add_one_column_both_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = DeltaSink(tmp_path / "t")
    sink.write(words(("a", 1)), attempt())
    first = DeltaSink(tmp_path / "t")
    second = lambda: sink.write(frame([("c", 3, "z")], WORD, N, EXTRA), attempt(time=LAST))  # noqa: E731
    monkeypatch.setattr(first, "reached", at(Step.STAGED, cast("Any", second)))
    first.write(frame([("b", 2, "y")], WORD, N, EXTRA), attempt(time=LATER))
    assert rows(sink, "word", "extra") == [("a", None), ("b", "y"), ("c", "z")]
    other = DeltaSink(tmp_path / "t")
    added = ("other", types.LongType())
    third = lambda: sink.write(frame([("d", 4, "z")], WORD, N, ("other", types.StringType())), attempt(4, time=LAST))  # noqa: E731
    monkeypatch.setattr(other, "reached", at(Step.STAGED, cast("Any", third)))
    with pytest.raises(SinkError, match="column other is string in the table and int64 in the result"):
        other.write(frame([("b", 2, 5)], WORD, N, added), attempt(2, time=LATER))


@pytest.mark.parametrize("is_new", [False, True])
def test_a_commit_whose_answer_was_lost_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_new: bool
) -> None:
    """Its client repeats the put, which then conflicts with itself."""
    sink = DeltaSink(tmp_path / "t")
    if not is_new:
        sink.write(words(("a", 1)), attempt(time=EARLIER))
    name = "create" if is_new else "_name_files"
    real = getattr(Commit, name)

    def loses(commit: Commit, *arguments: Any) -> None:  # noqa: ANN401  as it was called
        real(commit, *arguments)
        raise OSError("the answer was lost")

    monkeypatch.setattr(Commit, name, loses)
    assert sink.write(words(("b", 2)), attempt()).rows == 1
    monkeypatch.undo()
    assert ("b", 2) in rows(sink)
    monkeypatch.setattr(Commit, name, lambda *_: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(SinkError, match=r"output 'counts' .*: no space left"):
        DeltaSink(tmp_path / ("new" if is_new else "t")).write(words(("b", 2)), attempt(2))


VALUES = [
    ("b/ %41=é\n", 5, date(1, 1, 1), True),
    ("01", -7, date(9999, 12, 31), False),
    (None, None, None, None),
    ("__HIVE_DEFAULT_PARTITION__", 0, date(2026, 1, 2), True),
    ("x" * 240, 1, date(2026, 1, 2), True),
]


@pytest.mark.parametrize("is_others", [False, True])
def test_each_value_of_a_partition_column_is_read_back(tmp_path: Path, *, is_others: bool) -> None:
    names = ["text", "number", "day", "flag"]
    kinds = [types.StringType(), types.IntegerType(), types.DateType(), types.BooleanType()]
    fields = [*zip(names, kinds, strict=True), N]
    if is_others:
        arrow = [pa.string(), pa.int32(), pa.date32(), pa.bool_()]
        columns = [*zip(names, arrow, strict=True), ("n", pa.int64()), ("_batch_time", pa.timestamp("us", "UTC"))]
        DeltaTable.create(tmp_path / "t", Schema.from_arrow(pa.schema(columns)), partition_by=names)
    sink = DeltaSink(tmp_path / "t", partition_by=() if is_others else names)
    given = [(*values, at) for at, values in enumerate(VALUES)]
    for number in (1, 2):
        sink.write(frame(given, *fields), attempt(number))
        assert rows(sink, *names, "n") == sorted(given, key=str)
    # Rewritten by the path that goes through the files again.
    DeltaTable(sink.target).optimize.compact()
    sink.write(frame(given[:3], *fields), attempt(3))
    assert rows(sink, *names, "n") == sorted(given[:3], key=str)
    with pytest.raises(RefusedRowsError, match="column text is an empty text"):
        sink.write(frame([("", 1, None, None, 9)], *fields), attempt(4))


def test_a_tables_partitions_are_not_changed(tmp_path: Path) -> None:
    DeltaSink(tmp_path / "t", partition_by=["word"]).write(words(("a", 1)), attempt())
    for other in (["n"], ["n", "word"]):
        sink = DeltaSink(tmp_path / "t", partition_by=other)
        with pytest.raises(SinkError, match="is partitioned by word, and partition_by="):
            sink.write(words(("a", 1)), attempt(2))
        assert sink.check_target(words().schema).health == "failed"
    with pytest.raises(SinkError, match="has no column 'x' of partition_by"):
        DeltaSink(tmp_path / "t", partition_by="x").check_columns(words().schema, "counts")
    with pytest.raises(SinkError, match="the partition column at"):
        DeltaSink(tmp_path / "t", partition_by="at").check_columns(
            frame([], ("at", types.TimestampType()), N).schema, "counts"
        )


def test_a_null_in_a_required_column_is_a_row_that_is_refused(tmp_path: Path) -> None:
    kinds = [("word", "string"), ("n", "long"), ("_batch_time", "timestamp")]
    schema = Schema([Field(name, PrimitiveType(kind), nullable=False) for name, kind in kinds])
    DeltaTable.create(tmp_path / "t", schema=schema)
    sink = DeltaSink(tmp_path / "t")
    sink.write(words(("a", 1)), attempt())
    with pytest.raises(RefusedRowsError, match="column n is null"):
        sink.write(words(("a", None)), attempt(2))
    with pytest.raises(SinkError, match=r"the result has no column n .* which must not be null"):
        sink.write(frame([("a",)], WORD), attempt(2))
    assert rows(sink) == [("a", 1)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "upsert"}, "must be one of append, overwrite, merge"),
        ({"mode": "merge"}, "needs the columns"),
        ({"key": "word"}, "is of no use to mode='append'"),
        ({"mode": "merge", "key": ["a", "a"]}, "none twice"),
        ({"partition_by": [5]}, "give names of columns"),
        ({"columns": "drop"}, "must be one of add, refuse"),
    ],
)
def test_a_declaration_that_can_not_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        DeltaSink("data/t", **options)


def test_a_declaration_says_what_is_given(tmp_path: Path) -> None:
    assert DeltaSink(tmp_path).declaration() == {"kind": "delta", "path": str(tmp_path)}
    sink = DeltaSink(tmp_path, mode="merge", key="word", columns="add", partition_by="day")
    assert sink.declaration() == {
        "kind": "delta",
        "path": str(tmp_path),
        "mode": "merge",
        "key": ["word"],
        "columns": "add",
        "partition_by": ["day"],
    }


def starts(*numbers: int | None) -> DataFrame:
    return frame([(number,) for number in numbers], N)


def test_windows_with_nulls_are_found_in_a_table_of_others(tmp_path: Path) -> None:
    columns = pa.schema([("word", pa.string()), ("n", pa.int64()), ("_batch_time", pa.timestamp("us", "UTC"))])
    gone = [(None, 1, TIME), (None, 1, EARLIER), ("a", None, EARLIER), ("b", 1, EARLIER)]
    # Of later batches, of none, and of other windows.
    kept = [(None, 1, LATER), ("b", 1, LATER), (None, 1, None), (None, None, EARLIER), (None, 2, EARLIER)]
    theirs = [dict(zip(columns.names, row, strict=True)) for row in (*gone, *kept)]
    write_deltalake(tmp_path / "t", pa.Table.from_pylist(theirs, columns))
    sink = DeltaSink(tmp_path / "t", mode="merge", key=["word", "n"])
    windows = words((None, 1), ("a", None), ("b", 1), (None, 7), (None, 1))
    sink.write(words(("a", 1)), replace(attempt(2), replaced=windows))
    assert rows(sink, *columns.names) == sorted([*kept, ("a", 1, TIME)], key=str)


def test_the_rows_of_windows_go_from_a_table_with_required_columns_and_partitions(tmp_path: Path) -> None:
    kinds = [("word", "string"), ("n", "long"), ("extra", "string"), ("_batch_time", "timestamp")]
    schema = Schema([Field(name, PrimitiveType(kind), nullable=False) for name, kind in kinds])
    DeltaTable.create(tmp_path / "t", schema=schema, partition_by=["extra", "n"])
    sink = DeltaSink(tmp_path / "t", mode="merge", key=["word", "n", "extra"])
    fields = (WORD, N, EXTRA)
    sink.write(frame([("a", 1, "x"), ("it's", 1, "x"), ("b", 2, "x"), ("a", 1, "y")], *fields), attempt())
    sink.write(frame([("c", 1, "x")], *fields), replace(attempt(time=LATER), replaced=starts(1, 3)))
    assert rows(sink, "word", "n", "extra") == [("b", 2, "x"), ("c", 1, "x")]


def test_columns_that_come_with_the_rows_of_windows_are_added_before_they_go(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", mode="merge", key=["word", "n"])
    sink.write(words(("a", 1), ("b", 1)), attempt())
    sink.write(frame([("b", 1, "new")], WORD, N, EXTRA), replace(attempt(time=LATER), replaced=starts(1)))
    assert rows(sink, "word", "n", "extra") == [("b", 1, "new")]


def test_a_refused_row_does_not_keep_the_row_of_its_window(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t", mode="merge", key=["word", "n"], on_bad_rows="dead_letter")
    sink.write(words(("a", 1), ("b", 1), ("c", 2)), attempt())
    written = sink.write(words(("a", 1), ("a", 1), ("b", 1)), replace(attempt(time=LATER), replaced=starts(1)))
    assert (written.rows, written.refused) == (1, 2)
    assert rows(sink) == [("b", 1), ("c", 2)]


def test_windows_are_looked_for_again_if_another_commit_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = DeltaSink(tmp_path / "t", mode="merge", key=["word", "n"])
    sink.write(words(("a", 1), ("b", 2)), attempt())
    real = Commit.merge

    def merge(*arguments: Any) -> bool:  # noqa: ANN401  as it was called
        monkeypatch.setattr(Commit, "merge", real)
        DeltaSink(tmp_path / "t", mode="merge", key=["word", "n"]).write(words(("c", 1)), attempt(2))
        return real(*arguments)

    monkeypatch.setattr(Commit, "merge", merge)
    sink.write(words(("d", 1)), replace(attempt(time=LATER), replaced=starts(1)))
    assert rows(sink) == [("d", 1)]


def test_windows_by_which_no_rows_can_be_replaced_are_refused(tmp_path: Path) -> None:
    for options in ({}, {"mode": "merge", "key": "word"}):
        sink = DeltaSink(tmp_path / "t", **cast("dict[str, Any]", options))
        with pytest.raises(SinkError, match="identified by n, and its sink replaces no rows by that"):
            sink.write(words(("a", 1)), replace(attempt(), replaced=starts(1)))
    assert not DeltaTable.is_deltatable(str(tmp_path / "t"))

"""Check `mode="overwrite"` and `mode="merge"`: late batches, replays, kills and races leave what PostgresSink does."""

from __future__ import annotations

import contextlib
import pathlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException, NoSuchTableError
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask
from pyiceberg.transforms import BucketTransform
from pyiceberg.typedef import Record
from pyiceberg.types import ListType, LongType, NestedField, StringType, TimestamptzType
from pyspark.sql import types

from forebay import DeclarationError, IcebergSink
from forebay.testing.sinks import Died, _die, at
from forebay_contrib.iceberg.data_files import DataFiles, deleted_rows
from forebay_contrib.iceberg.partitions import PartitionedRows
from forebay_contrib.iceberg.replacement import _Rows
from orchestration.declarations.sink import AttemptOutdatedError, SinkError, Step, TargetUnavailableError
from orchestration.sinks.file_stores import LocalFiles
from orchestration.sinks.refused_rows import RefusedRowsError
from tests.integration.orchestration.frame_without_spark import WORDS, FrameWithoutSpark, words
from tests.integration.orchestration.target_database import TIME, attempt
from tests.support.searches import examples

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

    from orchestration.declarations.sink import OutputAttempt

MERGE: dict[str, Any] = {"mode": "merge", "key": "word"}
OVERWRITE: dict[str, Any] = {"mode": "overwrite"}
FIRST, LATER, LAST = TIME, TIME + timedelta(seconds=10), TIME + timedelta(seconds=20)


class Place:
    """Table of a SQL catalog in a folder."""

    def __init__(self, folder: Path) -> None:
        self.catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/w"}

    def sink(self, **options: Any) -> IcebergSink:  # noqa: ANN401  a sink's own
        return IcebergSink("s.t", catalog=self.catalog, **options)

    def table(self) -> Table:
        with load_catalog("forebay", **self.catalog) as catalog:
            return catalog.load_table("s.t")

    def rows(self) -> list[tuple[Any, ...]]:
        try:
            found = self.table().scan().to_arrow().to_pylist()
        except NoSuchTableError:
            return []
        return sorted((row["word"], row["n"]) for row in found)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_only_the_newest_batch_is_there(place: Place) -> None:
    place.sink(**OVERWRITE).write(words(("a", 1)), attempt())
    place.sink(**OVERWRITE).write(words(("b", 1), ("b", 1)), attempt(time=LATER))
    assert place.rows() == [("b", 1), ("b", 1)]
    # Replays of an older batch are recorded, and change nothing.
    place.sink(**OVERWRITE).write(words(("a", 2)), attempt(2))
    assert place.rows() == [("b", 1), ("b", 1)]
    found = place.sink(**OVERWRITE).committed(attempt(3))
    assert found is not None
    assert (found.attempt, found.written.rows) == (2, 1)
    place.sink(**OVERWRITE).write(words(), attempt(time=LAST))
    assert place.rows() == []
    place.sink(**OVERWRITE).write(words(("b", 2)), attempt(2, time=LATER))
    assert place.rows() == []


def test_which_batch_is_the_newest_outlives_the_snapshots(place: Place) -> None:
    place.sink(**OVERWRITE).write(words(), attempt(time=LAST))
    for number in (1, 2):
        place.sink(**OVERWRITE).write(words(("b", number)), attempt(number, time=LATER))
    table = place.table()
    table.maintenance.expire_snapshots().older_than(datetime.now(UTC).replace(tzinfo=None)).commit()
    assert len(table.refresh().snapshots()) == 1
    place.sink(**OVERWRITE).write(words(("b", 3)), attempt(3, time=LATER))
    assert place.rows() == []
    # Its pipeline was removed and added again.
    place.sink(**OVERWRITE).write(words(("new", 1)), attempt(time=FIRST, pipeline_id=8))
    assert place.rows() == [("new", 1)]


def test_a_key_has_the_row_of_the_newest_batch_that_had_it(place: Place) -> None:
    place.sink(**MERGE).write(words(("a", 1), ("b", 1)), attempt(time=LATER))
    place.sink(**MERGE).write(words(("a", 0), ("c", 0)), attempt(time=FIRST))
    assert place.rows() == [("a", 1), ("b", 1), ("c", 0)]
    place.sink(**MERGE).write(words(("b", 2), ("c", 2)), attempt(time=LAST))
    assert place.rows() == [("a", 1), ("b", 2), ("c", 2)]
    # Keys that a replay no longer has are deleted, if this batch was the last to write them; what was there before it
    # does not come back.
    place.sink(**MERGE).write(words(("d", 1)), attempt(2, time=LATER))
    assert place.rows() == [("b", 2), ("c", 2), ("d", 1)]


def test_a_replay_of_an_older_batch_without_a_snapshot_replaces_no_newer_row(place: Place) -> None:
    place.sink(**MERGE).write(words(("a", 1)), attempt(time=FIRST))
    place.sink(**MERGE).write(words(("a", 2)), attempt(time=LATER))
    table = place.table()
    table.maintenance.expire_snapshots().older_than(datetime.now(UTC).replace(tzinfo=None)).commit()
    place.sink(**MERGE).write(words(("a", 3)), attempt(2, time=FIRST))
    assert place.rows() == [("a", 2)]


def test_rows_of_one_key_in_a_batch_are_refused_and_so_is_a_null(place: Place) -> None:
    place.sink(**MERGE).write(words(("a", 1)), attempt())
    for rows, why in (
        ([("a", 2), ("a", 3), ("b", 1)], "2 row.* the key .word='a'.: several rows of the batch have this key"),
        ([("b", 1), (None, 2)], "column word is null, and must have a value"),
    ):
        with pytest.raises(RefusedRowsError, match=why):
            place.sink(**MERGE).write(words(*rows), attempt(time=LATER))
    assert place.rows() == [("a", 1)]
    keeping = place.sink(**MERGE, on_bad_rows="dead_letter")
    written = keeping.write(words(("a", 2), (None, 1), ("b", 1), ("a", 3)), attempt(time=LATER))
    assert (written.rows, written.refused) == (1, 3)
    keeping.publish(written.location, batch_time=LATER)
    shown = place.table().location().removeprefix("file://") + "/data/_refused_rows/20260101T120020Z.jsonl"
    with open(shown, encoding="utf-8") as file:  # noqa: PTH123  a text
        assert len(file.readlines()) == 3
    assert place.rows() == [("a", 1), ("b", 1)]


@pytest.mark.parametrize("options", [MERGE, OVERWRITE], ids=["merge", "overwrite"])
@pytest.mark.parametrize("step", list(Step))
def test_an_attempt_that_dies_at_a_step_comes_out_once(
    place: Place, options: dict[str, Any], step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.sink(**options).write(words(("a", 0), ("old", 0)), attempt(time=FIRST))
    before = place.rows()
    after = [("a", 1), ("b", 1)] if options is OVERWRITE else [("a", 1), ("b", 1), ("old", 0)]
    dying = place.sink(**options)
    monkeypatch.setattr(dying, "reached", at(step, _die))
    with contextlib.suppress(Died):
        dying.write(words(("a", 1), ("b", 1)), attempt(time=LATER))
    assert place.rows() in (before, after)
    found = place.sink(**options).committed(attempt(2, time=LATER))
    assert (found is not None) == (place.rows() == after)
    for number in (2, 3):
        place.sink(**options).write(words(("a", 1), ("b", 1)), attempt(number, time=LATER))
        assert place.rows() == after


def _write(sink: IcebergSink, number: int, to: OutputAttempt) -> None:
    sink.write(words(("a", number)), to)


@pytest.mark.parametrize("options", [MERGE, OVERWRITE], ids=["merge", "overwrite"])
@pytest.mark.parametrize("step", [Step.PREPARED, Step.STAGED])
def test_a_batch_that_commits_meanwhile_is_seen(
    place: Place, options: dict[str, Any], step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a newer batch that commits while an older one is being written, and a newer attempt."""
    place.sink(**options).write(words(("a", 0)), attempt(time=FIRST))
    older = place.sink(**options)
    monkeypatch.setattr(older, "reached", at(step, partial(_write, place.sink(**options), 2, attempt(time=LAST))))
    older.write(words(("a", 1)), attempt(time=LATER))
    assert place.rows() == [("a", 2)]
    late = place.sink(**options)
    monkeypatch.setattr(late, "reached", at(step, partial(_write, place.sink(**options), 3, attempt(2, time=LAST))))
    with pytest.raises(AttemptOutdatedError):
        late.write(words(("a", 9)), attempt(1, time=LAST))
    assert place.rows() == [("a", 3)]


def test_a_commit_between_the_look_and_the_commit_is_seen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the newer batch's commit makes this one look again, and that what it wrote for nothing is deleted."""
    place.sink(**MERGE).write(words(("a", 0), ("b", 0), parts=1), attempt(time=FIRST))
    sink: Any = place.sink(**MERGE)
    raced: list[object] = []
    real = sink._commit_to

    def commit_to(*arguments: Any) -> None:  # noqa: ANN401  as it was called
        if not raced:
            raced.append(place.sink(**MERGE).write(words(("a", 2)), attempt(time=LAST)))
        real(*arguments)

    monkeypatch.setattr(sink, "_commit_to", commit_to)
    sink.write(words(("a", 1), ("c", 1), parts=1), attempt(time=LATER))
    assert (len(raced), place.rows()) == (1, [("a", 2), ("b", 0), ("c", 1)])
    table = place.table()
    named = {str(row["file_path"]) for row in table.inspect.all_files().to_pylist()}
    data = table.location().removeprefix("file://") + "/data"
    assert {str(path) for path in pathlib.Path(data).rglob("*replaced*/*.parquet")} <= named


@pytest.mark.parametrize("options", [{}, MERGE, OVERWRITE], ids=["append", "merge", "overwrite"])
def test_a_commit_whose_answer_was_lost_is_found(
    place: Place, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    place.sink(**options).write(words(("old", 0)), attempt(time=FIRST))
    sink: Any = place.sink(**options)
    real = sink._commit_to

    def commit_to(*arguments: Any) -> None:  # noqa: ANN401  as it was called
        real(*arguments)
        raise requests.ConnectionError("cut")

    monkeypatch.setattr(sink, "_commit_to", commit_to)
    with pytest.raises(TargetUnavailableError, match="the catalog 'forebay' can't be reached: cut"):
        sink.write(words(("a", 1)), attempt(time=LATER))
    after = [("a", 1)] if options is OVERWRITE else [("a", 1), ("old", 0)]
    assert place.rows() == after
    found = place.sink(**options).committed(attempt(2, time=LATER))
    assert found is not None
    assert (found.attempt, found.written.rows) == (1, 1)
    place.sink(**options).write(words(("a", 1)), attempt(2, time=LATER))
    assert place.rows() == after


@pytest.mark.parametrize("options", [{}, MERGE, OVERWRITE], ids=["append", "merge", "overwrite"])
@pytest.mark.parametrize("kind", [CommitFailedException, CommitStateUnknownException])
def test_a_commit_that_conflicts_with_itself_is_found(
    place: Place, options: dict[str, Any], kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check a client that repeats a request whose answer was lost, as Glue's does."""
    place.sink(**options).write(words(("old", 0), ("a", 0)), attempt(time=FIRST))
    real = SqlCatalog.commit_table

    def commit_table(*arguments: Any) -> None:  # noqa: ANN401  as it was called
        real(*arguments)
        raise kind

    monkeypatch.setattr(SqlCatalog, "commit_table", commit_table)
    assert place.sink(**options).write(words(("a", 1)), attempt(time=LATER)).rows == 1
    expected = {"append": [("a", 0), ("a", 1), ("old", 0)], "merge": [("a", 1), ("old", 0)], "overwrite": [("a", 1)]}
    assert place.rows() == expected[options.get("mode", "append")]


def test_a_table_that_was_dropped_or_moved_since_its_files_were_written_gets_none_of_them(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.sink().write(words(("a", 1)), attempt(time=FIRST))

    def move(location: str | None) -> None:
        with load_catalog("forebay", **place.catalog) as catalog:
            schema = catalog.load_table("s.t").schema()
            catalog.drop_table("s.t")
            if location is not None:
                catalog.create_table("s.t", schema, location=location)

    moved: str | None
    for moved, said in [(f"{place.catalog['warehouse']}/other", "lies at /.*/w/other/data now"), (None, "refuses it")]:
        sink = place.sink()
        monkeypatch.setattr(sink, "reached", at(Step.STAGED, partial(move, moved)))
        with pytest.raises(SinkError, match=said):
            sink.write(words(("b", 1)), attempt(time=LATER))
        assert place.rows() == []


def _windows(column: str, *values: Any) -> DataFrame:  # noqa: ANN401
    """Return windows that a column identifies."""
    schema = types.StructType([field for field in WORDS.fields if field.name == column])
    return cast("DataFrame", FrameWithoutSpark([(value,) for value in values], schema=schema))


def test_windows_with_nulls_are_found_in_a_table_of_others(place: Place) -> None:
    columns = pa.schema([("word", pa.string()), ("n", pa.int64()), ("_batch_time", pa.timestamp("us", "UTC"))])
    gone = [(None, 1, LATER), (None, 1, FIRST), ("a", None, FIRST), ("b", 1, FIRST)]
    # Of later batches, of none, and of other windows.
    kept = [(None, 1, LAST), ("b", 1, LAST), (None, 1, None), (None, None, FIRST), (None, 2, FIRST)]
    with load_catalog("forebay", **place.catalog) as catalog:
        catalog.create_namespace("s")
        table = catalog.create_table("s.t", columns)
        # A file has nothing but a window with a null.
        for some in ([*gone, *kept], gone[1:2]):
            table.append(pa.Table.from_pylist([dict(zip(columns.names, row, strict=True)) for row in some], columns))
    windows = words((None, 1), ("a", None), ("b", 1), (None, 7), (None, 1))
    sink = place.sink(mode="merge", key=["word", "n"])
    sink.write(words(("z", 9)), replace(attempt(2, time=LATER), replaced=windows))
    found = [tuple(row.values()) for row in place.table().scan().to_arrow().to_pylist()]
    assert sorted(found, key=str) == sorted([*kept, ("z", 9, LATER)], key=str)


def test_a_refused_row_does_not_keep_the_row_of_its_window(place: Place) -> None:
    sink = place.sink(mode="merge", key=["word", "n"], on_bad_rows="dead_letter")
    sink.write(words(("a", 1), ("b", 1), ("c", 2)), attempt())
    rows, windows = words(("a", 1), ("a", 1), ("b", 1)), _windows("n", 1)
    written = sink.write(rows, replace(attempt(time=LATER), replaced=windows))
    assert (written.rows, written.refused) == (1, 2)
    assert place.rows() == [("b", 1), ("c", 2)]
    with pytest.raises(SinkError, match="identified by n, and its sink replaces no rows by that"):
        place.sink(**MERGE).write(rows, replace(attempt(time=LAST), replaced=windows))


class _Model:
    """Hold what PostgresSink's table would have: for each key, the row of the newest batch that had it."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[datetime, int]] = {}

    def merge(self, time: datetime, rows: Sequence[tuple[str, int]], windows: Sequence[str]) -> None:
        keys = dict(rows)
        self.rows = {
            key: row
            for key, row in self.rows.items()
            if key in keys or (row[0] != time and (row[0] > time or key not in windows))
        }
        for key, number in keys.items():
            if key not in self.rows or self.rows[key][0] <= time:
                self.rows[key] = (time, number)


_WORD = st.sampled_from(["a", "b", "c", "d", "e\u00e9", ""])
_BATCHES = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.dictionaries(_WORD, st.integers(0, 9), max_size=4),
        st.none() | st.lists(_WORD, max_size=3),
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.search
@settings(max_examples=examples(40), deadline=None)
@given(batches=_BATCHES, partitions=st.sampled_from([(), ("bucket(2, word)",), ("truncate(1, word)", "n")]))
def test_any_batches_in_any_order_leave_the_rows_of_the_newest(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[tuple[int, dict[str, int], list[str] | None]],
    partitions: tuple[str, ...],
) -> None:
    place, model, attempts = Place(tmp_path_factory.mktemp("merged")), _Model(), dict.fromkeys(range(4), 0)
    for at_time, rows, windows in batches:
        attempts[at_time] += 1
        time = TIME + timedelta(seconds=at_time)
        model.merge(time, list(rows.items()), windows or [])
        sink = place.sink(**MERGE, partition_by=partitions)
        replaced = None if windows is None else _windows("word", *windows)
        sink.write(words(*rows.items()), replace(attempt(attempts[at_time], time=time), replaced=replaced))
        assert place.rows() == sorted((key, number) for key, (_, number) in model.rows.items())


def test_a_table_of_others_keeps_its_rows_ids_and_partitions(place: Place) -> None:
    """Check files that are written again: renamed columns, columns that they lack, a spec of before, no batch time."""
    columns = Schema(
        NestedField(1, "word", StringType(), required=True),
        NestedField(2, "old", LongType(), required=False),
        NestedField(3, "_batch_time", TimestamptzType(), required=False),
        NestedField(4, "l", ListType(5, LongType(), element_required=False), required=False),
        identifier_field_ids=[1],
    )
    theirs = pa.table(
        {"word": ["a", "b"], "old": [1, 2], "_batch_time": [None, FIRST], "l": [None, [1, None]]},
        schema=pa.schema(
            [
                pa.field("word", pa.string(), nullable=False),
                ("old", pa.int64()),
                ("_batch_time", pa.timestamp("us", "UTC")),
                ("l", pa.list_(pa.int64())),
            ]
        ),
    )
    with load_catalog("forebay", **place.catalog) as catalog:
        catalog.create_namespace("s")
        table = catalog.create_table("s.t", columns)
        table.append(theirs)
        with table.update_schema() as schema:
            schema.rename_column("old", "n")
            schema.add_column("added", LongType())
        with table.update_spec() as update:
            update.add_field("word", BucketTransform(8), "word_bucket")
    place.sink(**MERGE).write(words(("c", 1), ("d", 1)), attempt(time=LATER))
    # Rows without a batch time are of others, and stay.
    place.sink(**MERGE).write(words(("a", 9), ("b", 3), ("c", 2)), attempt(time=LAST))
    assert place.rows() == [("a", 1), ("b", 3), ("c", 2), ("d", 1)]
    [of_a] = place.table().scan(row_filter="word = 'a'").plan_files()
    assert [of_a.file.partition[0]] == [BucketTransform(8).transform(StringType())("a")]
    kept = parquet.read_table(of_a.file.file_path)
    assert kept.to_pylist() == [{"word": "a", "old": 1, "_batch_time": None, "l": None}]
    assert [field.metadata[b"PARQUET:field_id"] for field in kept.schema] == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "upsert"}, "mode='upsert' must be one of append, overwrite, merge"),
        ({"mode": "merge"}, "mode='merge' needs the columns"),
        ({"key": "a"}, r"key=\['a'\] is of no use to mode='append'"),
        ({"mode": "merge", "key": ["a", "a"]}, "none twice"),
        ({"columns": "drop"}, "columns='drop' must be one of add, refuse"),
        ({"partition_by": "week(at)"}, r"'week\(at\)' names no partition"),
        ({"partition_by": "bucket(id)"}, r"'bucket\(id\)' names no partition"),
        ({"partition_by": ["day(4, at)"]}, "names no partition"),
        ({"partition_by": [""]}, "names no partition"),
    ],
)
def test_an_odd_declaration_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(DeclarationError, match=why):
        IcebergSink("s.t", catalog={"type": "sql"}, **options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "merge", "key": "other"}, "has no column other, which its sink has as key"),
        ({"mode": "merge", "key": "f"}, "the column f as key, a double, of which Iceberg makes no key"),
        ({"partition_by": "other"}, "partition_by has the column 'other', and the result has id, f, _batch_time"),
        ({"partition_by": "f"}, "partition_by has identity of the column 'f', and Iceberg has no such partition"),
        ({"partition_by": "day(id)"}, "partition_by has day of the column 'id', and Iceberg has no such"),
    ],
)
def test_a_key_or_partition_that_the_result_lacks_is_refused(options: dict[str, Any], why: str) -> None:
    schema = types.StructType([types.StructField("id", types.LongType()), types.StructField("f", types.DoubleType())])
    sink = IcebergSink("s.t", catalog={"type": "sql"}, **options)
    with pytest.raises(SinkError, match=why):
        sink.check_columns(schema, "counts")


def test_a_table_that_is_made_has_the_declared_partitions(place: Place) -> None:
    sink = place.sink(partition_by=["bucket(4, n)", "hours(_batch_time)", "word"])
    assert sink.declaration()["partition_by"] == ["bucket(4, n)", "hour(_batch_time)", "word"]
    for number in (1, 2):
        sink.write(words(("a", 1), ("a", 1), (None, 2), parts=1), attempt(number))
    spec = place.table().spec()
    assert [(field.name, str(field.transform)) for field in spec.fields] == [
        ("n_bucket", "bucket[4]"),
        ("_batch_time_hour", "hour"),
        ("word", "identity"),
    ]
    assert len([*place.table().scan().plan_files()]) == 2
    other = place.sink(partition_by=["word"]).check_target()
    assert (other.health, "is partitioned by bucket(4, n), hour(_batch_time), word" in other.found) == ("failed", True)
    assert place.sink().check_target().health == "ok"


def test_rows_that_others_have_deleted_by_position_stay_deleted(place: Place, tmp_path: Path) -> None:
    """Check a file that is written again: pyiceberg writes no such delete file, so that one is laid beside it."""
    place.sink(**MERGE).write(words(("a", 1), ("b", 1), ("c", 1), parts=1), attempt(time=FIRST))
    table = place.table()
    [task] = table.scan().plan_files()
    deletes = tmp_path / "deletes.parquet"
    parquet.write_table(pa.table({"file_path": [task.file.file_path], "pos": [1]}), deletes)
    of_positions = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=str(deletes),
        file_format=FileFormat.PARQUET,
        partition=Record(),
    )
    deleted = FileScanTask(task.file, {of_positions})
    assert (deleted_rows(table, task), deleted_rows(table, deleted)) == ([], [1])
    store = LocalFiles(f"{table.location().removeprefix('file://')}/data")
    parting = PartitionedRows.of(table.spec(), table.schema(), None)
    rows = _Rows.of(deleted, DataFiles(table, table.schema(), parting, store), ["word"])
    assert [*rows.live] == [True, False, True]
    found, _ = rows.with_keys(pa.table({"word": ["b", "c"]}), ["word"])
    assert [*found] == [2]

"""Decide which rows of an Iceberg table a batch replaces, in each mode, and leave the table's files without them.

Files that lose all of their rows are removed; of one that loses some, the others are written again (copy on write). The
batch's own files lose the rows whose key a newer batch has written, except those that the batch overrides. It never
commits: the sink does, to the very snapshot that was read here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any

from forebay_contrib.iceberg.data_files import columns_by_id, deleted_rows, name_of, opened, rows_of
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.file_table import is_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import numpy as np
    import pyarrow as pa
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import FileScanTask, Table

    from forebay_contrib.iceberg.data_files import DataFiles
    from orchestration.sinks.file_stores import FileStore
    from orchestration.sinks.parquet_staging import StagedFile

# Up to this number of keys, pyiceberg looks for each of them in the statistics of a file.
_MOST_KEYS = 200
# Names that no column of a table has.
_ROW, _STAGED = "\0row", "\0staged"


@dataclass(frozen=True, slots=True)
class Replacement:
    """Hold the files that a commit removes from the table, and those that it adds."""

    removed: list[DataFile] = field(default_factory=list)
    added: list[DataFile] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Batch:
    """Hold the files that the tasks wrote, and the folder of the attempt in the store.

    `newest_overridden`: the newest batch whose rows a merge replaces. `windows`: the identities of those whose rows it
    replaces.
    """

    files: Sequence[StagedFile]
    folder: str
    time: datetime
    newest_overridden: datetime
    windows: pa.Table | None = None


def append(table: Table, files: DataFiles, batch: Batch) -> Replacement:
    """Add the batch's rows, of which the table has none."""
    from pyiceberg.utils.concurrent import ExecutorFactory  # noqa: PLC0415

    del table
    # Stores answer each look at a file's end after milliseconds.
    return Replacement(added=[*chain.from_iterable(ExecutorFactory.get_or_create().map(files.staged, batch.files))])


def replace_batch(table: Table, files: DataFiles, batch: Batch) -> Replacement:
    """Replace the batch's rows of before by its new ones."""
    from pyiceberg.expressions import EqualTo  # noqa: PLC0415

    found = append(table, files, batch)
    for task in table.scan(row_filter=EqualTo(term=BATCH_TIME, value=batch.time.isoformat())).plan_files():
        there = _Rows.of(task, files)
        _leave(there, there.of_batch(batch.time), files, batch, found)
    return found


def replace_all(table: Table, files: DataFiles, batch: Batch) -> Replacement:
    """Replace all rows of the table by the batch's."""
    found = append(table, files, batch)
    found.removed.extend(task.file for task in table.scan().plan_files())
    return found


def merge(table: Table, files: DataFiles, batch: Batch, key: Sequence[str], kept: Sequence[str]) -> Replacement:
    """Replace the rows of the batch's keys and windows, except those of newer batches, and the batch's of before.

    The batch has each key once, and none that is null. `kept`: columns that its files lack, and whose values its rows
    take from those that they replace.
    """
    import numpy as np  # noqa: PLC0415

    staged = staged_keys(files.store, batch.files, key)
    lost = np.zeros(staged.num_rows, dtype=bool)
    before = _Before(kept, staged.num_rows)
    found = Replacement()
    for task in table.scan(row_filter=_may_have(table, staged, key, batch)).plan_files():
        there = _Rows.of(task, files, [*key, *kept])
        rows, numbers = there.with_keys(staged, key)
        all_newer = there.is_newer(batch.newest_overridden)
        newer = all_newer[rows]
        lost[numbers[newer]] = True
        gone = there.of_batch(batch.time)
        if batch.windows is not None:
            gone |= there.of_windows(batch.windows) & ~all_newer
        gone[rows[~newer]] = True
        before.add(there, rows[~newer], numbers[~newer])
        _leave(there, gone, files, batch, found)
    rows_of_files = zip(batch.files, _of_files(lost, batch.files), _of_files(before.places, batch.files), strict=True)
    for file, lost_here, places in rows_of_files:
        if not lost_here.any() and (places < 0).all():
            found.added.extend(files.staged(file))
        elif not lost_here.all():
            rows = _kept(before.filled(_read(files.store, file), places, files), ~lost_here)
            found.added.extend(files.rewritten(rows, batch.folder))
    return found


def staged_keys(store: FileStore, files: Sequence[StagedFile], key: Sequence[str]) -> pa.Table:
    """Return the keys of all of the batch's rows, in order."""
    import pyarrow as pa  # noqa: PLC0415

    parts = []
    for file in files:
        with store.open(file.path) as stream:
            parts.append(rows_of(stream, list(key)).select(list(key)))
    return pa.concat_tables(parts) if parts else pa.table({name: pa.nulls(0) for name in key})


@dataclass(frozen=True, slots=True)
class _Rows:
    """Hold the columns of a table's file that decide, and which of its rows are there."""

    table: Table
    task: FileScanTask
    columns: pa.Table
    live: np.ndarray

    @classmethod
    def of(cls, task: FileScanTask, files: DataFiles, key: Sequence[str] = ()) -> _Rows:
        import numpy as np  # noqa: PLC0415
        import pyarrow as pa  # noqa: PLC0415
        from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415

        types = schema_to_pyarrow(files.schema, include_field_ids=False)
        with files.table.io.new_input(name_of(task.file)).open() as stream:
            parquet = opened(stream)
            names = columns_by_id(parquet.schema_arrow, files.table)
            wanted = {name: names.get(files.schema.find_field(name).field_id) for name in (BATCH_TIME, *key)}
            read = parquet.read(columns=[name for name in wanted.values() if name is not None])
            number = parquet.metadata.num_rows
        columns = pa.table(
            {
                name: (pa.nulls(number) if there is None else read[there]).cast(types.field(name).type)
                for name, there in wanted.items()
            }
        )
        live = np.ones(number, dtype=bool)
        live[deleted_rows(files.table, task)] = False
        return cls(files.table, task, columns, live)

    def of_batch(self, time: datetime) -> np.ndarray:
        """Return whether each row is of the batch."""
        return _true(_compare("equal", self.columns[BATCH_TIME], time))

    def is_newer(self, time: datetime) -> np.ndarray:
        """Return whether each row is of a newer batch, or of none: others have written it."""
        found: np.ndarray = ~_true(_compare("less_equal", self.columns[BATCH_TIME], time))
        return found

    def of_windows(self, windows: pa.Table) -> np.ndarray:
        """Return whether each row is of one of the windows."""
        there = self.columns.select(windows.column_names)
        return is_of(there, windows.cast(there.schema))

    def with_keys(self, staged: pa.Table, key: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of the rows that are there and have a key of the batch, and those of the batch's rows."""
        import numpy as np  # noqa: PLC0415
        import pyarrow as pa  # noqa: PLC0415

        there = self.columns.select(list(key))
        here = staged.cast(there.schema).append_column(_STAGED, pa.array(np.arange(staged.num_rows)))
        live = there.append_column(_ROW, pa.array(np.arange(there.num_rows))).filter(pa.array(self.live))
        both = live.join(here, list(key), join_type="inner")
        return both[_ROW].to_numpy(), both[_STAGED].to_numpy()

    def read(self) -> pa.Table:
        """Return the whole file."""
        with self.table.io.new_input(name_of(self.task.file)).open() as stream:
            return rows_of(stream)


class _Before:
    """Collect the values of columns in rows that are replaced, for the rows of the batch in their place."""

    def __init__(self, columns: Sequence[str], rows: int) -> None:
        import numpy as np  # noqa: PLC0415

        self._columns = list(columns)
        self._found: list[pa.Table] = []
        self._number = 0
        #: Where in what was found the row is that each of the batch's replaces; -1: it replaces none.
        self.places = np.full(rows, -1, dtype=np.int64)

    def add(self, there: _Rows, rows: np.ndarray, numbers: np.ndarray) -> None:
        """Add rows of a table's file, and the numbers of the batch's rows in their place."""
        import numpy as np  # noqa: PLC0415
        import pyarrow as pa  # noqa: PLC0415

        if self._columns and len(rows):
            self.places[numbers] = np.arange(self._number, self._number + len(rows))
            self._found.append(there.columns.select(self._columns).take(pa.array(rows)))
            self._number += len(rows)

    def filled(self, rows: pa.Table, places: np.ndarray, files: DataFiles) -> pa.Table:
        """Return rows of the batch with the columns."""
        import pyarrow as pa  # noqa: PLC0415
        from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415

        if (places < 0).all():
            return rows
        values = pa.concat_tables(self._found).take(pa.array(places, mask=places < 0))
        types = schema_to_pyarrow(files.schema)
        for name in self._columns:
            rows = rows.append_column(types.field(name), values[name].cast(types.field(name).type))
        return rows


def _leave(rows: _Rows, gone: np.ndarray, files: DataFiles, batch: Batch, found: Replacement) -> None:
    """Add to `found` what leaves a file of the table without the rows that are gone."""
    kept = rows.live & ~gone
    if not (rows.live & gone).any():
        return
    found.removed.append(rows.task.file)
    if kept.any():
        found.added.extend(files.rewritten(_kept(rows.read(), kept), batch.folder))


def _of_files(of_rows: np.ndarray, files: Sequence[StagedFile]) -> list[np.ndarray]:
    """Part what is said of all of the batch's rows by their files."""
    ends = [*accumulate(file.rows for file in files)]
    return [of_rows[end - file.rows : end] for file, end in zip(files, ends, strict=True)]


def _read(store: FileStore, file: StagedFile) -> pa.Table:
    with store.open(file.path) as stream:
        return rows_of(stream)


def _kept(rows: pa.Table, kept: np.ndarray) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415

    return rows.filter(pa.array(kept))


def _compare(function: str, column: pa.ChunkedArray, time: datetime) -> Any:  # noqa: ANN401
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    return pc.call_function(function, [column, pa.scalar(time, column.type)])


def _true(column: Any) -> np.ndarray:  # noqa: ANN401
    """Return what is true, and neither false nor null."""
    import pyarrow.compute as pc  # noqa: PLC0415

    found: np.ndarray = pc.fill_null(column, fill_value=False).to_numpy()
    return found


def _may_have(table: Table, staged: pa.Table, key: Sequence[str], batch: Batch) -> BooleanExpression:
    """Return a filter of the files that may have a key of the batch, or rows of it or of its windows."""
    from pyiceberg.expressions import AlwaysTrue, And, EqualTo, Or  # noqa: PLC0415

    found: BooleanExpression = EqualTo(term=BATCH_TIME, value=batch.time.isoformat())
    for values in (staged.select(list(key)), batch.windows):
        if values is None or not values.num_rows or not {*values.column_names} <= {*table.schema().column_names}:
            continue
        of_values: BooleanExpression = AlwaysTrue()
        for name in values.column_names:
            of_values = And(of_values, _values(values[name], name))
        found = Or(found, of_values)
    return found


def _values(column: pa.ChunkedArray, name: str) -> BooleanExpression:
    import pyarrow.compute as pc  # noqa: PLC0415
    from pyiceberg.expressions import (  # noqa: PLC0415
        AlwaysTrue,
        And,
        GreaterThanOrEqual,
        In,
        IsNull,
        LessThanOrEqual,
        Or,
    )

    if column.null_count:
        return Or(IsNull(term=name), _values(column.drop_null(), name))
    try:
        values = pc.unique(column)
        if len(values) <= _MOST_KEYS:
            return In(term=name, literals=values.to_pylist())
        ends = pc.min_max(column).as_py()
        return And(GreaterThanOrEqual(term=name, value=ends["min"]), LessThanOrEqual(term=name, value=ends["max"]))
    except (OverflowError, TypeError, ValueError, NotImplementedError):
        # Python or Iceberg's expressions have no literal of a value: each file may have it.
        return AlwaysTrue()

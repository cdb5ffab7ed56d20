"""Find the rows of a Delta table that belong to replaced windows, and have a merge delete them.

A merge joins by the key, so that it is given the keys of the rows to delete, in marked rows behind those of the result.
This module must never commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any

from forebay_contrib.delta.tables import columns_of
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.file_table import is_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    import pyarrow as pa

    Read = Callable[[], pa.RecordBatchReader]

# How many rows of the table are compared with the windows at once.
_MOST_AT_ONCE = 1 << 20
_MARK = "forebay_gone"


@dataclass(frozen=True, slots=True)
class Gone:
    """Hold the keys of the rows that a merge deletes, each once; None: it deletes no such row."""

    keys: pa.Table | None = None

    @classmethod
    def of(cls, table: Any, windows: pa.Table, key: Sequence[str], newest: datetime, result: Read) -> Gone:  # noqa: ANN401
        """Find the rows of windows that no batch after `newest` wrote, and whose key is not in the result."""
        import numpy as np  # noqa: PLC0415
        import pyarrow as pa  # noqa: PLC0415

        columns = columns_of(table)
        types = pa.schema([pa.field(name, columns.field(name).type) for name in key])
        windows = windows.cast(pa.schema([types.field(name) for name in windows.column_names]))
        found = [rows.filter(pa.array(is_of(rows, windows))) for rows in _older_rows(table, types, newest)]
        keys = pa.concat_tables([types.empty_table(), *found]).group_by(list(key)).aggregate([])
        if keys.num_rows:
            kept = pa.Table.from_batches([batch.select(list(key)).cast(types) for batch in result()], types)
            keys = keys.filter(pa.array(np.logical_not(is_of(keys, kept))))
        return cls(keys) if keys.num_rows else cls()

    @property
    def equality(self) -> str:
        """Return the operator by which the merge compares the columns of keys."""
        has_nulls = self.keys is not None and any(column.null_count for column in self.keys.columns)
        return "IS NOT DISTINCT FROM" if has_nulls else "="

    def mark(self, columns: Sequence[str]) -> str | None:
        """Return the name of the source's column that marks the rows to delete; None: there are none."""
        if self.keys is None:
            return None
        taken, name = {*columns}, _MARK
        while name in taken:
            name += "_"
        return name

    def behind(self, result: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """Return the rows of a result, and behind them a marked row for each key."""
        import pyarrow as pa  # noqa: PLC0415

        mark = self.mark(result.schema.names)
        if self.keys is None or mark is None:
            return result
        keys, number = self.keys, self.keys.num_rows
        # A marked row has nulls in all other columns.
        schema = pa.schema([*(pa.field(one.name, one.type) for one in result.schema), pa.field(mark, pa.bool_())])
        values = {
            **{one.name: pa.nulls(number, one.type) for one in schema},
            **{name: keys[name] for name in keys.column_names},
            mark: pa.repeat(pa.scalar(value=True), number),
        }

        def batches() -> Iterator[pa.RecordBatch]:
            for batch in result:
                yield pa.record_batch([*batch.columns, pa.repeat(pa.scalar(value=False), batch.num_rows)], schema)
            yield from pa.table(values, schema).to_batches()

        return pa.RecordBatchReader.from_batches(schema, batches())


def _older_rows(table: Any, types: pa.Schema, newest: datetime) -> Iterator[pa.Table]:  # noqa: ANN401
    """Yield columns of the table's rows that no batch after `newest` wrote, in pieces."""
    import pyarrow as pa  # noqa: PLC0415
    from deltalake import QueryBuilder  # noqa: PLC0415

    names = ", ".join(map(quoted, types.names))
    query = f"SELECT {names} FROM older WHERE {no_newer(newest)}"  # noqa: S608  quoted
    reader = pa.RecordBatchReader.from_stream(QueryBuilder().register("older", table).execute(query))
    pieces: list[pa.RecordBatch] = []
    number = 0
    for batch in reader:
        pieces.append(batch)
        number += batch.num_rows
        if number >= _MOST_AT_ONCE:
            yield pa.Table.from_batches(pieces).cast(types)
            pieces, number = [], 0
    if pieces:
        yield pa.Table.from_batches(pieces).cast(types)


def no_newer(time: datetime) -> str:
    """Return the condition that a row was written by no batch after `time`."""
    return f"{BATCH_TIME} <= '{time.astimezone(UTC).isoformat()}'"


def quoted(column: str) -> str:
    """Return a column's name as deltalake's SQL has it, which folds those without quotes to lower case."""
    return '"' + column.replace('"', '""') + '"'

"""Turn the rows of a receiver into the rows of a typed stream's blocks: parsed columns beside the source's others.

It runs where blocks are made, before anything is stored or acknowledged. A record that does not fit becomes a dead
letter with the bytes that the source had, and the rows beside it are stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_path.text_check import CheckedRows, RowCheck, TextCheck
from receiver_runtime.block_store.frames.columns import arrow_schema, columns_of
from receiver_runtime.record_formats.record_reader import RecordReader
from tracker_store.connection.errors import SchemaConflictError

if TYPE_CHECKING:
    from collections.abc import Callable

    from receiver_runtime.block_store.frames.columns import Columns
    from receiver_runtime.record_formats.record_reader import Parsed
    from receiver_runtime.sources.records.declared import Records


class TypedRows(RowCheck):
    """Check and parse rows; see the module. Safe from any thread.

    Args:
        records: what the stream declares.
        source: the columns of the receiver's rows.
        column: the one that holds the record.

    Raises ValueError: blocks can't have these columns.
    """

    def __init__(self, records: Records, source: pa.Schema, column: str) -> None:
        self._records = records
        self._source = columns_of(source)
        self._column = column
        super().__init__(self._schema(records.columns))
        reader = records.load_reader()(records)
        assert isinstance(reader, RecordReader)
        self._reader = reader
        self._text = TextCheck(source)
        self._beside = [name for name in source.names if name != column or records.raw]

    def grow(self, known: Columns, register: Callable[[Columns], None]) -> None:
        """Give the reader of records that bring columns what the stream has, and how it gets more.

        Args:
            known: the columns of the stream's blocks until now.
            register: makes columns of blocks the stream's. Raises SchemaConflictError.
        """

        def register_parsed(columns: Columns) -> None:
            schema = self._schema(columns)
            try:
                register(columns_of(schema))
            except SchemaConflictError as error:
                raise ValueError(str(error)) from error

        beside = {name for name, _ in self._records.block_columns(self._source, self._column)}
        beside -= {name for name, _ in self._records.columns}
        self._reader.grow({name.lower(): kind for name, kind in known if name not in beside}, register_parsed)

    def is_ready(self, batch: pa.RecordBatch) -> bool:
        """Return whether the records of a batch can be read without another system."""
        return self._reader.is_ready(self._values(batch))

    def check(self, batch: pa.RecordBatch) -> CheckedRows:
        """Parse the rows; leave out those that do not fit, or whose other text is not UTF-8."""
        checked = self._text.check(batch)
        taken = checked.batch
        values = self._values(taken)
        parsed = self._reader.read(values)
        if not parsed.faults:
            return CheckedRows(self._made(parsed, taken), checked.invalid, checked.letters)
        fits = np.ones(taken.num_rows, dtype=np.bool_)
        fits[[fault.row for fault in parsed.faults]] = False
        made = self._made(parsed, taken.filter(pa.array(fits)))
        # Of the rows that were given; each letter is that of the next row that is left out.
        rows = np.arange(batch.num_rows) if checked.invalid is None else np.flatnonzero(~checked.invalid)
        letters = {
            int(rows[fault.row]): DeadLetter(fault.reason, values[fault.row].as_py() or b"", why=fault.why)
            for fault in parsed.faults
        }
        if checked.invalid is not None:
            letters |= zip(np.flatnonzero(checked.invalid).tolist(), checked.letters, strict=True)
        invalid = np.zeros(batch.num_rows, dtype=np.bool_)
        invalid[list(letters)] = True
        return CheckedRows(made, invalid, [letters[row] for row in sorted(letters)])

    def _made(self, parsed: Parsed, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of a block."""
        columns = parsed.batch.num_columns
        schema = self.schema
        if len(schema) != columns + len(self._beside):
            schema = self._schema(columns_of(parsed.batch.schema))
            # Of two threads, the one whose batch has more columns decides.
            if len(schema) > len(self.schema):
                self.schema = schema
        return pa.RecordBatch.from_arrays(
            [*parsed.batch.columns, *(rows.column(name) for name in self._beside)], schema=schema
        )

    def _schema(self, columns: Columns) -> pa.Schema:
        """Return the schema of blocks with these parsed columns. Raises ValueError."""
        records = self._records.model_copy(update={"columns": tuple(columns)})
        return arrow_schema(records.block_columns(self._source, self._column))

    def _values(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """Return the records as bytes."""
        values = rows.column(self._column)
        return values if pa.types.is_binary(values.type) else values.cast(pa.binary())

"""Turn the rows of a receiver into the rows of a typed stream's blocks: parsed columns beside the source's others.

It runs where blocks are made, before anything is stored or acknowledged. A record that does not fit becomes a dead
letter with the bytes that the source had, and the rows beside it are stored.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_path.text_check import CheckedRows, RowCheck, TextCheck
from receiver_runtime.block_store.frames.columns import arrow_schema, columns_of
from receiver_runtime.record_formats.record_reader import Parsed, RecordReader
from tracker_store.connection.errors import SchemaConflictError
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from receiver_runtime.block_store.frames.columns import Columns
    from receiver_runtime.sources.records.declared import Records

# A reason may name a value, which may be as long as a record.
_WHY_LETTERS = 300
# Of one call of a reader: what it makes of the rows fits into a processor's cache.
_MOST_ROWS, _MOST_BYTES = 16_384, 4 * 1024 * 1024


_RECORD_TYPES = {"string", "binary", "large_string", "large_binary"}


class TypedRows(RowCheck):
    """Check and parse rows; see the module. Safe from any thread.

    Args:
        records: what the stream declares.
        source: the columns of the receiver's rows.
        column: the one that holds the record.

    Raises ValueError: blocks can't have these columns.
    """

    records: Records

    def __init__(self, records: Records, source: pa.Schema, column: str) -> None:
        self.records = self._declared = records
        self._source = source
        self._column = column
        super().__init__(self._schema(records.columns))
        if not _RECORD_TYPES & {str(kind := source.field(column).type)}:
            raise ValueError(f"column {column!r} is {kind}: a record is text or bytes")
        reader = records.load_reader()(records)
        assert isinstance(reader, RecordReader)
        self._reader = reader
        self._text = TextCheck(source)
        self._beside = list(records.beside(source.names, column))

    def grow(self, known: Callable[[], Columns], register: Callable[[Columns], None]) -> None:
        """Give the reader of records that bring columns what the stream has, and how it gets more.

        Args:
            known: returns the columns of the stream's blocks until now.
            register: makes columns of blocks the stream's. Raises SchemaConflictError.
        """

        def register_parsed(columns: Columns) -> None:
            schema = self._schema(columns)
            try:
                register(columns_of(schema))
            except SchemaConflictError as error:
                raise ValueError(str(error)) from error

        beside = set(self._declared.beside(self._source.names, self._column).values())
        self._reader.grow(lambda: {name.lower(): kind for name, kind in known() if name not in beside}, register_parsed)

    def is_ready(self, batch: pa.RecordBatch) -> bool:
        """Return whether the records of a batch can be read without another system."""
        return self._reader.is_ready(self._values(batch))

    def together(self, batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """See ``RowCheck``. A call has a cost that does not depend on the rows, so those of small batches share one."""
        held: list[pa.RecordBatch] = []
        rows = nbytes = 0
        for batch in batches:
            if held and (rows + batch.num_rows > _MOST_ROWS or nbytes + batch.nbytes > _MOST_BYTES):
                yield pa.concat_batches(held)
                held, rows, nbytes = [], 0, 0
            held.append(batch)
            rows, nbytes = rows + batch.num_rows, nbytes + batch.nbytes
        if held:
            yield pa.concat_batches(held) if len(held) > 1 else held[0]

    def check(self, batch: pa.RecordBatch) -> CheckedRows:
        """Parse the rows; leave out those that do not fit, or whose other text is not UTF-8."""
        checked = self._text.check(batch)
        taken = checked.batch
        values = self._values(taken)
        parsed = self._read(values)
        if not parsed.faults:
            return CheckedRows(self._made(parsed, taken), checked.invalid, checked.letters)
        fits = np.ones(taken.num_rows, dtype=np.bool_)
        fits[[fault.row for fault in parsed.faults]] = False
        made = self._made(parsed, taken.filter(pa.array(fits)))
        # Of the rows that were given; each letter is that of the next row that is left out.
        rows = np.arange(batch.num_rows) if checked.invalid is None else np.flatnonzero(~checked.invalid)
        # Many records have one reason, which is held once.
        whys: dict[str, str] = {}
        letters = {}
        for fault in parsed.faults:
            why = shortened(fault.why, _WHY_LETTERS)
            data = values[fault.row].as_py() or b""
            letters[int(rows[fault.row])] = DeadLetter(fault.reason, data, why=whys.setdefault(why, why))
        if checked.invalid is not None:
            letters |= zip(np.flatnonzero(checked.invalid).tolist(), checked.letters, strict=True)
        invalid = np.zeros(batch.num_rows, dtype=np.bool_)
        invalid[list(letters)] = True
        return CheckedRows(made, invalid, [letters[row] for row in sorted(letters)])

    def _read(self, values: pa.BinaryArray) -> Parsed:
        """Parse records. One that is null, such as Kafka's tombstone, is null in each column, also a required one."""
        if not values.null_count:
            return self._reader.read(values)
        rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        parsed = self._reader.read(values.take(pa.array(rows)))
        faults = [replace(fault, row=int(rows[fault.row])) for fault in parsed.faults]
        # Where each row is among those that fit, in the order of the rows that stay.
        places = np.full(len(values), -1)
        fitting = np.delete(rows, [fault.row for fault in parsed.faults])
        places[fitting] = np.arange(len(fitting))
        places = np.delete(places, [fault.row for fault in faults])
        return Parsed(parsed.batch.take(pa.array(places, mask=places < 0)), faults)

    def rows_of(self, records: Sequence[bytes]) -> pa.RecordBatch:
        """Return records as rows of the receiver, with null in its other columns."""
        given = pa.array(records, pa.binary())
        columns = []
        for field in self._source:
            if field.name != self._column:
                columns.append(pa.nulls(len(records), field.type))
            elif pa.types.is_string(field.type):
                # A cast would refuse what is not UTF-8, and the check names it.
                columns.append(given.view(field.type))
            else:
                columns.append(given.cast(field.type))
        return pa.RecordBatch.from_arrays(columns, schema=self._source)

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
        records = self._declared.model_copy(update={"columns": tuple(columns)})
        return arrow_schema(records.block_columns(columns_of(self._source), self._column))

    def _values(self, rows: pa.RecordBatch) -> pa.BinaryArray:
        """Return the records as bytes."""
        values = rows.column(self._column)
        return values if pa.types.is_binary(values.type) else values.cast(pa.binary())

"""Turn the rows of a receiver into the rows of a typed stream's blocks: parsed columns beside the source's others.

It runs where blocks are made, before anything is stored or acknowledged. A record that does not fit becomes a dead
letter with the bytes that the source had, and the rows beside it are stored. Where the key of each record is parsed
too, a dead letter is the whole row of the source: without its key, the record would be another one when it is replayed.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_path.text_check import CheckedRows, RowCheck, TextCheck, without_text
from receiver_runtime.block_store.frames.columns import arrow_schema, columns_of
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.block_store.frames.payload import encode_row
from receiver_runtime.record_formats.fitting import fitted
from receiver_runtime.record_formats.record_reader import Fault, Parsed, RecordReader
from receiver_runtime.sources.records.declared import KEY, KEY_PREFIX
from tracker_store.connection.errors import SchemaConflictError
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from receiver_runtime.block_store.frames.columns import Columns
    from receiver_runtime.sources.records.declared import Records

    Rows = np.ndarray[tuple[int], np.dtype[np.bool_]]

# A reason may name a value, which may be as long as a record.
_WHY_LETTERS = 300
# Of one call of a reader: what it makes of the rows fits into a processor's cache.
_MOST_ROWS, _MOST_BYTES = 16_384, 4 * 1024 * 1024
# An Arrow stream of one row begins with this.
_STREAM = b"\xff\xff\xff\xff"
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
        self.records = records
        self._source = source
        self._column = column
        # Guards the columns, where they change.
        self._lock = threading.Lock()
        self._columns: tuple[Columns, Columns] = (
            records.columns,
            () if records.key is None else records.key.columns,
        )
        super().__init__(self._schema(self._columns))
        self._reader = self._reader_of(records, column)
        self._key_reader = None if records.key is None else self._reader_of(records.key, KEY)
        self._text = TextCheck(source)
        self._beside = list(records.beside(source.names, column))

    def _reader_of(self, records: Records, column: str) -> RecordReader:
        if not _RECORD_TYPES & {str(kind := self._source.field(column).type)}:
            raise ValueError(f"column {column!r} is {kind}: a record is text or bytes")
        reader = records.load_reader()(records)
        assert isinstance(reader, RecordReader)
        return reader

    def grow(self, known: Callable[[], Columns], register: Callable[[Columns], None]) -> None:
        """Give the readers of records that bring columns what the stream has, and how it gets more.

        Args:
            known: returns the columns of the stream's blocks until now.
            register: makes columns of blocks the stream's. Raises SchemaConflictError.
        """
        beside = set(self.records.beside(self._source.names, self._column).values())

        def known_types() -> dict[str, str]:
            return {name.lower(): kind for name, kind in known() if name not in beside}

        def known_key_types() -> dict[str, str]:
            return {
                name.removeprefix(KEY_PREFIX): kind
                for name, kind in known_types().items()
                if name.startswith(KEY_PREFIX)
            }

        def register_all(columns: Columns | None, key_columns: Columns | None) -> None:
            with self._lock:
                had, key_had = self._columns
                now = (had if columns is None else columns, key_had if key_columns is None else key_columns)
                schema = self._schema(now)
                try:
                    register(columns_of(schema))
                except SchemaConflictError as error:
                    raise ValueError(str(error)) from error
                self._columns, self.schema = now, schema

        if self.records.columns_grow:
            self._reader.grow(known_types, lambda columns: register_all(columns, None))
        if self._key_reader is not None and self._key_reader.records.columns_grow:
            self._key_reader.grow(known_key_types, lambda columns: register_all(None, columns))

    def is_ready(self, batch: pa.RecordBatch) -> bool:
        """Return whether the records of a batch can be read without another system."""
        if not self._reader.is_ready(self._values(batch, self._column)):
            return False
        return self._key_reader is None or self._key_reader.is_ready(self._values(batch, KEY))

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
        parsed = self._parsed(taken)
        if not self.schema.names:
            # Rows of no column are none, and would be gone: a null before the first schema, an object without members.
            known = {fault.row: fault for fault in parsed.faults}
            parsed = replace(parsed, faults=[known.get(row, _no_column(row)) for row in range(taken.num_rows)])
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
            data = self._letter(taken, fault.row)
            letters[int(rows[fault.row])] = DeadLetter(fault.reason, data, why=whys.setdefault(why, why))
        if checked.invalid is not None:
            letters |= zip(np.flatnonzero(checked.invalid).tolist(), checked.letters, strict=True)
        invalid = np.zeros(batch.num_rows, dtype=np.bool_)
        invalid[list(letters)] = True
        return CheckedRows(made, invalid, [letters[row] for row in sorted(letters)])

    def _parsed(self, rows: pa.RecordBatch) -> Parsed:
        """Parse the records, and their keys."""
        parsed = _read(self._reader, self._values(rows, self._column))
        if self._key_reader is None:
            return parsed
        keys = _read(self._key_reader, self._values(rows, KEY))
        faults = {fault.row: replace(fault, why=f"key: {fault.why}") for fault in keys.faults}
        faults |= {fault.row: fault for fault in parsed.faults}
        fits = np.ones(rows.num_rows, dtype=np.bool_)
        fits[list(faults)] = False
        batches = [_only(part, fits) for part in (parsed, keys)]
        names = [*batches[0].schema.names, *(KEY_PREFIX + name for name in batches[1].schema.names)]
        return Parsed(
            pa.RecordBatch.from_arrays([column for part in batches for column in part.columns], names),
            [faults[row] for row in sorted(faults)],
        )

    def _letter(self, rows: pa.RecordBatch, row: int) -> bytes:
        """Return what is kept of a row that does not fit."""
        if self._key_reader is None:
            record: bytes | None = self._values(rows, self._column)[row].as_py()
            return record or b""
        return encode_row(self._source, rows, row)

    def rows_of(self, records: Sequence[bytes]) -> pa.RecordBatch:
        """Return dead letters as rows of the receiver: a record has null in the other columns."""
        if self._key_reader is None:
            return self._with_nulls(records)
        rows = [self._row_of(letter) or self._with_nulls([letter]) for letter in records]
        return pa.concat_batches(rows) if rows else self._with_nulls([])

    def _row_of(self, letter: bytes) -> pa.RecordBatch | None:
        """Return the row that a letter is; None: it is a record, of before its key was parsed."""
        if not letter.startswith(_STREAM):
            return None
        try:
            messages = pa.ipc.MessageReader.open_stream(letter)
            if not pa.ipc.read_schema(messages.read_next_message()).equals(self._source):
                return None
            message = messages.read_next_message()
            # Its text may be why it is a letter: all else must be right.
            kinds = [field.with_type(without_text(field.type)) for field in self._source]
            pa.ipc.read_record_batch(message, pa.schema(kinds)).validate(full=True)
            row = pa.ipc.read_record_batch(message, self._source)
        except (OSError, StopIteration, pa.ArrowException):
            return None
        return row if row.num_rows == 1 else None

    def _with_nulls(self, records: Sequence[bytes]) -> pa.RecordBatch:
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
        # Another thread may add columns meanwhile: these rows have null there.
        schema = self.schema
        own = pa.schema(list(schema)[: len(schema) - len(self._beside)])
        # A batch without a column does not know how many rows it has.
        columns = fitted(parsed.batch, own).columns if parsed.batch.num_columns else _nulls(own, rows.num_rows)
        return pa.RecordBatch.from_arrays([*columns, *(rows.column(name) for name in self._beside)], schema=schema)

    def _schema(self, columns: tuple[Columns, Columns]) -> pa.Schema:
        """Return the schema of blocks with these parsed columns, of the record and of its key. Raises ValueError."""
        return arrow_schema(self.records.with_columns(*columns).block_columns(columns_of(self._source), self._column))

    def _values(self, rows: pa.RecordBatch, column: str) -> pa.BinaryArray:
        """Return the records, or their keys, as bytes."""
        values = rows.column(column)
        return values if pa.types.is_binary(values.type) else values.cast(pa.binary())


def _no_column(row: int) -> Fault:
    why = "no schema has given the stream a column yet: declare columns, or keep one of the source's"
    return Fault(row, DeadLetterReason.DOES_NOT_FIT, why)


def _read(reader: RecordReader, values: pa.BinaryArray) -> Parsed:
    """Parse records. One that is null, such as Kafka's tombstone, is null in each column, also a required one."""
    if not values.null_count:
        return reader.read(values)
    rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
    parsed = reader.read(values.take(pa.array(rows)))
    faults = [replace(fault, row=int(rows[fault.row])) for fault in parsed.faults]
    # Where each row is among those that fit, in the order of the rows that stay.
    places = np.full(len(values), -1)
    fitting = np.delete(rows, [fault.row for fault in parsed.faults])
    if not parsed.batch.num_columns:
        return Parsed(parsed.batch, faults)
    places[fitting] = np.arange(len(fitting))
    places = np.delete(places, [fault.row for fault in faults])
    return Parsed(parsed.batch.take(pa.array(places, mask=places < 0)), faults)


def _nulls(schema: pa.Schema, rows: int) -> list[pa.Array]:
    return [pa.nulls(rows, field.type) for field in schema]


def _only(parsed: Parsed, fits: Rows) -> pa.RecordBatch:
    """Return those of the parsed rows that fit; ``fits`` is of all rows, also of those with a fault here."""
    if not parsed.batch.num_columns:
        return parsed.batch
    has = np.ones(len(fits), dtype=np.bool_)
    has[[fault.row for fault in parsed.faults]] = False
    return parsed.batch if fits[has].all() else parsed.batch.filter(pa.array(fits[has]))

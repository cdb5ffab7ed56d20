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
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from receiver_runtime.record_formats.record_reader import Parsed
    from receiver_runtime.sources.records.declared import Records

# A reason may name a value, which may be as long as a record.
_WHY_LETTERS = 300


class TypedRows(RowCheck):
    """Check and parse rows; see the module. Safe from any thread.

    Args:
        records: what the stream declares.
        source: the columns of the receiver's rows.
        column: the one that holds the record.

    Raises ValueError: blocks can't have these columns.
    """

    def __init__(self, records: Records, source: pa.Schema, column: str) -> None:
        super().__init__(arrow_schema(records.block_columns(columns_of(source), column)))
        reader = records.load_reader()(records)
        assert isinstance(reader, RecordReader)
        self._reader = reader
        self._column = column
        self._text = TextCheck(source)
        self._beside = list(records.beside(source.names, column))

    def check(self, batch: pa.RecordBatch) -> CheckedRows:
        """Parse the rows; leave out those that do not fit, or whose other text is not UTF-8."""
        checked = self._text.check(batch)
        taken = checked.batch
        values = taken.column(self._column)
        if not pa.types.is_binary(values.type):
            values = values.cast(pa.binary())
        parsed = self._reader.read(values)
        if not parsed.faults:
            return CheckedRows(self._made(parsed, taken), checked.invalid, checked.letters)
        fits = np.ones(taken.num_rows, dtype=np.bool_)
        fits[[fault.row for fault in parsed.faults]] = False
        made = self._made(parsed, taken.filter(pa.array(fits)))
        # Of the rows that were given; each letter is that of the next row that is left out.
        rows = np.arange(batch.num_rows) if checked.invalid is None else np.flatnonzero(~checked.invalid)
        letters = {
            int(rows[fault.row]): DeadLetter(
                fault.reason, values[fault.row].as_py() or b"", why=shortened(fault.why, _WHY_LETTERS)
            )
            for fault in parsed.faults
        }
        if checked.invalid is not None:
            letters |= zip(np.flatnonzero(checked.invalid).tolist(), checked.letters, strict=True)
        invalid = np.zeros(batch.num_rows, dtype=np.bool_)
        invalid[list(letters)] = True
        return CheckedRows(made, invalid, [letters[row] for row in sorted(letters)])

    def _made(self, parsed: Parsed, rows: pa.RecordBatch) -> pa.RecordBatch:
        beside = [rows.column(name) for name in self._beside]
        return pa.RecordBatch.from_arrays([*parsed.batch.columns, *beside], schema=self.schema)

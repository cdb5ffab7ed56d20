"""Read Avro records into typed columns; see ``avro_decoder``. A record that does not fit its schema is a fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from forebay_contrib.schema_records.avro_decoder import NO_UTF8, Record, make_decoder
from forebay_contrib.schema_records.avro_schema import parse_avro_schema
from forebay_contrib.schema_records.cursor import Cursor
from receiver_runtime.block_path.text_check import TextCheck
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.record_formats.record_reader import Fault, Parsed, RecordReader

if TYPE_CHECKING:
    from forebay_contrib.schema_records.avro import Avro

# Records that are decoded together: their numbers stay in a processor's cache.
_PIECE = 16_384


class AvroReader(RecordReader):
    """Read records of one schema, one value of Avro's binary encoding each."""

    def __init__(self, records: Avro) -> None:
        super().__init__(records)
        self.schema = arrow_schema(records.columns)
        self._decoder = make_decoder(parse_avro_schema(records.avro_schema))
        self._text = TextCheck(self.schema)

    def read(self, values: pa.BinaryArray) -> Parsed:
        """Parse records; a null is a row of nulls."""
        pieces = [self._read(values.slice(first, _PIECE)) for first in range(0, len(values) or 1, _PIECE)]
        if len(pieces) == 1:
            return pieces[0]
        faults = [
            Fault(number * _PIECE + fault.row, fault.reason, fault.why)
            for number, piece in enumerate(pieces)
            for fault in piece.faults
        ]
        return Parsed(pa.concat_batches([piece.batch for piece in pieces]), faults)

    def _read(self, values: pa.BinaryArray) -> Parsed:
        if not values.null_count:
            return self._decode(values)
        present = values.is_valid().to_numpy(zero_copy_only=False)
        parsed = self._decode(values.drop_null())
        rows = np.flatnonzero(present)
        faults = [Fault(int(rows[fault.row]), fault.reason, fault.why) for fault in parsed.faults]
        fits = np.ones(len(values), np.bool_)
        fits[[fault.row for fault in faults]] = False
        at = np.cumsum(present & fits) - 1
        places = pa.array(at[fits], mask=~present[fits])
        columns = [column.take(places) for column in parsed.batch.columns]
        return Parsed(pa.RecordBatch.from_arrays(columns, schema=self.schema), faults)

    def _decode(self, values: pa.BinaryArray) -> Parsed:
        cursor = Cursor.of(values)
        decoder = self._decoder
        arrays = decoder.columns(cursor) if isinstance(decoder, Record) else [decoder.read(cursor)]
        cursor.finish()
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        found = {row: (DeadLetterReason.UNPARSABLE, f"no Avro: {why}") for row, why in cursor.faults.items()}
        if not self._text.is_valid(batch):
            for row in np.flatnonzero(self._text.invalid_rows(batch)).tolist():
                found.setdefault(row, (DeadLetterReason.UNPARSABLE, f"no Avro: {NO_UTF8}"))
        if not found:
            return Parsed(batch)
        fits = np.ones(len(values), np.bool_)
        fits[list(found)] = False
        return Parsed(batch.filter(pa.array(fits)), [Fault(row, *found[row]) for row in sorted(found)])

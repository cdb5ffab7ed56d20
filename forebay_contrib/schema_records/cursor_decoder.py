"""Decode records of one schema by a cursor: see ``cursor``."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from forebay_contrib.schema_records.cursor import NO_UTF8, Cursor
from receiver_runtime.block_path.text_check import TextCheck
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.record_formats.record_reader import Fault, Parsed
from receiver_runtime.record_formats.registries.schema_reader import SchemaDecoder

if TYPE_CHECKING:
    from receiver_runtime.block_store.frames.columns import Columns


class CursorDecoder(SchemaDecoder):
    """Decode records by steps of a cursor. A subclass says how, and what the records are called."""

    #: As people call the records, in the reason of one that is none.
    called: ClassVar[str] = ""

    def __init__(self, columns: Columns) -> None:
        super().__init__(arrow_schema(columns))
        self._text = TextCheck(self.schema)

    @abstractmethod
    def arrays(self, cursor: Cursor) -> list[pa.Array]:
        """Read a record from where the cursor stands in each; note those that are none as faults."""

    def decode(self, records: pa.BinaryArray, header: int) -> Parsed:
        """Return the records as columns."""
        cursor = Cursor.of(records)
        cursor.places += header
        batch = pa.RecordBatch.from_arrays(self.arrays(cursor), schema=self.schema)
        cursor.finish()
        if not self._text.is_valid(batch):
            cursor.fail(self._text.invalid_rows(batch), NO_UTF8)
        if not cursor.failed.any():
            return Parsed(batch)
        faults = [
            Fault(row, DeadLetterReason.UNPARSABLE, f"no {self.called}: {why}")
            for row, why in sorted(cursor.faults.items())
        ]
        return Parsed(batch.filter(pa.array(~cursor.failed)), faults)

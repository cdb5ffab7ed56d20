"""Check the rows of record batches that are about to be stored: find those whose text is not UTF-8.

Arrow does not check the bytes of a text column, and Spark fails on the whole batch that has them, at each attempt. So
every way into a block asks here, whatever parsed the records. Owns the check and the form of such a row as a dead
letter. It must never repair a row or store anything.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.block_store.frames.payload import encode_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from receiver_runtime.sources.records.declared import Records


class RowsWaitError(Exception):
    """Nothing to do: rows can't be read yet, because another system does not answer. They are tried again."""


@dataclass(frozen=True, slots=True)
class CheckedRows:
    """Hold rows as a block has them, without those that it can't have: ``invalid`` says for each row whether it is one.

    None: all rows are there. ``letters`` are the rows that are not, in order.
    """

    batch: pa.RecordBatch
    invalid: np.ndarray[tuple[int], np.dtype[np.bool_]] | None = None
    letters: Sequence[DeadLetter] = field(default=())


class RowCheck(ABC):
    """Check rows before they are stored. ``schema``: of the blocks, which may be another than that of the rows.

    It may get columns, and never loses one.
    """

    #: What a typed stream declares of its records.
    records: Records | None = None

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema

    @abstractmethod
    def check(self, batch: pa.RecordBatch) -> CheckedRows:
        """Return the rows of a batch as a block has them. Safe from any thread. Raises RowsWaitError."""

    def together(self, batches: Sequence[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Return the same rows in batches that are checked fastest."""
        return batches

    def is_ready(self, batch: pa.RecordBatch) -> bool:  # noqa: ARG002  most are always
        """Return whether ``check`` waits for no other system."""
        return True

    def rows_of(self, records: Sequence[bytes]) -> pa.RecordBatch | None:  # noqa: ARG002  a typed stream's
        """Return records as rows of the receiver, with null in its other columns; None: they are no typed stream's."""
        return None


class TextCheck(RowCheck):
    """Check the text columns of one schema, those with text inside lists, maps and structs too. Safe from any thread.

    A check costs one pass over the bytes, without a Python object per row. Only a batch that fails it is searched.
    """

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema)
        # The columns that hold text, and whether it is inside other values.
        self._columns = [
            (index, not _is_text(field.type)) for index, field in enumerate(schema) if _holds_text(field.type)
        ]

    def is_valid(self, batch: pa.RecordBatch) -> bool:
        """Return whether all text of the batch is UTF-8."""
        return all(_is_valid(batch.column(index)) for index, _ in self._columns)

    def check(self, batch: pa.RecordBatch) -> CheckedRows:
        """Return the rows whose text is UTF-8, and the others as dead letters."""
        if self.is_valid(batch):
            return CheckedRows(batch)
        invalid = self.invalid_rows(batch)
        letters = self.dead_letters(batch.filter(pa.array(invalid)))
        # A slice of lists may share its memory with rows outside it that are invalid.
        return CheckedRows(batch.filter(pa.array(~invalid)), invalid if letters else None, letters)

    def invalid_rows(self, batch: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return for each row whether its text is not UTF-8."""
        found = np.zeros(batch.num_rows, dtype=np.bool_)
        for index, is_nested in self._columns:
            column = batch.column(index)
            if not _is_valid(column):
                found[_search(column, is_nested=is_nested)] = True
        return found

    def dead_letters(self, rows: pa.RecordBatch) -> list[DeadLetter]:
        """Return rows as dead letters: the raw value if there is one text column and no other, else an Arrow stream."""
        if len(self.schema) == 1 and _is_text(self.schema.field(0).type):
            kind = pa.large_binary() if pa.types.is_large_string(self.schema.field(0).type) else pa.binary()
            found: Sequence[bytes] = rows.column(0).cast(kind).to_pylist()
        else:
            found = [encode_row(self.schema, rows, row) for row in range(rows.num_rows)]
        return [DeadLetter(DeadLetterReason.INVALID_TEXT, data) for data in found]


def _is_valid(array: pa.Array) -> bool:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _search(column: pa.Array, *, is_nested: bool) -> list[int]:
    """Return the rows that make the check fail, by halving."""
    found = []
    pending = [(0, len(column))]
    while pending:
        first, count = pending.pop()
        piece = column.slice(first, count)
        if is_nested:
            # A check of a slice covers the inner values of the whole column, so copy the rows.
            piece = piece.take(pa.array(np.arange(count)))
        if _is_valid(piece):
            continue
        if count == 1:
            found.append(first)
        else:
            half = count // 2
            pending += [(first, half), (first + half, count - half)]
    return found


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def without_text(kind: pa.DataType) -> pa.DataType:
    """Return the type that has bytes where this one has text, also inside lists, maps and structs."""
    if pa.types.is_map(kind):
        return pa.map_(without_text(kind.key_type), without_text(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(without_text(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(without_text(field.type)) for field in kind])
    if pa.types.is_large_string(kind):
        return pa.large_binary()
    return pa.binary() if pa.types.is_string(kind) else kind


def _holds_text(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _holds_text(kind.key_type) or _holds_text(kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _holds_text(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_holds_text(field.type) for field in kind)
    return _is_text(kind)

"""Parse JSON objects into typed columns by Arrow's parser, which makes no Python object of a record.

Arrow reads many records at once, and fails as a whole where one does not fit, without saying which. So where it fails,
a second parser (msgspec) looks at each record of the piece that fails, and says which do not fit and why; Arrow reads
the others again. What Arrow still refuses is found by halving. So all values are Arrow's, and a record is taken by
itself alone, whatever records stand beside it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.record_formats.record_reader import Fault, Parsed, RecordReader
from receiver_runtime.record_formats.text_values import faulty_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.sources.records.declared import Records

_EMPTY = b"{}"
_OPENING, _CLOSING = b"{}"
# Records of a piece that is read again by itself after the whole was refused.
_PIECE = 1024
# Arrow takes these as numbers, JSON does not; and halves of surrogate pairs become text that is not UTF-8.
_NOT_JSON = (b"NaN", b"Inf")
_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


class JsonReader(RecordReader):
    """Read JSON objects; see the module."""

    def __init__(self, records: Records) -> None:
        super().__init__(records)
        self.schema = arrow_schema(records.columns)
        self._required = records.required
        # As Arrow's parser gives them: times and dates as text.
        self._read_as = pa.schema([(field.name, _read_type(field.type)) for field in self.schema])
        self._judge = _Judge(self.schema, records.required)

    def read(self, values: pa.BinaryArray) -> Parsed:
        """Parse records; a null is one without any member, which lacks no required one."""
        nulls = values.is_null().to_numpy(zero_copy_only=False) if values.null_count else None
        read = values if nulls is None else values.fill_null(_EMPTY)
        table = self._at_once(read, may_lack=nulls)
        if table is not None:
            return Parsed(table)
        tables: list[pa.RecordBatch] = []
        faults: list[Fault] = []
        for first in range(0, len(read), _PIECE):
            piece = read.slice(first, _PIECE)
            lacking = None if nulls is None else nulls[first : first + _PIECE]
            table = self._at_once(piece, may_lack=lacking)
            if table is not None:
                tables.append(table)
                continue
            taken, found = self._one_by_one(piece, lacking)
            tables.append(taken)
            faults += [Fault(first + fault.row, fault.reason, fault.why) for fault in found]
        return Parsed(_joined(tables, self.schema), faults)

    def _at_once(
        self, values: pa.BinaryArray, *, may_lack: np.ndarray[Any, np.dtype[np.bool_]] | None, judged: bool = False
    ) -> pa.RecordBatch | None:
        """Return the records as columns; None if one of them does not fit, or may not.

        Args:
            may_lack: the rows that may lack required members.
            judged: the second parser has taken them, each by itself.
        """
        table = self._members(values, judged=judged)
        if table is None:
            return None
        arrays = []
        for field, column in zip(self.schema, table.columns, strict=True):
            if field.name in self._required and column.null_count and _lacks(column, may_lack):
                return None
            try:
                array = column if column.type == field.type else column.cast(field.type)
            except pa.ArrowInvalid:
                return None
            if pa.types.is_floating(array.type) and not _is_finite(array):
                return None
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _members(self, values: pa.BinaryArray, *, judged: bool) -> pa.RecordBatch | None:
        """Return the members of the records as Arrow's parser gives them; None if it is not one object for each.

        Arrow's parser does not know lines. But a record that begins with a brace begins at the top level if the one
        before it ended with a brace: within a value, no opening brace follows a closing one. So each record has at
        least one object, and if there are as many objects as records, each has exactly one.
        """
        count = len(values)
        if not count:
            return _no_rows(self._read_as)
        if not _are_in_braces(values):
            return None
        whole = pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), values)
        text = pc.binary_join(whole, b"\n")[0].as_py()
        if not judged and not _is_plain(text):
            return None
        try:
            table = pj.read_json(
                pa.BufferReader(text),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(text) + 1),
                parse_options=pj.ParseOptions(explicit_schema=self._read_as, unexpected_field_behavior="ignore"),
            )
        except pa.ArrowInvalid:
            return None
        if table.num_rows != count:
            return None
        return table.combine_chunks().to_batches()[0]

    def _one_by_one(
        self, values: pa.BinaryArray, may_lack: np.ndarray[Any, np.dtype[np.bool_]] | None
    ) -> tuple[pa.RecordBatch, list[Fault]]:
        """Return the records that fit, and the faults of the others."""
        faults: list[Fault] = []
        rows: list[int] = []
        texts: list[bytes] = []
        for row, text in enumerate(values.to_pylist()):
            stripped = text.strip(b" \t\r\n")
            may = may_lack is not None and bool(may_lack[row])
            if (fault := None if may else self._judge.fault_of(row, stripped)) is not None:
                faults.append(fault)
            else:
                rows.append(row)
                texts.append(stripped)
        lacking = None if may_lack is None else may_lack[rows]
        found: list[pa.RecordBatch] = []
        pending = [(0, len(texts))]
        while pending:
            first, count = pending.pop()
            piece = pa.array(texts[first : first + count], pa.binary())
            lack = None if lacking is None else lacking[first : first + count]
            table = self._at_once(piece, may_lack=lack, judged=True)
            if table is not None:
                found.append(table)
            elif count == 1:
                faults.append(Fault(rows[first], DeadLetterReason.DOES_NOT_FIT, self._why(piece)))
            else:
                half = count // 2
                # The last one is read first.
                pending += [(first + half, count - half), (first, half)]
        return _joined(found, self.schema), sorted(faults, key=lambda fault: fault.row)

    def _why(self, record: pa.BinaryArray) -> str:
        """Return why Arrow refuses one record."""
        try:
            table = pj.read_json(
                pa.BufferReader(record[0].as_py()),
                read_options=pj.ReadOptions(use_threads=False),
                parse_options=pj.ParseOptions(explicit_schema=self._read_as, unexpected_field_behavior="ignore"),
            )
        except pa.ArrowInvalid as error:
            return str(error)
        for field in self.schema:
            for _, why in faulty_rows(table[field.name].combine_chunks(), field.type):
                return f"{field.name}: {why}"
        return "it does not fit the columns"


class _Judge:
    """Say of single records whether they may fit, and why not. It takes everything that Arrow takes."""

    def __init__(self, schema: pa.Schema, required: Sequence[str]) -> None:
        self._decoder = msgspec.json.Decoder(_struct("Record", list(schema), required))

    def fault_of(self, row: int, record: bytes) -> Fault | None:
        """Return the fault of a record; None if this finds none."""
        try:
            record.decode()
            self._decoder.decode(record)
        except UnicodeDecodeError as error:
            return Fault(row, DeadLetterReason.UNPARSABLE, f"no UTF-8 at byte {error.start}")
        except msgspec.ValidationError as error:
            return Fault(row, DeadLetterReason.DOES_NOT_FIT, str(error))
        except msgspec.DecodeError as error:
            return Fault(row, DeadLetterReason.UNPARSABLE, f"no JSON: {error}")
        except RecursionError:
            # Arrow's parser, which has no such limit, decides.
            return None
        return None


def _struct(name: str, fields: Sequence[pa.Field], required: Sequence[str] = ()) -> type[msgspec.Struct]:
    """Return a type whose attributes are the fields, under any name that JSON can have."""
    made: list[Any] = []
    names: dict[str, str] = {}
    for number, field in enumerate(fields):
        attribute = f"f{number}"
        names[attribute] = field.name
        if field.name in required:
            made.append((attribute, _judged_as(field.type)))
        else:
            made.append((attribute, _judged_as(field.type) | None, None))
    # Those without a default must come first.
    made.sort(key=len)
    return msgspec.defstruct(name, made, rename=names, gc=False)


def _judged_as(kind: pa.DataType) -> Any:  # noqa: ANN401  a type
    if pa.types.is_boolean(kind):
        return bool
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    if pa.types.is_floating(kind):
        return float
    if pa.types.is_decimal(kind):
        return float | str
    if pa.types.is_list(kind):
        return list[_judged_as(kind.value_type) | None]  # type: ignore[misc]
    if pa.types.is_struct(kind):
        return _struct("Struct", list(kind))
    return str


def _read_type(kind: pa.DataType) -> pa.DataType:
    """Return the type as which Arrow's JSON parser reads values of a type."""
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_read_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _read_type(field.type)) for field in kind])
    return kind


def _are_in_braces(values: pa.BinaryArray) -> bool:
    """Return whether each record begins with an opening brace and ends with a closing one."""
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    if np.diff(ends).min() < len(_EMPTY):
        return False
    text = np.frombuffer(data, np.uint8)
    return bool((text[ends[:-1]] == _OPENING).all() and (text[ends[1:] - 1] == _CLOSING).all())


def _is_plain(text: bytes) -> bool:
    """Return whether nothing in the text needs the second parser: UTF-8, and none of what only Arrow takes."""
    if any(word in text for word in _NOT_JSON) or (b"\\u" in text and _HALF.search(text)):
        return False
    try:
        return text.isascii() or bool(text.decode())
    except UnicodeDecodeError:
        return False


def _lacks(column: pa.Array, may_lack: np.ndarray[Any, np.dtype[np.bool_]] | None) -> bool:
    nulls = column.is_null().to_numpy(zero_copy_only=False)
    return bool((nulls if may_lack is None else nulls & ~may_lack).any())


def _is_finite(array: pa.Array) -> bool:
    return bool(pc.all(pc.is_finite(array)).as_py() is not False)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    found = [batch for batch in batches if batch.num_rows]
    if not found:
        return _no_rows(schema)
    return found[0] if len(found) == 1 else pa.concat_batches(found)

"""Parse JSON objects into typed columns by Arrow's parser, which makes no Python object of a record.

Arrow reads many records at once, and fails as a whole where one does not fit, without saying which. So where it fails,
a second parser (msgspec) looks at each record of the piece that fails, and says which do not fit and why; Arrow reads
the others again. What Arrow still refuses is found by halving. So all values are Arrow's, and a record is taken by
itself alone, whatever records stand beside it: for that, the second parser must take all that Arrow takes.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.block_store.frames.frame import DeadLetterReason
from receiver_runtime.record_formats.record_reader import Fault, Parsed, RecordReader
from receiver_runtime.record_formats.text_values import typed
from receiver_runtime.sources.records.json_records import JsonObjects

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.sources.records.declared import Records

    Rows = np.ndarray[tuple[int], np.dtype[np.bool_]]

_EMPTY = b"{}"
_OPENING, _CLOSING = b"{}"
# Records of a piece that is read again by itself after the whole was refused.
_PIECE = 1024
# Arrow takes these as numbers, where JSON has none.
_NO_NUMBERS = (b"NaN", b"Inf")
_BLANKS = b" \t\r\n"
_JUDGED_AS = {pa.types.is_boolean: bool, pa.types.is_floating: float, pa.types.is_decimal: Decimal}


class JsonReader(RecordReader):
    """Read JSON objects; see the module."""

    def __init__(self, records: Records) -> None:
        super().__init__(records)
        self.schema = arrow_schema(records.columns)
        # As Arrow's parser gives them: times and dates as text.
        self._read_as = pa.schema([(field.name, _read_type(field.type)) for field in self.schema])
        closed = isinstance(records, JsonObjects) and records.closed
        others = "error" if closed else "ignore"
        self._options = pj.ParseOptions(explicit_schema=self._read_as, unexpected_field_behavior=others)
        self._judge = _Judge(self.schema, closed=closed)

    def read(self, values: pa.BinaryArray) -> Parsed:
        """Parse records; a null is one without any member, which lacks no required one."""
        may_lack = np.zeros(len(values), dtype=np.bool_)
        if values.null_count:
            may_lack = values.is_null().to_numpy(zero_copy_only=False)
            values = values.fill_null(_EMPTY)
        if (parsed := self._at_once(values, may_lack)) is not None:
            return parsed
        batches: list[pa.RecordBatch] = []
        faults: list[Fault] = []
        for first in range(0, len(values), _PIECE):
            piece, may = values.slice(first, _PIECE), may_lack[first : first + _PIECE]
            parsed = self._at_once(piece, may) or self._one_by_one(piece, may)
            batches.append(parsed.batch)
            faults += [Fault(first + fault.row, fault.reason, fault.why) for fault in parsed.faults]
        return Parsed(pa.concat_batches(batches), faults)

    def _at_once(self, values: pa.BinaryArray, may_lack: Rows) -> Parsed | None:
        """Return the records by one call of Arrow's parser; None if it fails for one of them.

        ``may_lack``: the rows that may lack required members.
        """
        members = self._members(values)
        if members is None:
            return None
        faults: dict[int, str] = {}
        arrays = []
        for field, column in zip(self.schema, members.columns, strict=True):
            array = column
            if column.type != field.type:
                array, found = typed(column, field.type)
                faults |= {row: f"{why} - at `$.{field.name}`" for row, why in found.items() if row not in faults}
            if field.name in self.records.required and column.null_count:
                lacking = column.is_null().to_numpy(zero_copy_only=False) & ~may_lack
                faults |= dict.fromkeys(
                    np.flatnonzero(lacking).tolist(), f"it is missing or null - at `$.{field.name}`"
                )
            faults |= dict.fromkeys(_no_numbers(array).tolist(), f"no number, or too large - at `$.{field.name}`")
            arrays.append(array)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        if not faults:
            return Parsed(batch)
        fits = np.ones(batch.num_rows, dtype=np.bool_)
        fits[list(faults)] = False
        return Parsed(
            batch.filter(pa.array(fits)),
            [Fault(row, DeadLetterReason.DOES_NOT_FIT, faults[row]) for row in sorted(faults)],
        )

    def _members(self, values: pa.BinaryArray) -> pa.RecordBatch | None:
        """Return the members of the records as Arrow's parser gives them; None if it is not one object for each.

        Arrow's parser does not know where a record ends. But one that begins with a brace begins at the top level if
        the one before it ended with a brace: within a value, no opening brace follows a closing one. So each record has
        at least one object, and if there are as many objects as records, each has exactly one.
        """
        if not len(values):
            return _no_rows(self._read_as)
        if (buffer := _text_in_braces(values)) is None:
            return None
        text = buffer.to_pybytes()
        try:
            # Arrow does not look at the bytes of strings.
            if not text.isascii():
                text.decode()
            members = self._parsed(text)
        except (UnicodeDecodeError, pa.ArrowInvalid):
            return None
        return members if members.num_rows == len(values) else None

    def _parsed(self, text: bytes) -> pa.RecordBatch:
        """Return the members of the objects in a text. Raises ArrowInvalid."""
        options = pj.ReadOptions(use_threads=False, block_size=len(text) + 1)
        # Half of what `read_json` costs for a few records.
        with pj.open_json(pa.BufferReader(text), read_options=options, parse_options=self._options) as reader:
            return reader.read_next_batch()

    def _one_by_one(self, values: pa.BinaryArray, may_lack: Rows) -> Parsed:
        """Return the records that fit, and the faults of the others."""
        faults: list[Fault] = []
        rows: list[int] = []
        texts: list[bytes] = []
        for row, text in enumerate(values.to_pylist()):
            stripped = text.strip(_BLANKS)
            if (fault := self._judge.fault_of(row, stripped)) is not None:
                faults.append(fault)
            else:
                rows.append(row)
                texts.append(stripped)
        batches: list[pa.RecordBatch] = []
        pending = [(0, len(texts))]
        while pending:
            first, count = pending.pop()
            some = rows[first : first + count]
            piece = pa.array(texts[first : first + count], pa.binary())
            if (parsed := self._at_once(piece, may_lack[some])) is not None:
                batches.append(parsed.batch)
                faults += [Fault(some[fault.row], fault.reason, fault.why) for fault in parsed.faults]
            elif count == 1:
                faults.append(Fault(some[0], DeadLetterReason.DOES_NOT_FIT, self._why(texts[first])))
            else:
                half = count // 2
                # The last one is read first.
                pending += [(first + half, count - half), (first, half)]
        return Parsed(_joined(batches, self.schema), sorted(faults, key=lambda fault: fault.row))

    def _why(self, record: bytes) -> str:
        """Return why Arrow refuses one record."""
        try:
            self._parsed(record)
        except pa.ArrowInvalid as error:
            return str(error).removeprefix("JSON parse error: ").removesuffix(" in row 0")
        return "it is not one JSON object"


class _Judge:
    """Say of single records whether they may fit, and why not. It takes all that Arrow takes."""

    def __init__(self, schema: pa.Schema, *, closed: bool) -> None:
        self._decoder = msgspec.json.Decoder(_struct("Record", list(schema), closed=closed))
        self._decimals = [
            (f"f{number}", field) for number, field in enumerate(schema) if pa.types.is_decimal(field.type)
        ]

    def fault_of(self, row: int, record: bytes) -> Fault | None:
        """Return the fault of a record; None if this finds none."""
        reason = DeadLetterReason.UNPARSABLE
        try:
            record.decode()
            found = self._decoder.decode(record)
        except UnicodeDecodeError as error:
            return Fault(row, reason, f"no UTF-8 at byte {error.start}")
        except msgspec.ValidationError as error:
            return Fault(row, DeadLetterReason.DOES_NOT_FIT, str(error))
        except msgspec.DecodeError as error:
            # Arrow decides of what it may take: in a member without a column it is of no use to anyone.
            is_odd = any(word in record for word in _NO_NUMBERS)
            return None if is_odd else Fault(row, reason, f"no JSON: {error}")
        except RecursionError:
            # Arrow's parser has no such limit.
            return None
        for attribute, field in self._decimals:
            value = getattr(found, attribute)
            if value is not None and _does_not_fit(value, field.type):
                why = f"{value} is no {field.type} - at `$.{field.name}`"
                return Fault(row, DeadLetterReason.DOES_NOT_FIT, why)
        return None


def _does_not_fit(value: Decimal, kind: pa.Decimal128Type) -> bool:
    if not value.is_finite():
        return True
    _, digits, exponent = value.normalize().as_tuple()
    assert isinstance(exponent, int)
    return bool(any(digits)) and (-exponent > kind.scale or len(digits) + exponent > kind.precision - kind.scale)


def _struct(name: str, fields: Sequence[pa.Field], *, closed: bool) -> type[msgspec.Struct]:
    """Return a type whose attributes are the fields, under any name that JSON can have."""
    made = [(f"f{number}", _judged_as(field.type, closed=closed) | None, None) for number, field in enumerate(fields)]
    names = {f"f{n}": field.name for n, field in enumerate(fields)}
    return msgspec.defstruct(name, made, rename=names, gc=False, forbid_unknown_fields=closed)


def _judged_as(kind: pa.DataType, *, closed: bool) -> Any:  # noqa: ANN401  a type
    for is_it, judged in _JUDGED_AS.items():
        if is_it(kind):
            return judged
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    if pa.types.is_list(kind):
        return list[_judged_as(kind.value_type, closed=closed) | None]  # type: ignore[misc]
    if pa.types.is_struct(kind):
        return _struct("Struct", list(kind), closed=closed)
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


def _text_in_braces(values: pa.BinaryArray) -> pa.Buffer | None:
    """Return the records' bytes, one record after another; None unless each begins and ends with a brace."""
    _, offsets, data = values.buffers()
    places = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    if np.diff(places).min() < len(_EMPTY):
        return None
    text = np.frombuffer(data, np.uint8)
    if not ((text[places[:-1]] == _OPENING).all() and (text[places[1:] - 1] == _CLOSING).all()):
        return None
    return data.slice(int(places[0]), int(places[-1] - places[0]))


def _no_numbers(array: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the rows with a floating-point number that is not finite, also inside other values."""
    kind, found = array.type, np.array([], np.int64)
    if pa.types.is_floating(kind):
        if pc.all(pc.is_finite(array)).as_py() is False:
            finite = pc.fill_null(pc.is_finite(array), True)  # noqa: FBT003  Arrow's
            found = np.flatnonzero(~finite.to_numpy(zero_copy_only=False))
    elif pa.types.is_list(kind):
        if len(inner := _no_numbers(array.flatten())):
            found = pc.list_parent_indices(array).to_numpy()[inner]
    elif pa.types.is_struct(kind):
        found = np.concatenate([found, *(_no_numbers(part) for part in array.flatten())])
    return found


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _joined(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    return pa.concat_batches(batches) if batches else _no_rows(schema)

"""Decode many Protobuf messages of one type into Arrow columns, a field of all records at a time.

First the places of all fields are found, then the values of each field are read together. A field that the schema does
not have is passed over, as Protobuf says, and so is one whose value is of another type. Safe from any thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from forebay_contrib.schema_records.avro_decoder import places_of
from forebay_contrib.schema_records.cursor import (
    BAD_LENGTH,
    TOO_SHORT,
    Cursor,
    SingleRecord,
    WrongRecordError,
    bytes_array,
    numbers_of,
)
from forebay_contrib.schema_records.proto_schema import SCALARS, TIMESTAMP
from receiver_runtime.block_store.frames.columns import arrow_type

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from forebay_contrib.schema_records.cursor import Numbers
    from forebay_contrib.schema_records.proto_schema import Field, Message

    # For each tag the records that have it, and where its values begin.
    Found = dict[int, list[tuple[Numbers, Numbers]]]

_VARINT, _EIGHT, _SIZED, _FOUR = 0, 1, 2, 5
_FIXED = {
    "double": "<f8",
    "float": "<f4",
    "fixed32": "<u4",
    "fixed64": "<u8",
    "sfixed32": "<i4",
    "sfixed64": "<i8",
}
_DEFAULTS = {"string": "", "bytes": b"", "bool": False}
# Fields of a record that are looked for by steps; what is left is looked for record by record.
_MOST_STEPS = 64
_MOST_NUMBER = 2**29
# Of a timestamp: the years 1 to 9999.
_FIRST_SECOND, _LAST_SECOND = -62135596800, 253402300799
_NANOS = 10**9
# What is wrong with a record.
_NO_FIELD = "a field has no number, or a type that there is none of"
_LATE = "a time is out of range: it is not in the years 1 to 9999"


class MessageDecoder:
    """Read messages of one type."""

    def __init__(self, message: Message) -> None:
        self._message = message
        self._fields = [_FieldDecoder(one) for one in message.fields]
        self._oneofs = {one.oneof for one in message.fields if one.oneof}

    def columns(self, cursor: Cursor) -> list[pa.Array]:
        """Read the messages that end where the records of a cursor do."""
        found = _fields_of(cursor)
        occurrences = [field.occurrences(cursor, found) for field in self._fields]
        for oneof in self._oneofs:
            self._keep_last(cursor, oneof, occurrences)
        return [field.read(cursor, *of_one) for field, of_one in zip(self._fields, occurrences, strict=True)]

    def values(self, cursor: Cursor, kind: pa.DataType) -> pa.Array:
        """Read the messages as values of one column."""
        columns = self.columns(cursor)
        if self._message.name != TIMESTAMP:
            return pa.StructArray.from_arrays(columns, fields=list(kind))
        seconds, nanos = (column.to_numpy(zero_copy_only=False).astype(np.int64) for column in columns)
        bad = (seconds < _FIRST_SECOND) | (seconds > _LAST_SECOND) | (nanos < 0) | (nanos >= _NANOS)
        if bad.any():
            cursor.fail(bad, _LATE)
            seconds = np.where(bad, 0, seconds)
        return pa.array(seconds * 1_000_000 + nanos // 1000).view(kind)

    def _keep_last(self, cursor: Cursor, oneof: str, occurrences: list[tuple[Numbers, Numbers]]) -> None:
        """Leave out all but the last one of a record's values for a oneof."""
        numbers = [number for number, field in enumerate(self._fields) if field.of.oneof == oneof]
        last = np.full(len(cursor), -1)
        for number in numbers:
            owners, places = occurrences[number]
            np.maximum.at(last, owners, places)
        for number in numbers:
            owners, places = occurrences[number]
            kept = places == last[owners]
            occurrences[number] = owners[kept], places[kept]


class _FieldDecoder:
    """Read the values of one field."""

    def __init__(self, of: Field) -> None:
        self.of = of
        self.type = arrow_type(of.arrow)
        self._item = self.type.value_type if of.repeated and of.kind != "map" else self.type
        self._message = None if of.message is None else MessageDecoder(of.message)
        self._size = np.dtype(_FIXED[of.kind]).itemsize if of.kind in _FIXED else 0
        written = SCALARS[of.kind][1] if of.kind in SCALARS else "varint" if of.kind == "enum" else "bytes"
        self._wire = {"varint": _VARINT, "bytes": _SIZED}.get(written, _EIGHT if self._size == 8 else _FOUR)  # noqa: PLR2004
        default = _DEFAULTS.get(of.kind, of.symbols.get(0, "0") if of.kind == "enum" else 0)
        is_filled = not of.has_presence and not of.repeated
        self._default = pa.scalar(default, pa.int64()).cast(self.type) if pa.types.is_decimal(self.type) else default
        self._is_filled = is_filled

    def occurrences(self, cursor: Cursor, found: Found) -> tuple[Numbers, Numbers]:
        """Return the records that have the field, in order and each as often, and where each value begins."""
        parts = list(found.get(self.of.number << 3 | self._wire, ()))
        if self.of.repeated and self._wire != _SIZED and (packed := found.get(self.of.number << 3 | _SIZED)):
            parts.append(self._packed(cursor, *_joined(packed)))
        owners, places = _joined(parts)
        if (places[1:] < places[:-1]).any():
            order = np.argsort(places, kind="stable")
            owners, places = owners[order], places[order]
        if self.of.repeated or not len(owners):
            return owners, places
        is_last = np.append(owners[1:] != owners[:-1], True)
        if self._message is not None and not is_last.all():
            # Protobuf joins them; no library writes such a record by itself.
            cursor.fail(np.unique(owners[~is_last]), f"{self.of.name} is a message, and it is there twice")
        return owners[is_last], places[is_last]

    def _packed(self, cursor: Cursor, owners: Numbers, places: Numbers) -> tuple[Numbers, Numbers]:
        """Return where each value of packed ones begins."""
        items = _at(cursor, owners, places)
        lengths = items.unsigned_lengths()
        starts = items.skip(lengths)
        if self._size:
            counts, left = np.divmod(lengths, self._size)
            items.fail(left > 0, BAD_LENGTH)
            places = np.repeat(starts, counts) + self._size * numbers_of(counts)
        else:
            ends = np.flatnonzero(cursor.data < 0x80)  # noqa: PLR2004  the last byte of a varint
            first = np.searchsorted(ends, starts)
            counts = np.searchsorted(ends, starts + lengths) - first
            items.fail((lengths > 0) & (cursor.data[starts + lengths - 1] >= 0x80), TOO_SHORT)  # noqa: PLR2004
            counts = np.where(items.failed, 0, counts)
            before = np.repeat(first, counts) + numbers_of(counts)
            places = np.where(numbers_of(counts) > 0, ends[before - 1] + 1, np.repeat(starts, counts))
        _note_failed(cursor, owners, items)
        return np.repeat(owners, counts), places

    def read(self, cursor: Cursor, owners: Numbers, places: Numbers) -> pa.Array:
        """Read the values that begin at some places of some records."""
        if self.of.required and len(np.unique(owners)) < len(cursor):
            lacking = np.ones(len(cursor), np.bool_)
            lacking[owners] = False
            cursor.fail(lacking & ~cursor.failed, f"{self.of.name} is required, and missing")
        items = _at(cursor, owners, places)
        if self.of.kind == "map":
            assert self._message is not None
            keys, values = self._message.columns(self._inner(items))
            _note_failed(cursor, owners, items)
            return pa.MapArray.from_arrays(_offsets(owners, len(cursor)), keys, values, type=self.type)
        values = self._values(items)
        _note_failed(cursor, owners, items)
        if self.of.repeated:
            return pa.ListArray.from_arrays(_offsets(owners, len(cursor)), values, type=self.type)
        if len(owners) < len(cursor):
            values = values.take(places_of(owners, len(cursor)))
            if self._is_filled:
                values = values.fill_null(self._default)
        return values

    def _values(self, items: Cursor) -> pa.Array:
        if self._message is not None:
            inner = self._inner(items)
            values = self._message.values(inner, self._item)
            items.failed |= inner.failed
            return values
        if self._wire == _SIZED:
            lengths = items.unsigned_lengths()
            return bytes_array(items, items.skip(lengths), lengths, None, self._item)
        if self._size:
            return self._numbers(items.fixed(_FIXED[self.of.kind]))
        return self._numbers(items.varints())

    def _inner(self, items: Cursor) -> Cursor:
        """Return a cursor that stands in the messages that begin, with their lengths, where another one stands.

        Both have the faults of the records.
        """
        lengths = items.unsigned_lengths()
        starts = items.skip(lengths)
        return Cursor(items.data, starts, starts + lengths, items.rows, items.faults, items.failed)

    def _numbers(self, found: NDArray[Any]) -> pa.Array:
        kind = self.of.kind
        if kind == "bool":
            return pa.array(found != 0)
        if kind == "enum":
            return self._symbols(found.astype(np.uint32).view(np.int32))
        if kind in {"uint64", "fixed64"}:
            words = np.zeros((len(found), 2), np.uint64)
            words[:, 0] = found
            return pa.Array.from_buffers(self._item, len(found), [None, pa.py_buffer(words)])
        if kind.startswith("sint"):
            found = found.astype(np.uint32).astype(np.uint64) if kind == "sint32" else found
            signs = -(found & np.uint64(1)).view(np.int64)
            found = (found >> np.uint64(1)).view(np.int64) ^ signs
        elif kind in {"int32", "uint32"}:
            # More bits than the type has are dropped, as Protobuf says.
            found = found.astype(np.uint32)
            found = found.view(np.int32) if kind == "int32" else found
        elif kind == "int64":
            found = found.view(np.int64)
        return pa.array(found.astype(self._item.to_pandas_dtype(), copy=False), self._item)

    def _symbols(self, found: NDArray[np.int32]) -> pa.Array:
        """Return the names of an enum's numbers; a number without a name stays a number, in text."""
        numbers, places = np.unique(found, return_inverse=True)
        names = [self.of.symbols.get(number, str(number)) for number in numbers.tolist()]
        return pa.array(names, pa.string()).take(pa.array(places))


def _fields_of(cursor: Cursor) -> Found:
    """Find the fields of each record, and stand at its end."""
    found: Found = {}
    going = np.flatnonzero((cursor.places < cursor.ends) & ~cursor.failed)
    for _ in range(_MOST_STEPS):
        if not len(going):
            return found
        some = cursor.only(going)
        tags = some.varints()
        starts = some.places.copy()
        if len(bad := np.flatnonzero((tags >> np.uint64(3) == 0) | (tags >> np.uint64(3) >= _MOST_NUMBER))):
            some.fail(bad, _NO_FIELD)
        for tag, which in _groups(tags):
            part = some.only(which)
            _step_over(part, tag & 7)
            some.put(which, part)
            which = which[~part.failed]  # noqa: PLW2901  those that have a value
            found.setdefault(tag, []).append((going[which], starts[which]))
        cursor.put(going, some)
        going = going[(some.places < some.ends) & ~some.failed]
    for row in going.tolist():
        _find_singly(cursor, row, found)
    return found


def _find_singly(cursor: Cursor, row: int, found: Found) -> None:
    """Find the rest of the fields of one record."""
    record = SingleRecord(cursor, row)
    places: dict[int, list[int]] = {}
    try:
        while record.at < record.end:
            tag = record.varint()
            if not 0 < tag >> 3 < _MOST_NUMBER or tag & 7 not in {_VARINT, _EIGHT, _SIZED, _FOUR}:
                raise WrongRecordError(_NO_FIELD)  # noqa: TRY301  as the steps note it
            places.setdefault(tag, []).append(record.at)
            if tag & 7 == _VARINT:
                record.varint()
            elif tag & 7 == _SIZED:
                length = record.checked_length(record.varint())
                record.at += length
            else:
                record.take(8 if tag & 7 == _EIGHT else 4)
    except WrongRecordError as error:
        cursor.fail(np.array([row]), str(error))
        return
    cursor.places[row] = record.at
    for tag, at in places.items():
        found.setdefault(tag, []).append((np.full(len(at), row), np.array(at)))


def _step_over(cursor: Cursor, wire: int) -> None:
    """Move over a value of each record."""
    if wire == _VARINT:
        cursor.varints()
    elif wire == _SIZED:
        cursor.skip(cursor.unsigned_lengths())
    elif wire in {_EIGHT, _FOUR}:
        cursor.step(8 if wire == _EIGHT else 4)
    else:
        cursor.fail(np.arange(len(cursor)), _NO_FIELD)


def _groups(tags: NDArray[np.uint64]) -> Iterator[tuple[int, Numbers]]:
    first = tags[0]
    if (tags == first).all():
        yield int(first), np.arange(len(tags))
        return
    for tag in np.unique(tags).tolist():
        yield tag, np.flatnonzero(tags == np.uint64(tag))


def _joined(parts: list[tuple[Numbers, Numbers]]) -> tuple[Numbers, Numbers]:
    if len(parts) == 1:
        return parts[0]
    nothing = np.zeros(0, np.int64)
    owners = np.concatenate([nothing, *(owners for owners, _ in parts)])
    return owners, np.concatenate([nothing, *(places for _, places in parts)])


def _at(cursor: Cursor, owners: Numbers, places: Numbers) -> Cursor:
    """Return a cursor that stands at these places of these records."""
    failed = np.zeros(len(owners), np.bool_)
    return Cursor(cursor.data, places.copy(), cursor.ends[owners], cursor.rows[owners], cursor.faults, failed)


def _note_failed(cursor: Cursor, owners: Numbers, items: Cursor) -> None:
    """Note that records have failed whose values have."""
    if items.failed.any():
        bad = np.unique(owners[items.failed])
        cursor.failed[bad] = True
        cursor.places[bad] = cursor.ends[bad]


def _offsets(owners: Numbers, rows: int) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=rows))]).astype(np.int32))

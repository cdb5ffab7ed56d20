"""Decode many Avro records of one schema into Arrow columns, a field of all records at a time.

A decoder of a type reads one value of each record that a cursor stands in. Safe from any thread: it holds no state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay_contrib.schema_records.avro_schema import Type
from forebay_contrib.schema_records.cursor import (
    BAD_LENGTH,
    NO_UTF8,
    SingleRecord,
    WrongRecordError,
    bytes_array,
    joined,
)
from receiver_runtime.block_store.frames.columns import arrow_type
from receiver_runtime.record_formats.exact_cast import END_DAY, FIRST_DAY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from forebay_contrib.schema_records.cursor import Cursor, Flags, Numbers

    Raw = tuple[NDArray[Any], ...]
    _Pairs = list[tuple[object, object]]

# Items of a block whose items have no bytes: more is no data.
_MOST_EMPTY = 1024
_MOST_BYTES = 16  # of a decimal
_INT = 2**31
_DAY_MICROSECONDS = 86_400_000_000
# Items of a block, and blocks, that are read by steps.
_MOST_STEPS = 64
# What is wrong with a record.
_NO_BOOLEAN = "a boolean is a byte that is neither 0 nor 1"
_NO_DECIMAL = "a decimal has no bytes, or more than 16"
_LATE = "a time is out of range: it is not in the years 1 to 9999"
_LARGE = "an int has more than 32 bits"
_FEW_BYTES = "it has fewer bytes than its number of items needs"


class Decoder(ABC):
    """Read values of one type. ``null`` has no column: its decoder gives an array of nulls."""

    def __init__(self, of: Type) -> None:
        self.of = of
        self.type = arrow_type(of.arrow) if of.arrow else pa.null()

    @abstractmethod
    def read(self, cursor: Cursor) -> pa.Array:
        """Read one value of each record."""

    @abstractmethod
    def one(self, record: SingleRecord) -> object:
        """Read one value of one record, as Arrow takes it. Raises WrongRecordError, as ``read`` notes a fault."""

    def starts(self, cursor: Cursor, which: Numbers, counts: Numbers) -> Numbers | None:  # noqa: ARG002  some can
        """Return where each of ``counts`` values of some records begins, and move behind them; None: it can't be told.

        It can where the end of a value is seen without what is before it.
        """
        return None

    def read_some(self, cursor: Cursor, which: Numbers) -> pa.Array:
        """Read one value of some records; the others have null."""
        some = cursor.only(which)
        values = self.read(some)
        cursor.put(which, some)
        return values.take(places_of(which, len(cursor)))


class Leaf(Decoder):
    """Read values that are numbers, or places of bytes, which cost less to scatter than Arrow's arrays do."""

    @abstractmethod
    def raw(self, cursor: Cursor) -> Raw:
        """Read one value of each record as NumPy arrays."""

    @abstractmethod
    def made(self, cursor: Cursor, raw: Raw, valid: Flags | None) -> pa.Array:
        """Return these values as an array."""

    def absent(self, cursor: Cursor) -> Raw:
        """Return the arrays of as many values that are not there."""
        raise NotImplementedError

    def read(self, cursor: Cursor) -> pa.Array:
        return self.made(cursor, self.raw(cursor), None)

    def read_some(self, cursor: Cursor, which: Numbers) -> pa.Array:
        raw = self.absent(cursor)
        some = cursor.only(which)
        for whole, part in zip(raw, self.raw(some), strict=True):
            whole[which] = part
        cursor.put(which, some)
        valid = np.zeros(len(cursor), np.bool_)
        valid[which] = True
        return self.made(cursor, raw, valid)


class Nothing(Decoder):
    """Read null, which has no bytes."""

    def read(self, cursor: Cursor) -> pa.Array:
        return pa.nulls(len(cursor))

    def one(self, _record: SingleRecord) -> object:
        return None


class Number(Leaf):
    """Read int and long, also dates and times; float and double."""

    def __init__(self, of: Type) -> None:
        super().__init__(of)
        self._fixed = {"float": "<f4", "double": "<f8"}.get(of.kind)
        self._width = np.dtype(self._fixed or {"int": "<i4", "long": "<i8"}[of.kind])
        # How many of what Avro counts a day has.
        day = {"date": 1, "time": _DAY_MICROSECONDS // of.factor}.get(of.arrow[:4])
        self._years = None if day is None else (FIRST_DAY * day, END_DAY * day)

    def raw(self, cursor: Cursor) -> Raw:
        if self._fixed:
            return (cursor.fixed(self._fixed),)
        found: NDArray[Any] = cursor.zigzags()
        if self.of.kind == "int":
            found = _ints(cursor, found)
        if self._years is not None:
            bad = (found < self._years[0]) | (found >= self._years[1])
            if bad.any():
                cursor.fail(bad, _LATE)
                found = np.where(bad, found.dtype.type(0), found)
        return (found if self.of.factor == 1 else found * self.of.factor,)

    def one(self, record: SingleRecord) -> object:
        if self._fixed:
            return np.frombuffer(record.take(self._width.itemsize), self._fixed)[0]
        found = record.zigzag()
        if self.of.kind == "int" and not -_INT <= found < _INT:
            raise WrongRecordError(_LARGE)
        if self._years is not None and not self._years[0] <= found < self._years[1]:
            raise WrongRecordError(_LATE)
        return found * self.of.factor

    def starts(self, cursor: Cursor, which: Numbers, counts: Numbers) -> Numbers | None:
        return cursor.step_over(which, counts, self._width.itemsize if self._fixed else None)

    def absent(self, cursor: Cursor) -> Raw:
        return (np.zeros(len(cursor), self._width),)

    def made(self, _cursor: Cursor, raw: Raw, valid: Flags | None) -> pa.Array:
        made = pa.array(raw[0], mask=None if valid is None else ~valid)
        return made if made.type == self.type else made.view(self.type)


class Boolean(Leaf):
    """Read a byte that is 0 or 1."""

    def raw(self, cursor: Cursor) -> Raw:
        found = cursor.fixed("u1")
        bad = found > 1
        if bad.any():
            cursor.fail(bad, _NO_BOOLEAN)
        return (found == 1,)

    def one(self, record: SingleRecord) -> object:
        if (found := record.take(1)[0]) > 1:
            raise WrongRecordError(_NO_BOOLEAN)
        return found == 1

    def absent(self, cursor: Cursor) -> Raw:
        return (np.zeros(len(cursor), np.bool_),)

    def made(self, _cursor: Cursor, raw: Raw, valid: Flags | None) -> pa.Array:
        return pa.array(raw[0], mask=None if valid is None else ~valid)


class Bytes(Leaf):
    """Read bytes and text, with their lengths, and fixed ones. Text is not checked here."""

    def raw(self, cursor: Cursor) -> Raw:
        if self.of.kind.startswith("fixed"):
            lengths = cursor.checked_lengths(np.full(len(cursor), self.of.size))
        else:
            lengths = cursor.lengths()
        return cursor.skip(lengths), lengths

    def one(self, record: SingleRecord) -> object:
        found = record.take(self.of.size, BAD_LENGTH) if self.of.kind.startswith("fixed") else record.sized()
        if self.of.arrow == "string":
            try:
                found.decode()
            except UnicodeDecodeError:
                raise WrongRecordError(NO_UTF8) from None
        return found

    def absent(self, cursor: Cursor) -> Raw:
        return cursor.places.copy(), np.zeros(len(cursor), np.int64)

    def made(self, cursor: Cursor, raw: Raw, valid: Flags | None) -> pa.Array:
        starts, lengths = raw
        return bytes_array(cursor, starts, lengths, valid, self.type)


class Decimals(Bytes):
    """Read numbers in two's complement, the highest byte first."""

    def raw(self, cursor: Cursor) -> Raw:
        starts, lengths = super().raw(cursor)
        if not len(starts):
            return np.zeros((0, _MOST_BYTES), np.uint8), lengths
        bad = (lengths > _MOST_BYTES) | (lengths == 0) & ~cursor.failed
        if bad.any():
            cursor.fail(bad, _NO_DECIMAL)
            lengths = np.where(bad, 0, lengths)
        back = np.arange(_MOST_BYTES)
        # The lowest byte first, and above the highest one its sign.
        at = np.clip((starts + lengths - 1)[:, None] - back, 0, None)
        is_negative = cursor.data[starts].view(np.int8) < 0
        sign = np.where(is_negative & (lengths > 0), 0xFF, 0).astype(np.uint8)
        found = np.where(back < lengths[:, None], cursor.data[at], sign[:, None])
        values = self._array(found, None)
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            for row in range(len(found)):
                try:
                    self._array(found[row : row + 1], None).validate(full=True)
                except pa.ArrowInvalid:
                    cursor.fail(np.array([row]), f"a number is no {self.type}")
                    found[row] = 0
        return found, lengths

    def one(self, record: SingleRecord) -> object:
        found = super().one(record)
        assert isinstance(found, bytes)
        if not 1 <= len(found) <= _MOST_BYTES:
            raise WrongRecordError(_NO_DECIMAL)
        number = int.from_bytes(found, signed=True)
        digits = tuple(map(int, str(abs(number))))
        if len(digits) > self.type.precision:
            raise WrongRecordError(f"a number is no {self.type}")
        return Decimal((number < 0, digits, -self.type.scale))

    def absent(self, cursor: Cursor) -> Raw:
        return np.zeros((len(cursor), _MOST_BYTES), np.uint8), np.zeros(len(cursor), np.int64)

    def made(self, _cursor: Cursor, raw: Raw, valid: Flags | None) -> pa.Array:
        return self._array(raw[0], valid)

    def _array(self, found: NDArray[np.uint8], valid: Flags | None) -> pa.Array:
        mask = None if valid is None else pa.array(valid).buffers()[1]
        return pa.Array.from_buffers(self.type, len(found), [mask, pa.py_buffer(np.ascontiguousarray(found))])


class Enum(Leaf):
    """Read the number of a symbol; its name is the value."""

    def __init__(self, of: Type) -> None:
        super().__init__(of)
        self._symbols = pa.array(of.symbols, pa.string())
        self._no_symbol = f"an enum has no symbol of this number: it has {len(of.symbols)}"

    def raw(self, cursor: Cursor) -> Raw:
        found = cursor.zigzags()
        bad = (found < 0) | (found >= len(self.of.symbols))
        if bad.any():
            cursor.fail(bad, self._no_symbol)
            found = np.where(bad, 0, found)
        return (found.astype(np.int32),)

    def one(self, record: SingleRecord) -> object:
        found = record.zigzag()
        if not 0 <= found < len(self.of.symbols):
            raise WrongRecordError(self._no_symbol)
        return self.of.symbols[found]

    def absent(self, cursor: Cursor) -> Raw:
        return (np.zeros(len(cursor), np.int32),)

    def made(self, _cursor: Cursor, raw: Raw, valid: Flags | None) -> pa.Array:
        if not len(self._symbols):
            return pa.nulls(len(raw[0]), self.type)
        return self._symbols.take(pa.array(raw[0], mask=None if valid is None else ~valid))


class Record(Decoder):
    """Read the fields of a record, one after another."""

    def __init__(self, of: Type) -> None:
        super().__init__(of)
        self._fields = [make_decoder(field) for _, field in of.members]

    def columns(self, cursor: Cursor) -> list[pa.Array]:
        """Read the fields that have columns."""
        found = [(decoder.of.arrow, decoder.read(cursor)) for decoder in self._fields]
        return [values for arrow, values in found if arrow]

    def read(self, cursor: Cursor) -> pa.Array:
        return pa.StructArray.from_arrays(self.columns(cursor), fields=list(self.type))

    def one(self, record: SingleRecord) -> object:
        found = [(name, decoder.one(record)) for (name, _), decoder in zip(self.of.members, self._fields, strict=True)]
        return {name: value for (name, value), field in zip(found, self._fields, strict=True) if field.of.arrow}


class Items(Decoder):
    """Read arrays and maps: blocks of items, each with their number before it.

    A step reads one item of each record that has more of them. In a block of many, what is left after some steps is
    read without steps if the places of the items can be told, else one by one: a step costs as much as many items. So
    is what is left after some blocks.
    """

    def __init__(self, of: Type) -> None:
        super().__init__(of)
        self._item = make_decoder(of.members[0][1])
        self._key = Bytes(Type("string", "string")) if of.kind == "map" else None
        self._least = self._item.of.least + (self._key is not None)

    def read(self, cursor: Cursor) -> pa.Array:
        found = _Found(self._key is not None)
        reading = np.arange(len(cursor))
        for _ in range(_MOST_STEPS):
            if not len(reading):
                break
            some = cursor.only(reading)
            counts = self._counts(some)
            cursor.put(reading, some)
            reading, counts = reading[counts > 0], counts[counts > 0]
            is_many = counts > _MOST_STEPS
            self._read_many(cursor, reading[is_many], counts[is_many], found)
            going, left = reading[~is_many], counts[~is_many]
            while len(going):
                some = cursor.only(going)
                keys = None if self._key is None else self._key.read(some)
                found.add(going, self._item.read(some), keys)
                cursor.put(going, some)
                left -= 1
                more = (left > 0) & ~some.failed
                going, left = going[more], left[more]
            reading = reading[~cursor.failed[reading]]
        for row in reading.tolist():
            self._read_singly(cursor, row, self._pairs_left, found)
        order, offsets = found.order(len(cursor))
        values = joined(found.items, self._item.type).take(order)
        if self._key is None:
            return pa.ListArray.from_arrays(offsets, values, type=self.type)
        return pa.MapArray.from_arrays(offsets, joined(found.keys, pa.string()).take(order), values, type=self.type)

    def _read_many(self, cursor: Cursor, which: Numbers, counts: Numbers, found: _Found) -> None:
        """Read the items of long blocks."""
        if not len(which):
            return
        if self._key is None and (starts := self._item.starts(cursor, which, counts)) is not None:
            counts = np.where(cursor.failed[which], 0, counts)
            items = cursor.at_items(which, counts, starts)
            found.add(np.repeat(which, counts), self._item.read(items), None)
            cursor.failed[np.repeat(which, counts)[items.failed]] = True
            return
        for row, count in zip(which.tolist(), counts.tolist(), strict=True):
            self._read_singly(cursor, row, partial(self._pairs, count=count), found)

    def _read_singly(self, cursor: Cursor, row: int, read: Callable[[SingleRecord], _Pairs], found: _Found) -> None:
        """Read items of one record by itself."""
        record = SingleRecord(cursor, row)
        try:
            pairs = read(record)
        except WrongRecordError as error:
            cursor.fail(np.array([row]), str(error))
            return
        cursor.places[row] = record.at
        keys = None if self._key is None else pa.array([key for key, _ in pairs], pa.string())
        found.add(np.full(len(pairs), row), pa.array([value for _, value in pairs], self._item.type), keys)

    def _pairs(self, record: SingleRecord, count: int) -> _Pairs:
        """Read ``count`` items, each with its key if this is a map."""
        return [(None if self._key is None else self._key.one(record), self._item.one(record)) for _ in range(count)]

    def one(self, record: SingleRecord) -> object:
        pairs = self._pairs_left(record)
        return [value for _, value in pairs] if self._key is None else pairs

    def _pairs_left(self, record: SingleRecord) -> _Pairs:
        """Read the items of the blocks that are left."""
        pairs: _Pairs = []
        while count := record.zigzag():
            if count < 0:
                count = -count
                record.checked_length(record.zigzag())
            if count > ((record.end - record.at) // self._least if self._least else _MOST_EMPTY):
                raise WrongRecordError(_FEW_BYTES)
            pairs += self._pairs(record, count)
        return pairs

    def _counts(self, cursor: Cursor) -> Numbers:
        """Read how many items come next in each record."""
        counts = cursor.zigzags()
        if len(sized := np.flatnonzero(counts < 0)):
            # So that readers can skip the block: its size, which this does not need.
            some = cursor.only(sized)
            some.lengths()
            cursor.put(sized, some)
            counts[sized] = np.where(some.failed, 0, -counts[sized])
        most = (cursor.ends - cursor.places) // self._least if self._least else np.full(len(cursor), _MOST_EMPTY)
        # The least number has no positive one.
        bad = (counts < 0) | (counts > most)
        if bad.any():
            cursor.fail(bad, _FEW_BYTES)
            counts = np.where(bad, 0, counts)
        return counts


class _Found:
    """Gather the items of arrays or maps, in the order of steps."""

    def __init__(self, with_keys: bool) -> None:
        self._with_keys = with_keys
        self._owners: list[Numbers] = []
        self.items: list[pa.Array] = []
        self.keys: list[pa.Array] = []

    def add(self, owners: Numbers, items: pa.Array, keys: pa.Array | None) -> None:
        self._owners.append(owners)
        self.items.append(items)
        if keys is not None:
            self.keys.append(keys)

    def order(self, rows: int) -> tuple[pa.Array, pa.Array]:
        """Return where each item of the first record is among all, then of the second one; and each one's offset."""
        owners = np.concatenate(self._owners) if self._owners else np.zeros(0, np.int64)
        ends = np.cumsum(np.bincount(owners, minlength=rows))
        return pa.array(np.argsort(owners, kind="stable")), pa.array(np.concatenate([[0], ends]).astype(np.int32))


class Union(Decoder):
    """Read the number of a branch, then a value of it."""

    def __init__(self, of: Type) -> None:
        super().__init__(of)
        self._branches = [make_decoder(branch) for _, branch in of.members]
        self._is_struct = any(name for name, _ in of.members)
        self._no_branch = f"a union has no branch of this number: it has {len(self._branches)}"

    def read(self, cursor: Cursor) -> pa.Array:
        found = cursor.zigzags()
        bad = (found < 0) | (found >= len(self._branches))
        if bad.any():
            cursor.fail(bad, self._no_branch)
        parts: list[tuple[Flags, pa.Array]] = []
        for number, branch in enumerate(self._branches):
            takes = (found == number) & ~cursor.failed
            if not branch.of.arrow:
                continue
            values = branch.read(cursor) if takes.all() else branch.read_some(cursor, np.flatnonzero(takes))
            parts.append((takes, values))
        if self._is_struct:
            valid = np.logical_or.reduce([takes for takes, _ in parts])
            return pa.StructArray.from_arrays(
                [values for _, values in parts], fields=list(self.type), mask=pa.array(~valid)
            )
        whole = pa.nulls(len(cursor), self.type)
        for number, (takes, values) in enumerate(parts):
            cast = values if values.type == self.type else values.cast(self.type)
            whole = cast if not number else pc.if_else(pa.array(takes), cast, whole)
        return whole

    def one(self, record: SingleRecord) -> object:
        found = record.zigzag()
        if not 0 <= found < len(self._branches):
            raise WrongRecordError(self._no_branch)
        value = self._branches[found].one(record)
        name = self.of.members[found][0]
        return {name: value} if name else value


def make_decoder(of: Type) -> Decoder:
    """Return the decoder of a type."""
    return _DECODERS[of.kind](of)


def _ints(cursor: Cursor, found: Numbers) -> NDArray[np.int32]:
    bad = (found >= _INT) | (found < -_INT)
    if bad.any():
        cursor.fail(bad, _LARGE)
        found = np.where(bad, 0, found)
    return found.astype(np.int32)


def places_of(which: Numbers, rows: int) -> pa.Array:
    """Return for each row its place among some of the rows; null if it is none of them."""
    at = np.zeros(rows, np.int32)
    at[which] = np.arange(len(which), dtype=np.int32)
    absent = np.ones(rows, np.bool_)
    absent[which] = False
    return pa.array(at, mask=absent)


_DECODERS: Mapping[str, Callable[[Type], Decoder]] = {
    "null": Nothing,
    "boolean": Boolean,
    "int": Number,
    "long": Number,
    "float": Number,
    "double": Number,
    "bytes": Bytes,
    "string": Bytes,
    "fixed": Bytes,
    "decimal": Decimals,
    "fixed_decimal": Decimals,
    "enum": Enum,
    "record": Record,
    "array": Items,
    "map": Items,
    "union": Union,
}

"""Turn a column into one of another type, by Arrow's casts where they are exact, and where Arrow has none.

Bytes are base64, maps are lists of entries, and times are those that Spark and
Python have. A value is exactly what its text says, or the cast fails; Arrow alone makes other numbers of some decimals,
and crashes at others.
"""

from __future__ import annotations

from base64 import b64decode

import pyarrow as pa
import pyarrow.compute as pc

#: Texts that are decimals. Arrow crashes at negative exponents, and makes other numbers of what needs more bits than it
#: has: with this many digits, a number with 38 digits after its point needs at most 256 bits.
DECIMAL = r"^[+-]?(?:\d{1,38}(?:\.\d{0,38})?|\.\d{1,38}|(?:\d{1,29}(?:\.\d{0,38})?|\.\d{1,38})[eE][+-]?\d)$"
#: Wider than texts that are base64.
BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}[A-Za-z0-9+/=]=)?$"
_ANY_DECIMAL = pa.decimal256(76, 38)
_SECONDS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_SECONDS = 86_400
#: Days from 1970-01-01 to 0001-01-01, and to 10000-01-01: Arrow has other years too, Spark and Python have not.
FIRST_DAY, END_DAY = -719_162, 2_932_897


def exact_cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column as another type. Raises ArrowInvalid, ArrowNotImplementedError."""
    if column.type == kind:
        return column
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(
            column.offsets, exact_cast(column.values, kind.value_type), kind, mask=_nulls(column)
        )
    if pa.types.is_map(kind):
        keys, items = column.values.field(0), exact_cast(column.values.field(1), kind.item_type)
        return pa.MapArray.from_arrays(column.offsets, keys, items, kind, mask=_nulls(column))
    if pa.types.is_struct(kind):
        parts = [exact_cast(column.field(number), field.type) for number, field in enumerate(kind)]
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=_nulls(column))
    return _single(column, kind)


def _single(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column of values without others inside as another type."""
    if pa.types.is_binary(kind) and pa.types.is_string(column.type):
        return _from_base64(column)
    if pa.types.is_decimal(kind) and pa.types.is_string(column.type):
        if pc.all(pc.match_substring_regex(column, DECIMAL)).as_py() is False:
            raise pa.ArrowInvalid("it is no decimal, or has too many digits")
        return column.cast(_ANY_DECIMAL).cast(kind)
    made = column.cast(kind)
    _check_years(made)
    return made


def _nulls(column: pa.Array) -> pa.Array | None:
    return column.is_null() if column.null_count else None


def _from_base64(column: pa.StringArray) -> pa.BinaryArray:
    texts = column.cast(pa.binary()).to_pylist()
    try:
        return pa.array([None if text is None else b64decode(text, validate=True) for text in texts], pa.binary())
    except ValueError as error:
        raise pa.ArrowInvalid(f"it is no base64: {error}") from error


def _check_years(column: pa.Array) -> None:
    """Refuse times and dates outside the years 1 to 9999, which Arrow has, and Spark and Python have not."""
    kind = column.type
    if not pa.types.is_temporal(kind):
        return
    ends = pc.min_max(column.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64()))
    if ends["min"].as_py() is None:
        return
    day = 1 if pa.types.is_date32(kind) else _DAY_SECONDS * _SECONDS[kind.unit]
    if ends["min"].as_py() < FIRST_DAY * day or ends["max"].as_py() >= END_DAY * day:
        raise pa.ArrowInvalid("it is not in the years 1 to 9999")

"""Turn columns of text into columns of times, dates and other types, in bulk, and say which rows are none.

Every kind of records whose values are text shares this. Arrow's casts decide, where they are exact (`exact_cast`): a
time of a type with a zone must have its own, and one without must not.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from receiver_runtime.record_formats.exact_cast import BASE64, DECIMAL, exact_cast
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator

# Rows: a failing piece of this many is searched by halving, and a small one row by row.
_PIECE, _SMALL_PIECE = 1024, 16
# All that Arrow takes of years 1 to 9999, and little more: 29 February. What does not match needs no search.
_YEAR = r"(?:\d{3}[1-9]|\d\d[1-9]0|\d[1-9]00|[1-9]000)"
_MONTH_AND_DAY = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|[12]\d))"
)
_DAY = rf"{_YEAR}-{_MONTH_AND_DAY}"
_TIME_OF_DAY = r"(?:[01]\d|2[0-3])(?::[0-5]\d(?::[0-5]\d(?:\.\d{1,6})?)?)?"
_ZONE = r"(?:Z|[+-](?:[01]\d|2[0-3])(?::?[0-5]\d)?)"
_DATE = rf"^{_DAY}$"
_TIME = rf"^{_DAY}(?:[T ]{_TIME_OF_DAY})?$"
_TIME_WITH_ZONE = rf"^{_DAY}[T ]{_TIME_OF_DAY}{_ZONE}$"
_NUMBER = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_INTEGER = r"^-?\d+$"
_BOOLEAN = r"^(?i:true|false)$"
# Of a number that Arrow makes zero of, and is none.
_NOT_ZERO = r"^[^eE]*[1-9]"
# The longest part of a value, and of what Arrow says of it, in a reason.
_LONGEST, _LONGEST_REASON = 60, 200
_NAMES = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date32[day]": "date",
    "binary": "base64",
}


def typed(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """Return a column as another type, with null in each row whose value is none of it, and why for each such row."""
    is_text = pa.types.is_string(column.type)
    if not (is_text and _may_be_lenient(column, kind)):
        try:
            found = exact_cast(column, kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            pass
        else:
            return _finite(column, found) if is_text and pa.types.is_floating(kind) else (found, {})
    faults: dict[int, str] = {}
    if is_text:
        odd = pc.fill_null(pc.invert(pc.match_substring_regex(column, _pattern(kind))), False)  # noqa: FBT003  Arrow's
        column, faults = _refused(column, kind, np.flatnonzero(odd.to_numpy(zero_copy_only=False)))
    found = dict(_faulty_rows(column, kind))
    faults |= found
    made = exact_cast(_without(column, np.array(sorted(found), np.int64)), kind)
    if is_text and pa.types.is_floating(kind):
        made, others = _finite(column, made)
        faults |= others
    return made, faults


def refusal(text: str, kind: pa.DataType) -> str:
    """Return what is said of a text that is no value of a type."""
    expected = ""
    if pa.types.is_timestamp(kind):
        other, said = (_TIME, "a zone offset") if kind.tz else (_TIME_WITH_ZONE, "no zone offset")
        expected = f": expected {said}" if re.search(other, text, re.ASCII) else ""
    name = "time" if pa.types.is_timestamp(kind) else _NAMES.get(str(kind), str(kind).replace("decimal128", "DECIMAL"))
    return f"{shortened(text, _LONGEST)!r} is no {name}{expected}"


def _pattern(kind: pa.DataType) -> str:
    if pa.types.is_temporal(kind):
        return _DATE if pa.types.is_date(kind) else _TIME_WITH_ZONE if kind.tz else _TIME
    if pa.types.is_boolean(kind):
        return _BOOLEAN
    if pa.types.is_decimal(kind):
        return DECIMAL
    if pa.types.is_binary(kind):
        return BASE64
    return _INTEGER if pa.types.is_integer(kind) else _NUMBER


def _may_be_lenient(column: pa.StringArray, kind: pa.DataType) -> bool:
    """Return whether Arrow may take a text of the column that is no value: it takes 0x1F as a number, 1 as a truth."""
    if pa.types.is_integer(kind):
        words = b"xX"
    elif pa.types.is_boolean(kind):
        words = b"01"
    else:
        return False
    data = column.buffers()[2]
    octets = np.frombuffer(data if data is not None else b"", np.uint8)
    return any((octets == word).any() for word in words)


def _refused(
    column: pa.StringArray, kind: pa.DataType, rows: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> tuple[pa.StringArray, dict[int, str]]:
    """Return a column with null in these rows, and what is said of each."""
    texts = column.take(pa.array(rows)).to_pylist()
    return _without(column, rows), {row: refusal(text, kind) for row, text in zip(rows.tolist(), texts, strict=True)}


def _finite(texts: pa.StringArray, found: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Return numbers without those that are infinite, or zero where the text is not, and what is said of each."""
    odd = pc.invert(pc.is_finite(found))
    zero = pc.equal(found, pa.scalar(0, found.type))
    if pc.any(zero).as_py():
        odd = pc.or_(odd, pc.and_(zero, pc.match_substring_regex(texts, _NOT_ZERO)))
    if not pc.any(odd).as_py():
        return found, {}
    rows = np.flatnonzero(pc.fill_null(odd, False).to_numpy(zero_copy_only=False))  # noqa: FBT003  Arrow's
    return _without(found, rows), _refused(texts, found.type, rows)[1]


def _without(column: pa.Array, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    """Return the column with null in these rows."""
    if not len(rows):
        return column
    keep = np.ones(len(column), dtype=np.bool_)
    keep[rows] = False
    return pc.if_else(pa.array(keep), column, pa.nulls(len(column), column.type))


def _faulty_rows(column: pa.Array, kind: pa.DataType) -> Iterator[tuple[int, str]]:
    """Yield the rows whose value is none of the type, each with the reason, by halving."""
    is_text = pa.types.is_string(column.type)
    pending = [(first, min(_PIECE, len(column) - first)) for first in range(0, len(column), _PIECE)]
    while pending:
        first, count = pending.pop()
        # A copy of the rows: the cast of a slice looks at the inner values of the whole column.
        piece = column.slice(first, count) if is_text else column.take(pa.array(np.arange(first, first + count)))
        try:
            exact_cast(piece, kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if count == 1 and is_text:
                yield first, refusal(piece[0].as_py(), kind)
            elif count == 1:
                # Arrow goes on with how to program it.
                yield first, shortened(str(error).partition(". If ")[0], _LONGEST_REASON)
            else:
                part = 1 if count <= _SMALL_PIECE else count // 2
                pending += [(row, min(part, first + count - row)) for row in range(first, first + count, part)]

"""Turn columns of text into columns of times, dates and other types, in bulk, and say which rows are none.

Every kind of records whose values are text shares this. Arrow's casts decide, where they are exact (`exact_cast`): a
time of a type with a zone must have its own, and one without must not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from receiver_runtime.record_formats.exact_cast import exact_cast

if TYPE_CHECKING:
    from collections.abc import Iterator

# Rows: a failing piece of so many is searched by halving.
_PIECE = 1024
# Wider than what Arrow takes: what does not match needs no search.
_TIME = r"^\s*[+-]?\d{4,}-\d\d-\d\d([T ].*)?$"


def typed(column: pa.Array, kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """Return a column as another type, with null in each row whose value is none of it, and why for each such row."""
    try:
        return exact_cast(column, kind), {}
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        faults: dict[int, str] = {}
    if pa.types.is_string(column.type) and pa.types.is_temporal(kind):
        odd = pc.fill_null(pc.invert(pc.match_substring_regex(column, _TIME)), False)  # noqa: FBT003  Arrow's
        rows = np.flatnonzero(odd.to_numpy(zero_copy_only=False))
        for row, text in zip(rows.tolist(), column.take(pa.array(rows)).to_pylist(), strict=True):
            faults[row] = f"{text!r:.60} is no {'date' if pa.types.is_date(kind) else 'time'}"
        column = _without(column, rows)
    found = dict(_faulty_rows(column, kind))
    faults |= found
    return exact_cast(_without(column, np.array(sorted(found), np.int64)), kind), faults


def _without(column: pa.Array, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Array:
    """Return the column with null in these rows."""
    if not len(rows):
        return column
    keep = np.ones(len(column), dtype=np.bool_)
    keep[rows] = False
    return pc.if_else(pa.array(keep), column, pa.nulls(len(column), column.type))


def _faulty_rows(column: pa.Array, kind: pa.DataType) -> Iterator[tuple[int, str]]:
    """Yield the rows whose value is none of the type, each with the reason, by halving."""
    pending = [(first, min(_PIECE, len(column) - first)) for first in range(0, len(column), _PIECE)]
    while pending:
        first, count = pending.pop()
        # A copy of the rows: the cast of a slice looks at the inner values of the whole column.
        piece = column.take(pa.array(np.arange(first, first + count)))
        try:
            exact_cast(piece, kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if count == 1:
                # Arrow goes on with how to program it.
                yield first, str(error).partition(". If ")[0]
            else:
                half = count // 2
                pending += [(first, half), (first + half, count - half)]

"""Turn columns of text into columns of times, dates and other types, in bulk, with the rows whose text is none.

Every kind of records whose values are text shares this. Arrow's casts say what a text is: a time of a type with a zone
must have its own, and one without must not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

# Rows: a failing piece of so many is searched by halving. In larger pieces more would be cast again.
_PIECE = 1024


def faulty_rows(column: pa.Array, kind: pa.DataType) -> Iterator[tuple[int, str]]:
    """Yield the rows whose value is none of the type, each with the reason."""
    pending = [(first, min(_PIECE, len(column) - first)) for first in range(0, len(column), _PIECE)]
    while pending:
        first, count = pending.pop()
        # A copy of its rows: the cast of a slice of nested values looks at the whole column.
        piece = column.take(pa.array(range(first, first + count))) if pa.types.is_nested(column.type) else column
        piece = piece if len(piece) == count else piece.slice(first, count)
        why = _fault(piece, kind)
        if why is None:
            continue
        if count == 1:
            yield first, why
        else:
            half = count // 2
            pending += [(first, half), (first + half, count - half)]


def _fault(column: pa.Array, kind: pa.DataType) -> str | None:
    try:
        column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        return str(error)
    return None

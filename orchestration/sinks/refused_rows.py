"""Name the rows of a result that a target can't hold: the column, the value, and what is wrong with it.

Runs in Spark's Python workers, so it loads neither Spark nor Dagster nor the driver log.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

#: Refused rows that an error names.
MOST_NAMED = 5
_MOST_CHARACTERS = 200  # of a refused value that are shown


class RefusedRowsError(Exception):
    """Rows of a result can't be stored; the message names the columns, the values and the way out."""


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """Hold a row that a target refuses, as JSON, and what is wrong with it."""

    row: str
    reason: str


def refusal(refused: Sequence[RefusedRow], *, more: bool, way_out: str) -> RefusedRowsError:
    """Return the error for refused rows; `more`: there may be others."""
    number = f"{len(refused)} rows, or more," if more else f"{len(refused)} row(s)"
    first = "; ".join(one.reason for one in refused[:MOST_NAMED])
    return RefusedRowsError(f"{number} can't be stored: {first}. Correct them in the output's function{way_out}")


def shown(value: object) -> str:
    """Return a value for a message, cut."""
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]} …"


def readable_row(batch: pa.RecordBatch) -> dict[str, Any]:
    r"""Return the one row of a batch; what is no UTF-8 in a text is escaped, as ``\xff``."""
    return {
        name: _decoded(column.cast(_as_bytes(column.type)).to_pylist()[0], column.type)
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }


def check_text(batch: pa.RecordBatch) -> None:
    """Raise RefusedRowsError if a text in a batch is no UTF-8, which a cast of bytes to a string lets pass."""
    refused: list[RefusedRow] = []
    _find_bad_text(batch, refused)
    if refused:
        raise refusal(
            refused,
            more=len(refused) >= MOST_NAMED,
            way_out=": decode(value, 'ISO-8859-1') reads another encoding, make_valid_utf8(text) replaces what is "
            "wrong, and a column of bytes keeps it as it is",
        )


def bad_text(batch: pa.RecordBatch) -> RefusedRow | None:
    """Return a batch's one row if it has a text that is no UTF-8."""
    import pyarrow as pa  # noqa: PLC0415

    # A copy, because the check of a slice includes what is nested in the rows beside it.
    batch, row = batch.take(pa.array([0])), readable_row(batch)
    reasons = [f"column {name} is {shown(row[name])}, which is not UTF-8" for name in _bad_columns(batch)]
    return RefusedRow(json.dumps(row, default=str), reasons[0]) if reasons else None


def _bad_columns(batch: pa.RecordBatch) -> list[str]:
    import pyarrow as pa  # noqa: PLC0415

    bad = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            bad.append(name)
    return bad


def _find_bad_text(batch: pa.RecordBatch, refused: list[RefusedRow]) -> None:
    import pyarrow as pa  # noqa: PLC0415

    if len(refused) >= MOST_NAMED or not _bad_columns(batch):
        return
    if batch.num_rows > 1:
        half = batch.num_rows // 2
        for rows in (range(half), range(half, batch.num_rows)):
            _find_bad_text(batch.take(pa.array(rows)), refused)
        return
    if (bad := bad_text(batch)) is not None:
        refused.append(bad)


def _as_bytes(type_: pa.DataType) -> pa.DataType:
    """Return the type with bytes in the place of text."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return pa.large_binary() if pa.types.is_large_string(type_) else pa.binary()
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_as_bytes(field.type)) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_as_bytes(type_.value_type)))
    if pa.types.is_map(type_):
        return pa.map_(_as_bytes(type_.key_type), _as_bytes(type_.item_type))
    return type_


def _decoded(value: Any, type_: pa.DataType) -> Any:  # noqa: ANN401  any value of a column
    from pyarrow import types  # noqa: PLC0415

    if value is None:
        return None
    if types.is_string(type_) or types.is_large_string(type_):
        return value.decode(errors="backslashreplace")
    if types.is_struct(type_):
        return {field.name: _decoded(value[field.name], field.type) for field in type_}
    if types.is_list(type_):
        return [_decoded(one, type_.value_type) for one in value]
    if types.is_map(type_):
        return [(_decoded(key, type_.key_type), _decoded(item, type_.item_type)) for key, item in value]
    return value

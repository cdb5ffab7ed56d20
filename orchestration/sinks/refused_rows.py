"""Find the rows of a result that a target can't hold, name the column, the value and the reason, or keep them aside.

Runs in Spark's Python workers, so it loads neither Spark nor Dagster nor the driver log.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

#: What happens to rows that a target can't hold: the batch fails, or they are put aside with the commit of the others.
OnBadRows = Literal["fail", "dead_letter"]
#: Refused rows that an error names.
MOST_NAMED = 5
#: Refused rows that one task keeps aside, and the characters of those before the last: with more, it is the output that
#: is wrong.
MOST_REFUSED = 10_000
_MOST_KEPT_CHARACTERS = 1 << 26
#: What an error about refused rows says besides, for a sink that could keep them aside.
KEEP_WAY_OUT = ', or have them put aside by on_bad_rows="dead_letter"'
TEXT_WAY_OUT = (
    ": decode(value, 'ISO-8859-1') reads another encoding, make_valid_utf8(text) replaces what is wrong, and a column "
    "of bytes keeps it as it is"
)
_FAR_TIME = re.compile(r"<value out of range: (-?\d+)>")
_MOST_CHARACTERS = 200  # of a refused value that are shown


class RefusedRowsError(Exception):
    """Rows of a result can't be stored; the message names the columns, the values and the way out."""


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """Hold a row that a target refuses, as JSON, and what is wrong with it."""

    row: str
    reason: str


class RefusedRows:
    """Collect the rows of a task that its target refuses: to keep them aside, or to name the first ones in an error."""

    def __init__(self, *, keeps: bool = False, way_out: str = "") -> None:
        """Begin with none. `keeps`: they are kept aside; `way_out`: what an error says besides."""
        self.rows: list[RefusedRow] = []
        self._keeps = keeps
        self._way_out = way_out
        self._characters = 0

    def add(self, row: RefusedRow) -> None:
        """Add a row. Raises RefusedRowsError if there are too many."""
        self.rows.append(row)
        most = MOST_REFUSED if self._keeps else MOST_NAMED
        # Without the row's own: one long row must not refuse its neighbours.
        if len(self.rows) >= most or self._characters > _MOST_KEPT_CHARACTERS:
            raise self._error(f"{len(self.rows)} rows, or more,")
        self._characters += len(row.row)

    def end(self) -> None:
        """Raise RefusedRowsError if there are any, and they are not kept."""
        if self.rows and not self._keeps:
            raise self._error(f"{len(self.rows)} row(s)")

    def lines(self) -> bytes:
        """Return the rows as lines of JSON: the row, and the reason."""
        return b"".join(
            f'{{"refused_row": {one.row}, "reason": {json.dumps(one.reason)}}}\n'.encode() for one in self.rows
        )

    def _error(self, number: str) -> RefusedRowsError:
        first = "; ".join(one.reason for one in self.rows[:MOST_NAMED])
        return RefusedRowsError(
            f"{number} can't be stored: {first}. Correct them in the output's function{self._way_out}"
        )


def checked_choice(on_bad_rows: OnBadRows, sink: str) -> OnBadRows:
    """Return the choice of a sink's declaration. Raises DeclarationError."""
    from orchestration.declarations.declaration_error import DeclarationError  # noqa: PLC0415  workers declare nothing

    if on_bad_rows not in get_args(OnBadRows):
        message = f"{sink}: on_bad_rows={on_bad_rows!r} must be one of {', '.join(get_args(OnBadRows))}"
        raise DeclarationError(message)
    return on_bad_rows


def declared_choice(on_bad_rows: OnBadRows) -> dict[str, str]:
    """Return what a sink's declaration says of the choice: nothing of the usual one."""
    return {} if on_bad_rows == "fail" else {"on_bad_rows": on_bad_rows}


def shown(value: object) -> str:
    """Return a value for a message, shortened."""
    return shortened(repr(value), _MOST_CHARACTERS)


def readable_row(batch: pa.RecordBatch) -> dict[str, Any]:
    r"""Return the one row of a batch; what is no UTF-8 in a text is escaped, as ``\xff``."""
    texts = [times_as_text(column) for column in batch.columns]
    return {
        field.name: _decoded(column.cast(with_leaves(column.type, _as_bytes)).to_pylist()[0], field.type)
        for field, column in zip(batch.schema, texts, strict=True)
    }


def times_as_text(column: pa.Array) -> pa.Array:
    """Return a column with dates and times at any depth as text in UTC, for `time_text`.

    Python has none beyond the year 9999.
    """
    in_utc = column.cast(with_leaves(column.type, _in_utc))
    return in_utc.cast(with_leaves(column.type, _without_zone)).cast(with_leaves(column.type, _time_as_text))


def time_text(text: str, type_: pa.DataType) -> str:
    """Return a text of `times_as_text` as ISO 8601: for years beyond 32767, Arrow has written a number."""
    import pyarrow as pa  # noqa: PLC0415

    is_date = pa.types.is_date(type_)
    if found := _FAR_TIME.fullmatch(text):
        import numpy as np  # noqa: PLC0415

        # Spark's times are microseconds, the first of which is none to numpy.
        days, of_day = divmod(int(found[1]), 1 if is_date else 86_400_000_000)
        text = str(np.datetime64(days, "D"))
        if not is_date:
            text += f" {(datetime.min + timedelta(microseconds=of_day)).time().isoformat('microseconds')}"  # noqa: DTZ901
    return text if is_date or type_.tz is None else f"{text}Z"


def row_as_json(row: Mapping[str, Any]) -> str:
    """Return a readable row as JSON, which has neither NaN nor infinities nor bytes."""
    return json.dumps(_finite(row), default=lambda value: value.hex() if isinstance(value, bytes) else str(value))


def _finite(value: Any) -> Any:  # noqa: ANN401  any value of a column
    match value:
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case float() if not math.isfinite(value):
            return number_as_text(value)
    return value


def number_as_text(value: float) -> str:
    """Return what stands for NaN or an infinity in JSON, as Spark's `to_json` writes it."""
    return "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"


def check_text(batch: pa.RecordBatch) -> None:
    """Raise RefusedRowsError if a text in a batch is no UTF-8, which a cast of bytes to a string lets pass."""
    refused = RefusedRows(way_out=TEXT_WAY_OUT)
    for _ in take_good_text(batch, refused):
        pass
    refused.end()


def take_good_text(batch: pa.RecordBatch, refused: RefusedRows) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch whose texts are UTF-8, in order, and add the others to `refused`."""
    import pyarrow as pa  # noqa: PLC0415

    if not _bad_columns(batch):
        yield batch
    elif batch.num_rows > 1:
        half = batch.num_rows // 2
        for rows in (range(half), range(half, batch.num_rows)):
            # A copy, because the check of a slice includes what is nested in the rows beside it.
            yield from take_good_text(batch.take(pa.array(rows)), refused)
    elif (bad := bad_text(batch)) is not None:
        refused.add(bad)


def bad_text(batch: pa.RecordBatch) -> RefusedRow | None:
    """Return a batch's one row if it has a text that is no UTF-8."""
    import pyarrow as pa  # noqa: PLC0415

    # A copy, because the check of a slice includes what is nested in the rows beside it.
    batch, row = batch.take(pa.array([0])), readable_row(batch)
    reasons = [f"column {name} is {shown(row[name])}, which is not UTF-8" for name in _bad_columns(batch)]
    return RefusedRow(row_as_json(row), reasons[0]) if reasons else None


def _bad_columns(batch: pa.RecordBatch) -> list[str]:
    import pyarrow as pa  # noqa: PLC0415

    bad = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            bad.append(name)
    return bad


def with_leaves(type_: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return the type with other types in the place of those that are not nested."""
    import pyarrow as pa  # noqa: PLC0415

    # Nullable, because of a null struct the fields are null, whatever is said of them.
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, with_leaves(field.type, leaf)) for field in type_])
    if is_list(type_):
        return pa.list_(with_leaves(type_.value_type, leaf))
    if pa.types.is_map(type_):
        return pa.map_(with_leaves(type_.key_type, leaf), with_leaves(type_.item_type, leaf))
    return leaf(type_)


def is_list(type_: pa.DataType) -> bool:
    """Return whether a type is a list, in any layout but that of a fixed size, which Spark has not."""
    import pyarrow as pa  # noqa: PLC0415

    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_list_view, pa.types.is_large_list_view)
    return any(is_one(type_) for is_one in lists)


def _as_bytes(type_: pa.DataType) -> pa.DataType:
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_large_string(type_):
        return pa.large_binary()
    return pa.binary() if pa.types.is_string(type_) else type_


def _in_utc(type_: pa.DataType) -> pa.DataType:
    """Return a timestamp's type without the session's zone, for which Arrow would need a file of zones."""
    import pyarrow as pa  # noqa: PLC0415

    return pa.timestamp(type_.unit, "UTC") if pa.types.is_timestamp(type_) and type_.tz is not None else type_


def _without_zone(type_: pa.DataType) -> pa.DataType:
    """Return a timestamp's type without a zone: with one, Arrow writes years beyond 32767 as other years."""
    import pyarrow as pa  # noqa: PLC0415

    return pa.timestamp(type_.unit) if pa.types.is_timestamp(type_) else type_


def _time_as_text(type_: pa.DataType) -> pa.DataType:
    import pyarrow as pa  # noqa: PLC0415

    return pa.string() if pa.types.is_date(type_) or pa.types.is_timestamp(type_) else type_


def _decoded(value: Any, type_: pa.DataType) -> Any:  # noqa: ANN401  any value of a column
    from pyarrow import types  # noqa: PLC0415

    if value is None:
        return None
    is_time = types.is_date(type_) or types.is_timestamp(type_)
    if is_time or types.is_string(type_) or types.is_large_string(type_):
        text = value.decode(errors="backslashreplace")
        return time_text(text, type_) if is_time else text
    if types.is_struct(type_):
        return {field.name: _decoded(value[field.name], field.type) for field in type_}
    if types.is_list(type_):
        return [_decoded(one, type_.value_type) for one in value]
    if types.is_map(type_):
        return [(_decoded(key, type_.key_type), _decoded(item, type_.item_type)) for key, item in value]
    return value

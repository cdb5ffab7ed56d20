"""Write rows as COPY reads them, each value so that Postgres has it as Spark had it. No SQL, no connection.

Runs in Spark's Python workers, so it loads neither Spark nor Dagster nor the driver log.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from orchestration.sinks.refused_rows import number_as_text, shown, time_text, times_as_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

# The days from the year 1 to 9999, since 1970.
_DAYS = (-719_162, 2_932_896)
_MICROSECONDS = 86_400_000_000  # of a day


class RepeatedKeyError(Exception):
    """This map has two keys that are one name in JSON, which keeps one of them. `column`: the map's."""

    column = ""


def as_csv(batch: pa.RecordBatch, again: Iterable[str] = ()) -> pa.BufferReader:
    r"""Return the rows for COPY: all values are quoted, so that nothing between commas is NULL and `""` empty text.

    The columns `again` follow a second time. Raises RepeatedKeyError.
    """
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import csv  # noqa: PLC0415

    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    plain = [_plain(name, columns[name]) for name in (*columns, *again)]
    sink = pa.BufferOutputStream()
    csv.write_csv(
        pa.record_batch(plain, names=[str(at) for at in range(len(plain))]),
        sink,
        csv.WriteOptions(include_header=False, quoting_style="all_valid"),
    )
    return pa.BufferReader(sink.getvalue())


def _plain(name: str, column: pa.Array) -> pa.Array:
    """Return a column that can be written as CSV: bytes in hexadecimal, nested values as JSON."""
    import pyarrow as pa  # noqa: PLC0415

    types = pa.types
    if types.is_null(column.type):
        return column.cast(pa.string())
    if types.is_binary(column.type) or types.is_large_binary(column.type):
        return pa.array([None if value is None else "\\x" + value.hex() for value in column.to_pylist()], pa.string())
    if types.is_date(column.type) or types.is_timestamp(column.type):
        return _as_dates(column)
    if types.is_nested(column.type):
        try:
            return pa.array([_json(value, column.type) for value in times_as_text(column).to_pylist()], pa.string())
        except RepeatedKeyError as error:
            error.column = name
            raise
    return column


def _as_dates(column: pa.Array) -> pa.Array:
    """Return dates or times as Postgres reads them: of years before 1, which it takes for a zone, with BC behind.

    Those of years that Arrow does not write are texts too.
    """
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import compute  # noqa: PLC0415

    ends = compute.min_max(column)
    first, last = ends["min"].value, ends["max"].value
    unit = 1 if pa.types.is_date(column.type) else _MICROSECONDS
    if first is None or (first >= _DAYS[0] * unit and last < (_DAYS[1] + 1) * unit):
        return column

    def dated(text: str) -> str:
        year, dash, rest = text.removeprefix("-").partition("-")
        return text if text[0] != "-" and int(year) else f"{int(year) + 1:04d}{dash}{rest} BC"

    texts = times_as_text(column).to_pylist()
    return pa.array([None if text is None else dated(time_text(text, column.type)) for text in texts], pa.string())


def _json(value: Any, type_: pa.DataType) -> str | None:  # noqa: ANN401  any value of a column
    return None if value is None else json.dumps(_jsonable(value, type_), ensure_ascii=False)


def _jsonable(value: Any, type_: pa.DataType) -> Any:  # noqa: ANN401
    """Convert a value for JSON: an object for a map's pairs, and text for what JSON has not."""
    from pyarrow import types  # noqa: PLC0415

    if value is None:
        return None
    if types.is_map(type_):
        found: dict[str, Any] = {}
        for key, item in value:
            name = _key(_jsonable(key, type_.key_type))
            if name in found:
                raise RepeatedKeyError(f"its key {shown(name)} is there twice, and an object of JSON keeps one")
            found[name] = _jsonable(item, type_.item_type)
        return found
    if types.is_struct(type_):
        return {entry.name: _jsonable(value[entry.name], entry.type) for entry in type_}
    if types.is_list(type_) or types.is_large_list(type_):
        return [_jsonable(item, type_.value_type) for item in value]
    return time_text(value, type_) if types.is_date(type_) or types.is_timestamp(type_) else _scalar(value)


def _scalar(value: Any) -> Any:  # noqa: ANN401
    match value:
        case bytes():
            return value.hex()
        case Decimal():
            return f"{value:f}"
        case float() if not math.isfinite(value):
            return number_as_text(value)
    return value


def _key(value: Any) -> str:  # noqa: ANN401
    """Return a key of a map as a name: what JSON has for it, without quotes."""
    return value if isinstance(value, str) else json.dumps(value)

"""Fit the columns of a user's DataFrame to those of a state: by name, with casts that keep every value, or refuse them.

Loads pyspark. It decides by the types alone, and computes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812  as everyone writes it
from pyspark.sql.pandas.types import to_arrow_type

from orchestration.state.state_frame import StateError
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.sources.records.ddl import parse_ddl, quoted
from tracker_store.close_names import did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from orchestration.state.state_schema import Columns

_FLOAT_BITS = {32: 16, 64: 32}  # the widest integers of which a FLOAT, a DOUBLE, holds every one
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}  # that integers have


def matched_columns(frame: DataFrame, columns: Columns, what: str, *, exactly: bool) -> list[Column]:
    """Return expressions of these columns in their order, each of its declared type.

    Args:
        frame: the user's.
        columns: as (name, Spark's type).
        what: names the frame for messages, as "the changes".
        exactly: whether the frame may have no other column.

    Raises StateError that names each column that is missing, is not declared, or could lose a part of its values.
    """
    given: dict[str, list[tuple[str, DataType]]] = {}
    for field in frame.schema:
        given.setdefault(field.name.casefold(), []).append((field.name, field.dataType))
    wrong = []
    if exactly:
        declared = [name.casefold() for name, _ in columns]
        for [(name, _), *_] in (each for key, each in given.items() if key not in declared):
            hint = did_you_mean(name, [each for each, _ in columns])
            wrong.append(f"{what} have a column {name!r}, which the state has not{f': {hint}' if hint else ''}")
    found = []
    for name, kind in columns:
        named = given.get(name.casefold(), [])
        if len(named) != 1:
            wrong.append(f"{what} have {len(named) or 'no'} column{'s' * bool(named)} {name!r} ({kind})")
            continue
        [(theirs, its_type)] = named
        if not _keeps(_declared(kind), _arrow(its_type)):
            shown = its_type.simpleString().upper()
            wrong.append(
                f"column {theirs!r} of {what} is {shown}, and declared as {kind}, which may not hold each of its "
                f"values: cast it in your function, as .cast({kind!r}), or declare the state with {shown}"
            )
        found.append(F.col(quoted(theirs)).cast(kind))
    if wrong:
        raise StateError("; ".join(wrong))
    return found


def _declared(kind: str) -> pa.DataType:
    return arrow_schema(parse_ddl(f"c {kind}").columns).field(0).type


def _arrow(kind: DataType) -> pa.DataType | None:
    """Return Arrow's type for one of Spark's; None: it has none."""
    try:
        return to_arrow_type(kind, timezone="UTC")
    except PySparkException:
        return None


def _keeps(declared: pa.DataType, given: pa.DataType | None) -> bool:
    """Return whether a type has each value of another one as it is."""
    if given is None:
        return False
    if pa.types.is_null(given) or declared == given:
        return True
    if pa.types.is_list(declared):
        return pa.types.is_list(given) and _keeps(declared.value_type, given.value_type)
    if pa.types.is_map(declared):
        return (
            pa.types.is_map(given)
            # Of two keys that become one, a map would lose an entry.
            and declared.key_type == given.key_type
            and _keeps(declared.item_type, given.item_type)
        )
    if pa.types.is_struct(declared):
        # Spark casts a struct's fields by their places.
        return (
            pa.types.is_struct(given)
            and [field.name.casefold() for field in declared] == [field.name.casefold() for field in given]
            and all(_keeps(ours.type, theirs.type) for ours, theirs in zip(declared, given, strict=True))
        )
    return _keeps_number(declared, given)


def _keeps_number(declared: pa.DataType, given: pa.DataType) -> bool:
    is_integer = pa.types.is_integer(given)
    if pa.types.is_integer(declared):
        return is_integer and bool(given.bit_width <= declared.bit_width)
    if pa.types.is_floating(declared):
        widest = _FLOAT_BITS[declared.bit_width] if is_integer else declared.bit_width
        return (is_integer or pa.types.is_floating(given)) and bool(given.bit_width <= widest)
    if pa.types.is_decimal(declared):
        before_point = declared.precision - declared.scale
        if is_integer:
            return bool(_DIGITS[given.bit_width] <= before_point)
        is_decimal = pa.types.is_decimal(given) and given.scale <= declared.scale
        return is_decimal and bool(given.precision - given.scale <= before_point)
    return False

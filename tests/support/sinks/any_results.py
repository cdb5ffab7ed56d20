"""Draw results of any columns: names and types at several depths, and values of these types."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from pyspark.sql import types

from forebay.testing.edge_values import NAMES

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_MOMENTS = st.datetimes(datetime(1, 1, 1), datetime.max)  # noqa: DTZ001, DTZ901  without a zone
#: Types with the values that they have; none: the type is one that no target has, and its columns are null.
_LEAVES: dict[DataType, st.SearchStrategy[Any]] = {
    types.BooleanType(): st.booleans(),
    types.ByteType(): st.integers(-(2**7), 2**7 - 1),
    types.ShortType(): st.integers(-(2**15), 2**15 - 1),
    types.IntegerType(): st.integers(-(2**31), 2**31 - 1),
    types.LongType(): st.integers(-(2**63), 2**63 - 1),
    types.FloatType(): st.floats(width=32),
    types.DoubleType(): st.floats(),
    types.DecimalType(38, 0): st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    types.DecimalType(38, 38): st.integers(-(10**38) + 1, 10**38 - 1).map(lambda n: Decimal(f"{n}E-38")),
    types.DecimalType(10, 2): st.integers(-(10**10) + 1, 10**10 - 1).map(lambda n: Decimal(f"{n}E-2")),
    types.StringType(): st.text(max_size=5),
    types.BinaryType(): st.binary(max_size=3),
    types.DateType(): st.dates(),
    types.TimestampType(): _MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC)),
    types.TimestampNTZType(): _MOMENTS,
}
_ODD = (
    *(types.NullType(), types.DayTimeIntervalType(), types.YearMonthIntervalType(), types.CalendarIntervalType()),
    *(types.VariantType(), types.TimeType(), types.StructType([])),
)
_PLAIN_NAMES = ("a1", "b1", "c1")
NAME = st.sampled_from(NAMES) | st.text(max_size=5) | st.text(min_size=30, max_size=70)


@st.composite
def _struct(draw: st.DrawFn, depth: int, *, plain: bool) -> StructType:
    names = _PLAIN_NAMES[: draw(st.integers(1, 3))] if plain else draw(st.lists(NAME, min_size=1, max_size=3))
    return types.StructType([types.StructField(name, draw(_types(depth - 1, plain=plain))) for name in names])


def _types(depth: int, *, plain: bool) -> st.SearchStrategy[DataType]:
    leaves: st.SearchStrategy[DataType] = st.sampled_from([*_LEAVES])
    if not depth:
        return leaves if plain else leaves | leaves | leaves | st.sampled_from(_ODD)
    inner = st.deferred(lambda: _types(depth - 1, plain=plain))
    keys = leaves if plain else inner
    return (
        _types(0, plain=plain)
        | inner.map(types.ArrayType)
        | st.builds(types.MapType, keys, inner)
        | _struct(depth, plain=plain)
    )


def _values(of: DataType) -> st.SearchStrategy[Any]:
    """Return the values of a type, as Arrow takes them; each may be null."""
    match of:
        case types.ArrayType():
            some: st.SearchStrategy[Any] = st.lists(_values(of.elementType), max_size=2)
        case types.MapType():
            keys = _values(of.keyType).filter(lambda key: key is not None)
            some = st.lists(st.tuples(keys, _values(of.valueType)), max_size=2, unique_by=lambda pair: repr(pair[0]))
        case types.StructType():
            # Two fields of one name are refused before a value counts.
            some = st.fixed_dictionaries({field.name: _values(field.dataType) for field in of.fields})
        case _:
            some = _LEAVES.get(of, st.none())
    return st.none() | some


@st.composite
def any_result(draw: st.DrawFn) -> tuple[StructType, list[tuple[Any, ...]], bool]:
    """Return columns, rows of them, and whether each target must take the columns."""
    plain = draw(st.booleans())
    schema = draw(_struct(4, plain=plain))
    row = st.tuples(*(_values(field.dataType) for field in schema.fields))
    return schema, draw(st.lists(row, max_size=3)), plain

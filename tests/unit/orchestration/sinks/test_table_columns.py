"""Check which of Spark's types a target's columns can have."""

from __future__ import annotations

import pytest
from pyspark.sql import types

from orchestration.declarations.sink import SinkError
from orchestration.sinks.table_columns import check_types, lacking


@pytest.mark.parametrize("type_", [types.TimeType(), types.VariantType(), types.CalendarIntervalType()])
def test_a_type_that_not_each_target_has_is_found_at_any_depth(type_: types.DataType) -> None:
    nested = types.StructType([types.StructField("a", types.MapType(types.StringType(), types.ArrayType(type_)))])
    assert lacking(type_) == lacking(nested) == type_.simpleString()
    with pytest.raises(SinkError, match=r"output: its column a is .*cast it"):
        check_types(nested, "output")


def test_a_type_of_a_later_spark_is_refused_and_not_written_as_something() -> None:
    class HourType(types.LongType):
        pass

    assert lacking(HourType()) is not None

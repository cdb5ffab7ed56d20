"""Check what Postgres is given for values that JSON, or Postgres's own syntax, has otherwise than Spark."""

from __future__ import annotations

import csv
import io
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from orchestration.sinks.postgres.postgres_values import RepeatedKeyError, as_csv
from orchestration.sinks.refused_rows import readable_row, row_as_json

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
TIME = pa.timestamp("us", "UTC")
DAY_10000 = 2_932_897


def copied(value: Any, type_: pa.DataType) -> str:  # noqa: ANN401  any value of a column
    batch = pa.record_batch([pa.array([value], type_)], names=["a"])
    [[text]] = csv.reader(io.StringIO(as_csv(batch).read().decode()))
    return text


@pytest.mark.parametrize(
    ("key_type", "key", "name"),
    [
        (pa.string(), "a", "a"),
        (pa.date32(), date(1, 1, 1), "0001-01-01"),
        (pa.date32(), DAY_10000, "10000-01-01"),
        (TIME, MOMENT, "2026-01-02 03:04:05.000006Z"),
        (pa.timestamp("us", "Asia/Tokyo"), MOMENT, "2026-01-02 03:04:05.000006Z"),
        (pa.timestamp("us"), MOMENT.replace(tzinfo=None), "2026-01-02 03:04:05.000006"),
        (pa.decimal128(5, 2), Decimal("1.50"), "1.50"),
        (pa.decimal128(38, 38), Decimal("1E-38"), f"0.{'0' * 37}1"),
        (pa.binary(), b"\x00\xff", "00ff"),
        (pa.bool_(), True, "true"),
        (pa.int64(), -1, "-1"),
        (pa.float64(), 0.1, "0.1"),
        (pa.float64(), -math.inf, "-Infinity"),
    ],
)
def test_a_value_within_a_column_is_written_by_one_rule_wherever_it_is(
    key_type: pa.DataType, key: object, name: str
) -> None:
    assert json.loads(copied([(key, 1)], pa.map_(key_type, pa.int32()))) == {name: 1}
    nested = pa.struct([("a", pa.list_(key_type))])
    [found] = json.loads(copied({"a": [key]}, nested))["a"]
    # As a value it is JSON's own, where that has it.
    assert (found if isinstance(found, str) else json.dumps(found)) == name


def test_a_number_that_json_lacks_is_text_as_sparks_to_json_writes_it() -> None:
    numbers = copied([math.nan, math.inf, -math.inf, 0.5, None], pa.list_(pa.float64()))
    assert json.loads(numbers) == ["NaN", "Infinity", "-Infinity", 0.5, None]


def test_a_map_with_a_key_twice_is_refused_with_its_column() -> None:
    with pytest.raises(RepeatedKeyError, match="its key 'k' is there twice") as raised:
        copied([("k", 1), ("k", 2)], pa.map_(pa.string(), pa.int32()))
    assert raised.value.column == "a"


@pytest.mark.parametrize(
    ("value", "type_", "text"),
    [
        (-719_163, pa.date32(), "0001-12-31 BC"),
        (-719_162, pa.date32(), "0001-01-01"),
        (-1_500_000, pa.date32(), "2138-02-21 BC"),
        (-62_135_596_800_000_001, TIME, "0001-12-31 23:59:59.999999Z BC"),
        (-62_135_596_800_000_000, TIME, "0001-01-01 00:00:00.000000Z"),
        (DAY_10000, pa.date32(), "10000-01-01"),
    ],
)
def test_a_date_before_the_year_1_has_its_era(value: int, type_: pa.DataType, text: str) -> None:
    assert copied(value, type_) == text


@pytest.mark.parametrize("type_", [pa.date32(), pa.list_(pa.date32()), pa.map_(pa.date32(), pa.int32())])
def test_a_row_with_a_date_that_python_lacks_can_be_put_aside(type_: pa.DataType) -> None:
    value = {"date32[day]": DAY_10000, "list<item: date32[day]>": [DAY_10000]}.get(str(type_), [(DAY_10000, 1)])
    row = readable_row(pa.record_batch([pa.array([value], type_)], names=["a"]))
    assert "10000-01-01" in json.dumps(row)


@pytest.mark.parametrize("type_", [pa.struct([pa.field("a", pa.string(), nullable=False)]), pa.list_(pa.null())])
def test_a_null_where_a_type_says_otherwise_is_null(type_: pa.DataType) -> None:
    """Spark's literals within a struct are never null, but the struct of another row may be."""
    batch = pa.record_batch([pa.array([None], type_), pa.array([1])], names=["a", "b"])
    assert as_csv(batch).read().decode() == ',"1"\n'
    assert readable_row(batch) == {"a": None, "b": 1}


def test_a_row_that_is_put_aside_is_json_whatever_it_has() -> None:
    values = {"a": math.nan, "b": [math.inf, -math.inf], "c": [("k", Decimal("1.5"))], "d": b"\x00\xff", "e": MOMENT}
    found = json.loads(row_as_json(values), parse_constant=pytest.fail)
    assert found == {
        "a": "NaN",
        "b": ["Infinity", "-Infinity"],
        "c": [["k", "1.5"]],
        "d": "00ff",
        "e": "2026-01-02 03:04:05.000006+00:00",
    }

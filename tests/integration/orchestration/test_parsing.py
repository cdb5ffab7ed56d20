"""Test JSON and CSV records: valid ones come out typed, invalid ones are kept as they came."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.parsing import ParsingError, corrupt, from_csv_records, from_json_records, well_formed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = "id BIGINT, name STRING"


def lines(session: SparkSession, *texts: str | None) -> DataFrame:
    return session.createDataFrame([(text,) for text in texts], "value STRING")


def rows(frame: DataFrame) -> list[tuple[object, ...]]:
    return [tuple(row) for row in frame.collect()]


JSON_GOOD = ['{"id": 1, "name": "a"}', '{"name": "b"}', '{"id": 3, "name": "c", "more": [1]}', "{}"]
JSON_BAD = ["{", "", "  ", "null", "12", "[1]", '"text"', '{"id": "x", "name": "d"}', '{"id": 1} rest', "no"]


def test_valid_json_is_typed_and_the_rest_is_kept_as_it_came(session: SparkSession) -> None:
    parsed = from_json_records(lines(session, *JSON_GOOD, *JSON_BAD), SCHEMA)
    assert parsed.columns == ["id", "name", "_corrupt"]
    assert rows(well_formed(parsed)) == [(1, "a"), (None, "b"), (3, "c"), (None, None)]
    # Requested alone: a planner that prunes unused columns must not change which records are corrupt.
    assert sorted(rows(corrupt(parsed))) == sorted((text,) for text in JSON_BAD)
    assert corrupt(parsed).count() == len(JSON_BAD)


CSV_GOOD = ["1,a", "2,", ',"b, c"']
CSV_BAD = ["x,d", "1", "1,a,more", "", "   "]


def test_valid_csv_is_typed_and_the_rest_is_kept_as_it_came(session: SparkSession) -> None:
    parsed = from_csv_records(lines(session, *CSV_GOOD, *CSV_BAD), SCHEMA)
    assert rows(well_formed(parsed)) == [(1, "a"), (2, None), (None, "b, c")]
    assert sorted(rows(corrupt(parsed))) == sorted((text,) for text in CSV_BAD)
    assert rows(well_formed(from_csv_records(lines(session, "1;a"), SCHEMA, options={"sep": ";"}))) == [(1, "a")]


def test_a_record_that_is_null_is_corrupt_too(session: SparkSession) -> None:
    assert rows(corrupt(from_json_records(lines(session, None), SCHEMA))) == [("",)]
    assert rows(corrupt(from_csv_records(lines(session, None), SCHEMA))) == [("",)]


def test_a_wrong_schema_or_column_is_named(session: SparkSession) -> None:
    with pytest.raises(ParsingError, match=r"schema 'id BIGNT'.*'id BIGINT, name STRING'"):
        from_json_records(lines(session, "{}"), "id BIGNT")
    with pytest.raises(ParsingError, match="no column 'body' to parse: there are value"):
        from_json_records(lines(session, "{}"), SCHEMA, column="body")
    with pytest.raises(ParsingError, match="_corrupt is added"):
        from_csv_records(lines(session, ""), "id INT, _corrupt STRING")

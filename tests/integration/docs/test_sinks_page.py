"""Check that docs/reference/sinks.md has the types that the sinks' columns have."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import Schema
from pyarrow import parquet
from pyspark.sql import types

from forebay_contrib.iceberg.data_files import iceberg_schema
from orchestration.sinks.postgres.postgres_columns import columns_of
from orchestration.sinks.table_columns import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "sinks.md"
ROWS = re.findall(r"^\| (`\w.*`) \| (`[A-Z].*) \| (`.*) \| (`.*) \| (`.*) \|$", PAGE.read_text(), re.MULTILINE)
TYPES: tuple[DataType, ...] = (
    *(types.BooleanType(), types.ByteType(), types.ShortType(), types.IntegerType(), types.LongType()),
    *(types.FloatType(), types.DoubleType(), types.DecimalType(10, 2), types.BinaryType(), types.DateType()),
    *(types.StringType(), types.CharType(3), types.VarcharType(3), types.TimestampType(), types.TimestampNTZType()),
)


@pytest.mark.parametrize("type_", TYPES, ids=[one.simpleString() for one in TYPES])
def test_a_type_is_what_the_page_says(type_: DataType) -> None:
    [row] = [row for row in ROWS if f"`{type_.simpleString()}`" in row[0]]
    schema = types.StructType([types.StructField("c", type_)])
    columns = arrow_schema(schema, "x")
    assert [re.findall("`(.*?)`", cell) for cell in row[1:]] == [
        _in_parquet(columns),
        [json.loads(Schema.from_arrow(columns).to_json())["fields"][0]["type"]],
        [str(iceberg_schema(arrow_schema(schema, "x", widens=True)).fields[0].field_type)],
        [columns_of(schema, "x")[0].type],
    ]


def _in_parquet(columns: pa.Schema) -> list[str]:
    file = pa.BufferOutputStream()
    parquet.write_table(columns.empty_table(), file)
    column = parquet.read_metadata(pa.BufferReader(file.getvalue())).schema.column(0)
    said = json.loads(column.logical_type.to_json())
    names = {
        "None": [],
        "Int": [f"INT({said.get('bitWidth')})"],
        "Decimal": [f"DECIMAL({said.get('precision')}, {said.get('scale')})"],
        "Timestamp": ["TIMESTAMP(MICROS, UTC)" if said.get("isAdjustedToUTC") else "TIMESTAMP(MICROS)"],
    }
    return [column.physical_type, *names.get(said["Type"], [said["Type"].upper()])]

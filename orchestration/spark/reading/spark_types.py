"""Name the types of a stream's columns as Spark's DDL does. Loads no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.block_store.frames.columns import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

_SPARK_TYPES = {
    "bool": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INT",
    "int64": "BIGINT",
    # The next larger type, because Spark's integers are signed.
    "uint8": "SMALLINT",
    "uint16": "INT",
    "uint32": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date32[day]": "DATE",
    "string": "STRING",
    "large_string": "STRING",
    "binary": "BINARY",
    "large_binary": "BINARY",
}


def spark_schema(columns: Sequence[tuple[str, str]]) -> str:
    """Return columns of (name, Arrow type) as Spark's DDL."""
    return ", ".join(f"{_quoted(field.name)} {spark_type(field.type)}" for field in arrow_schema(columns))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def spark_type(kind: pa.DataType) -> str:
    """Return the name that Spark's DDL has for an Arrow type."""
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP" if kind.tz else "TIMESTAMP_NTZ"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"ARRAY<{spark_type(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{spark_type(kind.key_type)}, {spark_type(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{_quoted(field.name)}: {spark_type(field.type)}' for field in kind)}>"
    return _SPARK_TYPES[str(kind)]

"""Map a DataFrame's columns to Postgres columns, and check that an existing table fits. No SQL, no connection."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestration.declarations.sink import SinkError
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.table_columns import check_names, lacking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import DataType, StructType


#: Postgres cuts longer names.
MOST_NAME_BYTES = 63
#: Each table of Postgres has these columns.
_SYSTEM = frozenset({"cmax", "cmin", "ctid", "tableoid", "xmax", "xmin"})
_JSON = "jsonb"
# Spark's type name → the type of the column that is created for it.
_TYPES = {
    "string": "text",
    "char": "text",
    "varchar": "text",
    "void": "text",
    "boolean": "boolean",
    "tinyint": "smallint",
    "smallint": "smallint",
    "int": "integer",
    "bigint": "bigint",
    "float": "real",
    "double": "double precision",
    "date": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp without time zone",
    "binary": "bytea",
    "array": _JSON,
    "map": _JSON,
    "struct": _JSON,
}
# Type of the column that would be created → further types that keep each value as it is, or refuse it: an integer that
# is too large for the column is an error, but a fraction would be rounded, and a zone left out, without a word.
_KEEPING = {
    "smallint": {"integer", "bigint", "real", "double precision"},
    "integer": {"smallint", "bigint", "double precision"},
    "bigint": {"smallint", "integer"},
    "real": {"double precision"},
    "date": {"timestamp without time zone"},
    _JSON: {"json"},
}
_NUMBERS = frozenset({"smallint", "integer", "bigint", "real", "double precision", "numeric"})
# How many decimal digits a binary number keeps, so that it is written again as it was.
_BINARY_DIGITS = {"real": 6, "double precision": 15}
_INTEGERS = frozenset({"smallint", "integer", "bigint"})
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")


@dataclass(frozen=True, slots=True)
class Column:
    """Describe a column of a result, with the type of the table's column."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class TableColumn:
    """Describe a column of an existing table.

    `base`: its type without domains. `filled`: it gets a value even if none is given; `generated`: it takes none.
    """

    name: str
    type: str
    base: str
    filled: bool
    generated: bool


def can_be_name(text: str) -> bool:
    """Return whether Postgres keeps a name as it is: it cuts a longer one, and then two names may be the same."""
    try:
        return 0 < len(text.encode()) <= MOST_NAME_BYTES and "\0" not in text
    except UnicodeEncodeError:
        return False


def columns_of(schema: StructType, where: str) -> list[Column]:
    """Return the columns of a table for this result. Raises SinkError for names and types that Postgres lacks."""
    check_names(schema, where, reserved=_SYSTEM)
    for field in schema.fields:
        if not can_be_name(field.name):
            raise SinkError(
                f"{where} has a column {field.name!r}, and a column's name in Postgres has 1 to {MOST_NAME_BYTES} "
                f"bytes, without NUL: rename it by .alias(...)"
            )
    return [Column(field.name, _column_type(field.name, field.dataType, where)) for field in schema.fields]


def _column_type(name: str, data_type: DataType, where: str) -> str:
    spelled = data_type.simpleString()
    kind = spelled.partition("(")[0].partition("<")[0]
    if kind == "decimal":
        return spelled.replace("decimal", "numeric")
    if kind not in _TYPES or lacking(data_type):
        raise SinkError(
            f"{where}: its column {name} is a {spelled}, for which Postgres has no column: cast it, as "
            f"frame.withColumn({name!r}, frame[{name!r}].cast('string'))"
        )
    return _TYPES[kind]


def fitted(columns: Sequence[Column], table: Sequence[TableColumn], *, name: str, where: str) -> list[Column]:
    """Return the result's columns with the types of the table `name`. Raises SinkError that names each misfit."""
    there = {column.name: column for column in table}
    unknown = [column for column in columns if column.name not in there]
    given = {column.name for column in columns}
    left_out = [column for column in table if column.name not in given and column.name != BATCH_TIME]
    left_out = [column for column in left_out if not column.filled]
    other = [column for column in columns if column.name in there and not _holds(there[column.name], column)]
    wrong = []
    if unknown:
        wrong.append("the table has no column " + ", ".join(f"{column.name} ({column.type})" for column in unknown))
    if left_out:
        wrong.append("the result has no column " + ", ".join(f"{column.name} ({column.type})" for column in left_out))
    wrong += [
        f"column {column.name} is {there[column.name].type} in the table and {column.type} in the result"
        for column in other
    ]
    wrong += [
        f"the table generates its column {column.name}, so that it takes no value"
        for column in table
        if column.generated and column.name in {*given, BATCH_TIME}
    ]
    if BATCH_TIME not in there:
        wrong.append(f"the table has no column {BATCH_TIME} (timestamp with time zone), which says a row's batch")
    elif there[BATCH_TIME].type != "timestamp with time zone":
        wrong.append(f"column {BATCH_TIME} is {there[BATCH_TIME].type} and must be timestamp with time zone")
    if wrong:
        raise SinkError(
            f"{where} does not fit the table {name}: {'; '.join(wrong)}. Change the result, or the table by ALTER TABLE"
        )
    return [Column(column.name, there[column.name].type) for column in columns]


def _holds(table: TableColumn, column: Column) -> bool:
    """Return whether a table's column keeps a result's values as they are, or refuses them; text is always parsed."""
    if column.type in ("text", table.base) or table.base in _KEEPING.get(column.type, ()):
        return True
    kind, numeric = column.type.partition("(")[0], _NUMERIC.fullmatch(table.base)
    decimal = _NUMERIC.fullmatch(column.type)
    if decimal is None:
        # Of integers, each numeric keeps all digits before the point; of binary numbers, only one without bounds.
        return (table.base == "numeric" and kind in _NUMBERS) or (
            kind in _INTEGERS and numeric is not None and int(numeric[2]) >= 0
        )
    digits, scale = int(decimal[1]), int(decimal[2])
    if numeric is not None:
        return int(numeric[2]) >= scale
    return (
        table.base == "numeric"
        or (scale == 0 and table.base in _INTEGERS)
        or digits <= _BINARY_DIGITS.get(table.base, 0)
    )

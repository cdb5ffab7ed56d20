"""Map a DataFrame's columns to Postgres columns, and check that an existing table fits. No SQL, no connection."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestration.declarations.sink import SinkError
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.table_columns import check_map_keys, check_names, lacking

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
# Types that keep each text as it is, or refuse it.
_TEXTS = frozenset({"text", "character varying", "json"})
# Further types that text is written to, each row compared with what the column then has: those that Spark lacks, whose
# text depends on no setting. Into any other type, a text would be read by rules that round, pad, cut or reorder.
_COMPARED = frozenset({"uuid", "xml", "macaddr", "macaddr8"})
# The same by their category in pg_type: strings, enums, bits, networks.
_COMPARED_CATEGORIES = frozenset("SEVI")
# A table's type → the type in Spark that it keeps.
_CASTS = {_TYPES[kind]: kind for kind in reversed(_TYPES) if _TYPES[kind] != _JSON} | {"numeric": "decimal(38, 18)"}
_NUMBERS = frozenset({"smallint", "integer", "bigint", "real", "double precision", "numeric"})
# How many decimal digits a binary number keeps, so that it is written again as it was.
_BINARY_DIGITS = {"real": 6, "double precision": 15}
_INTEGERS = frozenset({"smallint", "integer", "bigint"})
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")


@dataclass(frozen=True, slots=True)
class Column:
    """Describe a column of a result, with the type of the table's column.

    `compared`: the type may alter a text, so that each row's is compared with what the column then has.
    """

    name: str
    type: str
    compared: bool = False


@dataclass(frozen=True, slots=True)
class TableColumn:
    """Describe a column of an existing table.

    `base`: its type without domains. `category`: that of its type in pg_type. `filled`: it gets a value even if none is
    given; `generated`: it takes none.
    """

    name: str
    type: str
    base: str
    category: str
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
    check_map_keys(schema, where)
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
        f"column {column.name} is {there[column.name].type} in the table and {column.type} in the result, which it may "
        f"alter: {_way_out(there[column.name], column)}"
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
    return [
        Column(column.name, there[column.name].type, _is_compared(there[column.name], column)) for column in columns
    ]


def _way_out(table: TableColumn, column: Column) -> str:
    if table.base == _JSON:
        return "parse it by from_json(...) in the output's function, or let the table's column be json"
    numeric = _NUMERIC.fullmatch(table.base)
    cast = f"decimal({numeric[1]},{numeric[2]})" if numeric else _CASTS.get(table.base)
    if cast is None:
        return f"let the table's column be {column.type}"
    return (
        f"cast it in the output's function, as frame.withColumn({table.name!r}, frame[{table.name!r}].cast({cast!r}))"
    )


def _is_compared(table: TableColumn, column: Column) -> bool:
    return column.type == "text" and table.base not in _TEXTS


def _holds(table: TableColumn, column: Column) -> bool:
    """Return whether a table's column keeps a result's values as they are, or refuses them."""
    if column.type == "text":
        return table.base in {*_TEXTS, *_COMPARED} or table.category in _COMPARED_CATEGORIES
    if column.type == table.base or table.base in _KEEPING.get(column.type, ()):
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

"""Map a DataFrame's columns to Postgres columns, and how an existing table fits or changes. Connects to nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestration.declarations.sink import SinkError
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.column_changes import ColumnChanges, Dialect, cleared, column_changes, policy_for
from orchestration.sinks.postgres.postgres_statements import quoted
from orchestration.sinks.table_columns import check_map_keys, check_names, lacking

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import DataType, StructType

    from orchestration.sinks.column_changes import ColumnPolicy

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
# A table's type → the types of a result's columns for which it is widened, by writing the table again.
_WIDER = {
    "smallint": {"integer", "bigint"},
    "integer": {"bigint"},
    "real": {"double precision"},
}
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")


@dataclass(frozen=True, slots=True)
class Column:
    """Describe a column of a result, with the type of the table's column.

    `compared`: the type may alter a text, so that each row's is compared with what the column then has.
    """

    name: str
    type: str
    compared: bool = False


#: The column of the batch time.
TIME = Column(BATCH_TIME, "timestamp with time zone")


@dataclass(frozen=True, slots=True)
class TableColumn:
    """Describe a column of an existing table.

    `base`: its type without domains. `category`: that of its type in pg_type. `filled`: it gets a value even if none is
    given; `generated`: it takes none; `required`: it must be given one.
    """

    name: str
    type: str
    base: str
    category: str
    filled: bool
    generated: bool
    required: bool = False


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
    for column in schema.fields:
        if not can_be_name(column.name):
            raise SinkError(
                f"{where} has a column {column.name!r}, and a column's name in Postgres has 1 to {MOST_NAME_BYTES} "
                f"bytes, without NUL: rename it by .alias(...)"
            )
    return [Column(column.name, _column_type(column.name, column.dataType, where)) for column in schema.fields]


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


@dataclass(frozen=True, slots=True)
class Table:
    """Describe an existing table, and what its login may do to it.

    `made_here`: a PostgresSink made it. `login`: the one that may not change the table, because it does not own it;
    None: it may. `uses`: what would keep Postgres from changing a column's type, by the column. `rewrites`: whether it
    is small enough to be rewritten while its readers wait.
    """

    schema: str
    name: str
    columns: Sequence[TableColumn]
    made_here: bool = False
    login: str | None = None
    uses: Mapping[str, str] = field(default_factory=dict)
    rewrites: bool = True


@dataclass(frozen=True, slots=True)
class Fit:
    """Hold how a result fits a table: its columns with the table's types, and the statements that change the table.

    `cleared`: the table's columns that the result lacks, and that the table does not fill.
    """

    columns: list[Column]
    changes: ColumnChanges = field(default_factory=ColumnChanges)
    statements: tuple[str, ...] = ()
    cleared: tuple[str, ...] = ()

    @property
    def rewrites(self) -> bool:
        """Return whether a statement would write the whole table again."""
        widened = [column for column in self.columns if column.name in self.changes.widened]
        return any(not _NUMERIC.fullmatch(column.type) for column in widened)


def fitted(columns: Sequence[Column], table: Table, policy: ColumnPolicy | None, where: str) -> Fit:
    """Return how a result fits a table. Raises SinkError that names each misfit."""
    there = {column.name: column for column in table.columns}
    given = {column.name: column for column in (*columns, TIME)}
    dialect = _Dialect(table)
    wanted = policy_for(policy, is_own=table.made_here)
    is_owner = table.login is None
    changes = column_changes(
        given,
        there,
        dialect,
        policy=wanted if is_owner else "refuse",
        where=where,
        required=[column.name for column in table.columns if column.required],
        way_out="or say columns='add'" if is_owner else f"the login {table.login} does not own the table",
    )
    new = {*changes.added, *changes.widened}
    return Fit(
        [
            column
            if column.name in new
            else Column(column.name, there[column.name].type, _is_compared(there[column.name], column))
            for column in columns
        ],
        changes,
        (
            *(dialect.add(name, given[name]) for name in changes.added),
            *(dialect.widen(name, given[name]) for name in changes.widened),
        ),
        cleared(changes, wanted, filled=[column.name for column in table.columns if column.filled]),
    )


class _Dialect(Dialect[Column, TableColumn]):
    """Say what a Postgres table's columns keep and become."""

    folds_case = False

    def __init__(self, table: Table) -> None:
        self.name = f"{table.schema}.{table.name}"
        self._table = table

    def keeps(self, there: TableColumn, given: Column) -> bool:
        if there.generated or given.name == BATCH_TIME:
            return not there.generated and there.type == given.type
        return _holds(there, given)

    def widens(self, there: TableColumn, given: Column) -> bool:
        if there.type != there.base or there.name in self._table.uses:
            return False
        return _is_more_digits(there, given) or (self._table.rewrites and given.type in _WIDER.get(there.base, ()))

    def shown(self, type_: Column) -> str:
        return type_.type

    def shown_there(self, type_: TableColumn) -> str:
        return type_.type

    def add(self, column: str, type_: Column) -> str:
        return f"{self._alter()} ADD COLUMN {quoted(column)} {type_.type}"

    def widen(self, column: str, type_: Column) -> str:
        return f"{self._alter()} ALTER COLUMN {quoted(column)} TYPE {type_.type}"

    def make_nullable(self, column: str) -> str:
        return f"{self._alter()} ALTER COLUMN {quoted(column)} DROP NOT NULL"

    def misfit(self, column: str, there: TableColumn, given: Column) -> str:
        if there.generated:
            return f"the table generates its column {column}, so that it takes no value"
        if column == BATCH_TIME:
            return f"column {column} is {there.type} and must be {given.type}"
        said = f"column {column} is {there.type} in the table and {given.type} in the result, which it may alter"
        ways_out = [_way_out(there, given)]
        if given.type == "text" or {_kind(there.base), _kind(given.type)} <= _NUMBERS:
            why = self._table.uses.get(column)
            first = "" if why is None else f", which first needs that you drop what uses it ({why})"
            ways_out.append(f"change the table by {self.widen(column, given)}{first}")
        return f"{said}: {', or '.join(filter(None, ways_out))}"

    def _alter(self) -> str:
        return f"ALTER TABLE {quoted(self._table.schema, self._table.name)}"


def _is_more_digits(there: TableColumn, given: Column) -> bool:
    """Return whether a decimal has more digits before the point than the column, and as many behind it."""
    before, after = _NUMERIC.fullmatch(there.base), _NUMERIC.fullmatch(given.type)
    return before is not None and after is not None and before[2] == after[2] and int(before[1]) < int(after[1])


def _kind(type_: str) -> str:
    return type_.partition("(")[0]


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
    kind, numeric = _kind(column.type), _NUMERIC.fullmatch(table.base)
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

"""Decide how a table's columns change for a result that has others: added, widened, left null; or name each misfit.

A dialect says what a format's columns keep, which it can widen, and how a person changes one; `ArrowDialect` is that of
tables whose columns are Arrow's. Accesses no table: the sink makes the changes, in the commit of the first rows that
have them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Generic, Literal, TypeVar, get_args

from orchestration.declarations.sink import SinkError
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.refused_rows import is_list, with_leaves

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

#: What a sink does for a column that its table lacks, or that is too narrow: change the table, or refuse the batch.
ColumnPolicy = Literal["add", "refuse"]

Given = TypeVar("Given")  # a type of a result's column
There = TypeVar("There")  # a type of a table's column

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Widening(Enum):
    """Name a change of a column's type that keeps every value."""

    INTEGER = "a larger integer"
    FLOAT = "double instead of float"
    DECIMAL = "more digits before a decimal's point"


class Dialect(ABC, Generic[Given, There]):
    """Say what a format's columns keep and become, and how a person changes the table `name`."""

    #: The table's name for messages.
    name: str
    #: Whether names that differ in case alone are the same to the table's readers.
    folds_case: bool
    #: How a misfit ends.
    change: str = "Change the result, or the table"

    @abstractmethod
    def keeps(self, there: There, given: Given) -> bool:
        """Return whether a column keeps each value of the result's column as it is, or refuses the value."""

    @abstractmethod
    def widens(self, there: There, given: Given) -> bool:
        """Return whether the sink can give a column the result's type, which is wider, and keep each value there."""

    @abstractmethod
    def shown(self, type_: Given) -> str:
        """Return the type of a result's column for a message."""

    @abstractmethod
    def shown_there(self, type_: There) -> str:
        """Return the type of a table's column for a message."""

    @abstractmethod
    def add(self, column: str, type_: Given) -> str:
        """Return the statement that adds a column; empty if there is none."""

    @abstractmethod
    def widen(self, column: str, type_: Given) -> str:
        """Return the statement that widens a column; empty if there is none."""

    @abstractmethod
    def make_nullable(self, column: str) -> str:
        """Return the statement that lets a column be null."""

    @abstractmethod
    def misfit(self, column: str, there: There, given: Given) -> str:
        """Return what is wrong with a column that neither keeps the result's nor is widened, and the way out."""


@dataclass(frozen=True, slots=True)
class ColumnChanges:
    """Name the columns to change: `added`, nullable, behind the others; `widened` to the result's type.

    `missing`: columns of the table that the result lacks, which stay null, or which the table fills.
    """

    added: tuple[str, ...] = ()
    widened: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Return whether the table's columns change."""
        return bool(self.added or self.widened)

    def shown(self) -> str:
        """Return what the first batch changes, for a person; empty: nothing."""
        parts = [f"adds {', '.join(self.added)}"] if self.added else []
        parts += [f"widens {', '.join(self.widened)}"] if self.widened else []
        return " and ".join(parts)


def cleared(changes: ColumnChanges, policy: ColumnPolicy, *, filled: Collection[str] = ()) -> tuple[str, ...]:
    """Return the table's columns that a row loses when `mode="merge"` replaces it; `filled`: the table fills them.

    They are those that the result lacks. Where the sink has no say in the columns, these are somebody else's, and keep
    their values.
    """
    return tuple(name for name in changes.missing if name not in filled) if policy == "add" else ()


def column_changes(
    result: Mapping[str, Given],
    table: Mapping[str, There],
    dialect: Dialect[Given, There],
    *,
    policy: ColumnPolicy,
    where: str,
    required: Collection[str] = (),
    way_out: str = "or say columns='add'",
) -> ColumnChanges:
    """Return how the table's columns change for a result. Raises SinkError that names each misfit, with its way out.

    Args:
        result: the types of the result's columns, with the batch time's.
        table: those of the table's columns.
        dialect: the format's rules.
        policy: "refuse": the table's columns must not change.
        where: names the output.
        required: the table's columns that must have a value, and get none by themselves.
        way_out: how the sink could change the table, if it must not.
    """
    twins = {column: _twin(column, table) for column in result} if dialect.folds_case else {}
    unknown = [column for column in result if column not in table]
    wrong = [
        f"column {column} is {twins[column]} in the table, which differs in case alone: rename it by "
        f".alias({twins[column]!r})"
        for column in unknown
        if twins.get(column)
    ]
    may_add = [column for column in unknown if not twins.get(column) and column != BATCH_TIME]
    both = [column for column in result if column in table]
    differ = [column for column in both if not dialect.keeps(table[column], result[column])]
    may_widen = [
        column
        for column in (both if policy == "add" else differ)
        if column != BATCH_TIME and dialect.widens(table[column], result[column])
    ]
    if BATCH_TIME in result and BATCH_TIME not in table:
        wrong.append(
            f"the table has no column {BATCH_TIME} ({dialect.shown(result[BATCH_TIME])}), which says a row's batch: "
            f"{dialect.add(BATCH_TIME, result[BATCH_TIME])}"
        )
    if policy == "refuse":
        wrong += [
            _then(
                f"the table has no column {column} ({dialect.shown(result[column])})",
                dialect.add(column, result[column]),
            )
            for column in may_add
        ]
        wrong += [
            _then(
                f"column {column} is {dialect.shown_there(table[column])} in the table and "
                f"{dialect.shown(result[column])} in the result",
                dialect.widen(column, result[column]),
            )
            for column in may_widen
        ]
    wrong += [dialect.misfit(column, table[column], result[column]) for column in differ if column not in may_widen]
    missing = tuple(column for column in table if column not in result)
    wrong += [
        f"the result has no column {column} ({dialect.shown_there(table[column])}), which must not be null: add it, or "
        f"{dialect.make_nullable(column)}"
        for column in missing
        if column in required
    ]
    if wrong:
        # Only if nothing else is wrong would the other policy help.
        helps = policy == "refuse" and len(wrong) == len(may_add) + len(may_widen)
        said = f"{where} does not fit the table {dialect.name}: {'; '.join(wrong)}. {dialect.change}"
        raise SinkError(f"{said}; {way_out}" if helps else said)
    return ColumnChanges(tuple(may_add), tuple(may_widen), missing)


def _then(said: str, statement: str) -> str:
    return f"{said}: {statement}" if statement else said


def _twin(column: str, table: Collection[str]) -> str | None:
    """Return the table's column that differs from a result's in case alone."""
    if column in table:
        return None
    return next((name for name in table if name.lower() == column.lower()), None)


def checked_policy(columns: ColumnPolicy | None, sink: str) -> ColumnPolicy | None:
    """Return the choice of a sink's declaration; None: by who made the table. Raises DeclarationError."""
    from orchestration.declarations.declaration_error import DeclarationError  # noqa: PLC0415  as in refused_rows

    if columns is not None and columns not in get_args(ColumnPolicy):
        message = f"{sink}: columns={columns!r} must be one of {', '.join(get_args(ColumnPolicy))}"
        raise DeclarationError(message)
    return columns


def declared_policy(columns: ColumnPolicy | None) -> dict[str, str]:
    """Return what a sink's declaration says of the choice: nothing if none is given."""
    return {} if columns is None else {"columns": columns}


def policy_for(columns: ColumnPolicy | None, *, is_own: bool) -> ColumnPolicy:
    """Return the choice for a table; `is_own`: this sink made it."""
    return columns or ("add" if is_own else "refuse")


@dataclass(frozen=True, slots=True)
class ArrowDialect(Dialect["pa.DataType", "pa.DataType"]):
    """Say what the columns of a table of Arrow's types keep and become.

    `name`: the table's for messages. `table`: as a statement has it. `widenings`: those that the sink can do. `add_as`,
    `widen_as`, `nullable_as`: statements with {table}, {column} and {type}, by default Spark's, with `quote` around
    names.
    """

    name: str
    table: str
    widenings: frozenset[Widening] = frozenset()
    folds_case: bool = True
    add_as: str = "ALTER TABLE {table} ADD COLUMNS ({column} {type})"
    widen_as: str = "ALTER TABLE {table} ALTER COLUMN {column} TYPE {type}"
    nullable_as: str = "ALTER TABLE {table} ALTER COLUMN {column} DROP NOT NULL"
    quote: str = "`"
    change: str = Dialect.change

    def keeps(self, there: pa.DataType, given: pa.DataType) -> bool:
        """Return whether the types are equal except for their layout, or the table's is wider."""
        return _plain(there) == _plain(given) or widening(given, there) is not None

    def widens(self, there: pa.DataType, given: pa.DataType) -> bool:
        """Return whether the sink can do the widening."""
        return widening(there, given) in self.widenings

    def shown(self, type_: pa.DataType) -> str:
        """Return Arrow's name of the type."""
        return str(type_)

    def shown_there(self, type_: pa.DataType) -> str:
        """Return Arrow's name of the type."""
        return str(type_)

    def add(self, column: str, type_: pa.DataType) -> str:
        """Return the statement that adds a column."""
        return self._statement(self.add_as, [column], type_)

    def widen(self, column: str, type_: pa.DataType) -> str:
        """Return the statement that widens a column."""
        return self._statement(self.widen_as, [column], type_)

    def make_nullable(self, column: str) -> str:
        """Return the statement that lets a column be null."""
        return self._statement(self.nullable_as, [column])

    def misfit(self, column: str, there: pa.DataType, given: pa.DataType) -> str:
        """Return each difference by its path, with the statement, or the cast to the table's type."""
        return "; ".join(self._misfit(*difference) for difference in _differences((column,), there, given))

    def _misfit(self, path: Sequence[str], there: pa.DataType | None, given: pa.DataType | None) -> str:
        shown = ".".join(path)
        if there is None:
            return _then(f"the table has no {shown} ({given})", self._statement(self.add_as, path, given))
        if given is None:
            return f"the result has no {shown} ({there}): add it, as null"
        said = f"column {shown} is {there} in the table and {given} in the result"
        if widening(there, given) is not None:
            return _then(said, self._statement(self.widen_as, path, given))
        cast = spark_type(there)
        if cast is None:
            return f"{said}: give the output a table of its own"
        way_out = f"{said}: cast it to {cast} in the output's function"
        if len(path) > 1:
            return way_out
        return f"{way_out}, as frame.withColumn({shown!r}, frame[{shown!r}].cast({cast!r}))"

    def _statement(self, template: str, path: Sequence[str], type_: pa.DataType | None = None) -> str:
        column = ".".join(map(self._quoted, path))
        named = "" if type_ is None else spark_type(type_) or str(type_)
        return template.format(table=self.table, column=column, type=named)

    def _quoted(self, column: str) -> str:
        if _PLAIN_NAME.fullmatch(column):
            return column
        return f"{self.quote}{column.replace(self.quote, self.quote * 2)}{self.quote}"


def arrow_changes(
    result: pa.Schema,
    table: pa.Schema,
    dialect: Dialect[pa.DataType, pa.DataType],
    *,
    policy: ColumnPolicy,
    where: str,
    filled: Collection[str] = (),
) -> ColumnChanges:
    """Return how the columns of a table of Arrow's types change. Raises SinkError.

    `result` has the batch time. `filled`: the table's columns that get a value if none is given.
    """
    return column_changes(
        dict(zip(result.names, result.types, strict=True)),
        dict(zip(table.names, table.types, strict=True)),
        dialect,
        policy=policy,
        where=where,
        required=[column.name for column in table if not column.nullable and column.name not in filled],
    )


def written_schema(result: pa.Schema, table: pa.Schema) -> pa.Schema:
    """Return the result's columns as the table has them, of which some may be wider; `table`: after its changes."""
    import pyarrow as pa  # noqa: PLC0415

    return pa.schema([table.field(column) for column in result.names])


def changed_schema(result: pa.Schema, table: pa.Schema, changes: ColumnChanges) -> pa.Schema:
    """Return the table's columns after the changes."""
    import pyarrow as pa  # noqa: PLC0415

    kept = [
        column.with_type(result.field(column.name).type) if column.name in changes.widened else column
        for column in table
    ]
    return pa.schema([*kept, *(result.field(name).with_nullable(True) for name in changes.added)], table.metadata)  # noqa: FBT003  it takes no keywords


def union_schema(schemas: Iterable[pa.Schema], where: str) -> pa.Schema:
    """Return the columns of all of several results, each with the widest type. Raises SinkError for two that misfit."""
    import pyarrow as pa  # noqa: PLC0415

    union, times = pa.schema([]), pa.schema([])
    dialect = ArrowDialect(where, "", frozenset(Widening), add_as="", widen_as="", change="Change one of them")
    for schema in schemas:
        times = pa.unify_schemas([times, pa.schema([column for column in schema if column.name == BATCH_TIME])])
        more = pa.schema([column for column in schema if column.name != BATCH_TIME])
        if not more.equals(union):
            union = changed_schema(more, union, arrow_changes(more, union, dialect, policy="add", where=where))
    return pa.schema([*union, *times])


def widening(before: pa.DataType, after: pa.DataType) -> Widening | None:
    """Return the widening that makes one type of another, if every value of the first is one of the second."""
    import pyarrow as pa  # noqa: PLC0415

    types = pa.types
    if types.is_signed_integer(before) and types.is_signed_integer(after) and before.bit_width < after.bit_width:
        return Widening.INTEGER
    if types.is_float32(before) and types.is_float64(after):
        return Widening.FLOAT
    is_decimal = types.is_decimal(before) and types.is_decimal(after)
    if is_decimal and before.scale == after.scale and before.precision < after.precision:
        return Widening.DECIMAL
    return None


def spark_type(type_: pa.DataType) -> str | None:
    """Return the type's name in Spark's SQL; None: Spark has none."""
    from pyspark.errors import PySparkException  # noqa: PLC0415
    from pyspark.sql.pandas.types import from_arrow_type  # noqa: PLC0415

    try:
        return from_arrow_type(type_).simpleString()
    except PySparkException:
        return None


def _differences(
    path: tuple[str, ...], there: pa.DataType, given: pa.DataType
) -> Iterator[tuple[tuple[str, ...], pa.DataType | None, pa.DataType | None]]:
    """Yield each difference of two types, also within them, by its path; None for a type that is missing."""
    before, after = _inner(there), _inner(given)
    found = False
    if type(there) is type(given):
        for name in {**after, **before}:
            one, other = before.get(name), after.get(name)
            if one is None or other is None:
                found = True
                yield (*path, name), one, other
            elif _plain(one) != _plain(other):
                found = True
                yield from _differences((*path, name), one, other)
    if not found:
        yield path, there, given


def _inner(type_: pa.DataType) -> dict[str, pa.DataType]:
    """Return the types within a type by their names."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_struct(type_):
        return {each.name: each.type for each in type_}
    if is_list(type_):
        return {"element": type_.value_type}
    if pa.types.is_map(type_):
        return {"key": type_.key_type, "value": type_.item_type}
    return {}


def _plain(type_: pa.DataType) -> pa.DataType:
    """Return the type without differences of layout, and without the names that Arrow gives to what is in a list."""
    return with_leaves(type_, _plain_leaf)


def _plain_leaf(type_: pa.DataType) -> pa.DataType:
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_timestamp(type_) and type_.tz in {"+00:00", "Etc/UTC"}:
        return pa.timestamp(type_.unit, "UTC")
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_) else type_

"""Derive a table's columns from a DataFrame, and check a mode with its key. Accesses no table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

from orchestration.declarations.sink import SinkError
from orchestration.sinks.batch_column import BATCH_TIME

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

    from orchestration.declarations.sink import OutputAttempt, Sink

#: What a batch does to the rows that are in a table.
Mode = Literal["append", "overwrite", "merge"]

#: Types of Spark that each target has; any other is refused, also one that a later Spark brings.
_KNOWN = frozenset(
    f"{name}Type"
    for name in (
        *("Null", "Boolean", "Byte", "Short", "Integer", "Long", "Float", "Double", "Decimal", "String", "Char"),
        *("Varchar", "Binary", "Date", "Timestamp", "TimestampNTZ"),
    )
)


def checked_mode(mode: Mode, key: Sequence[str] | str | None, sink: str) -> tuple[Mode, tuple[str, ...]]:
    """Return the mode and the key of a sink's declaration. Raises DeclarationError."""
    from orchestration.declarations.declaration_error import DeclarationError  # noqa: PLC0415  as in refused_rows

    columns = (key,) if isinstance(key, str) else tuple(key or ())
    message = None
    if mode not in get_args(Mode):
        message = f"mode={mode!r} must be one of {', '.join(get_args(Mode))}"
    elif bool(columns) != (mode == "merge"):
        message = (
            "mode='merge' needs the columns that say which row is meant: key=[...]"
            if mode == "merge"
            else f"key={list(columns)} is of no use to mode={mode!r}: say mode='merge'"
        )
    elif not all(isinstance(name, str) for name in columns) or len({*columns}) != len(columns):
        message = f"key={list(columns)}: give names of columns, and none twice"
    if message is not None:
        message = f"{sink}: {message}"
        raise DeclarationError(message)
    return mode, columns


def declared_mode(mode: Mode, key: Sequence[str]) -> dict[str, Any]:
    """Return what a sink's declaration says of the mode: nothing of the usual one."""
    return {} if mode == "append" else {"mode": mode, **({"key": list(key)} if key else {})}


def check_key(columns: Collection[str], key: Sequence[str], where: str) -> None:
    """Raise SinkError if a result lacks a column of the key."""
    if missing := [column for column in key if column not in columns]:
        raise SinkError(
            f"{where} has no column {', '.join(missing)}, which its sink has as key: add it, or name others"
        )


def can_replace(mode: Mode, key: Sequence[str], columns: Sequence[str]) -> bool:
    """Return whether a sink of a mode and a key can replace the rows of windows that these columns identify."""
    return mode == "merge" and bool(columns) and {*columns} <= {*key}


def replaced_columns(sink: Sink, result: StructType, attempt: OutputAttempt) -> tuple[str, ...]:
    """Return the columns of an attempt's `replaced`; none if it replaces no window.

    Raises SinkError if the sink can't replace by them, or if they have other types than in the result.
    """
    if attempt.replaced is None:
        return ()
    columns, types = attempt.replaced.schema.fields, {field.name: field.dataType for field in result.fields}
    names = tuple(field.name for field in columns)
    if not sink.replaces(names):
        raise SinkError(
            f"{attempt.name}: its windows are identified by {', '.join(names) or 'no column'}, and its sink replaces "
            "no rows by that: say mode='merge', with these columns in the key"
        )
    for field in columns:
        there, own = types[field.name].simpleString(), field.dataType.simpleString()
        if there != own:
            raise SinkError(
                f"{attempt.name}: its column {field.name} identifies windows as {own}, and the result has it as "
                f"{there}: leave it as it is in the output's function"
            )
    return names


def check_names(
    schema: StructType, where: str, *, reserved: frozenset[str] = frozenset(), folds_case: bool = False
) -> None:
    """Raise SinkError for column names that a target would not give back as they are.

    Args:
        schema: the result's.
        where: names the output.
        reserved: names that the target has itself, besides the batch time's.
        folds_case: whether names that differ in case alone are the same to the target's readers, as to Spark.
    """
    names = [field.name for field in schema.fields]
    if twice := _twins(names, folds_case=folds_case):
        raise SinkError(f"{where} has several columns of one name ({twice}): rename them by .alias(...)")
    if not names:
        raise SinkError(f"{where} has no columns: select some")
    if odd := [name for name in names if not name or "\0" in name]:
        raise SinkError(
            f"{where} has a column {odd[0]!r}, and names have a character, and no NUL: rename it by .alias(...)"
        )
    if taken := sorted({name for name in names if _same(name, folds_case=folds_case) in {*reserved, BATCH_TIME}}):
        raise SinkError(
            f"{where} has a column {', '.join(map(repr, taken))}, which is the target's own: rename it by .alias(...)"
        )
    for column, fields in inner_names(schema):
        twice = _twins(fields, folds_case=folds_case)
        if twice or not all(name and "\0" not in name for name in fields):
            why = f"of one name ({twice})" if twice else f"without a name, or with NUL in it ({fields})"
            raise SinkError(
                f"{where}: its column {column!r} has a struct with fields {why}: rename them, as "
                f"frame[{column!r}].cast('struct<NAME: TYPE, …>')"
            )


def inner_names(schema: StructType) -> Iterator[tuple[str, list[str]]]:
    """Yield the names of the fields of each struct in a column, with the column's name."""
    from pyspark.sql.types import StructType  # noqa: PLC0415

    for column in schema.fields:
        for inner in _inside(column.dataType):
            if isinstance(inner, StructType):
                yield column.name, inner.names


def _twins(names: Sequence[str], *, folds_case: bool) -> str:
    """Return the names that are the same to readers."""
    spelled: dict[str, list[str]] = {}
    for name in names:
        spelled.setdefault(_same(name, folds_case=folds_case), []).append(name)
    return "; ".join(sorted(", ".join(map(repr, some)) for some in spelled.values() if len(some) > 1))


def _same(name: str, *, folds_case: bool) -> str:
    return name.lower() if folds_case else name


def check_map_keys(schema: StructType, where: str) -> None:
    """Raise SinkError for maps with keys that an object of JSON has no name for: arrays, structs, nulls of `map()`."""
    from pyspark.sql import types  # noqa: PLC0415

    for field in schema.fields:
        for inner in _inside(field.dataType):
            if isinstance(inner, types.MapType) and isinstance(
                inner.keyType, types.ArrayType | types.StructType | types.NullType
            ):
                raise SinkError(
                    f"{where}: its column {field.name} has a map with keys of the type {inner.keyType.simpleString()}, "
                    "and an object of JSON has names: make them text by transform_keys(map, (key, value) -> "
                    "to_json(key)), give an array of structs by map_entries(map), or cast an empty map()"
                )


def _inside(type_: DataType) -> Iterator[DataType]:
    """Yield a type, and each inside it."""
    from pyspark.sql import types  # noqa: PLC0415

    yield type_
    inner: list[DataType] = []
    match type_:
        case types.ArrayType():
            inner = [type_.elementType]
        case types.MapType():
            inner = [type_.keyType, type_.valueType]
        case types.StructType():
            inner = [field.dataType for field in type_.fields]
    for one in inner:
        yield from _inside(one)


def refuse_table(unknown: Sequence[str], *, table: str, sink: str, where: str) -> None:
    """Raise SinkError if a table of others has something that the sink does not write rightly, by the names."""
    if unknown:
        raise SinkError(
            f"{where}: the {table} has {'; '.join(unknown)}, which {sink} does not write: give the output a table of "
            "its own, and fill this one from it"
        )


def check_types(schema: StructType, where: str) -> None:
    """Raise SinkError for a column of a type, at any depth, that other programs would read as something else."""
    from pyspark.sql.types import NullType  # noqa: PLC0415

    for field in schema.fields:
        # A column of nulls has no type in files, and a later batch may give it one.
        if odd := lacking(field.dataType, further=(NullType,)):
            raise SinkError(
                f"{where}: its column {field.name} is a {field.dataType.simpleString()}, and files have no {odd}: "
                f"cast it, as frame.withColumn({field.name!r}, frame[{field.name!r}].cast('string'))"
            )


def lacking(type_: DataType, *, further: tuple[type[DataType], ...] = ()) -> str | None:
    """Return the name of the type, or of the first inside it, that not each of Parquet, Delta, Iceberg and JSON has.

    `further`: types that the target lacks too. A struct without fields is one that no file has.
    """
    from pyspark.sql import types  # noqa: PLC0415

    nested = types.ArrayType | types.MapType
    for inner in _inside(type_):
        if isinstance(inner, nested) or (isinstance(inner, types.StructType) and inner.fields):
            continue
        if type(inner).__name__ not in _KNOWN or isinstance(inner, further):
            return inner.simpleString()
    return None


def arrow_schema(schema: StructType, where: str, *, widens: bool = False) -> pa.Schema:
    """Return the result's columns as an Arrow schema, all nullable; `widens`: small integers become 32-bit ones.

    Raises SinkError for names and types that a table can't have.
    """
    import pyarrow as pa  # noqa: PLC0415
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    check_names(schema, where, folds_case=True)
    check_types(schema, where)
    converted = to_arrow_schema(_with_texts(schema), timezone="UTC")
    return pa.schema([pa.field(field.name, _nullable(field.type, widens=widens)) for field in converted])


def _with_texts(type_: DataType) -> Any:  # noqa: ANN401  a type of the same kind
    """Return the type with strings in place of char and varchar, which Arrow lacks."""
    from pyspark.sql import types  # noqa: PLC0415

    match type_:
        case types.CharType() | types.VarcharType():
            return types.StringType()
        case types.ArrayType():
            return types.ArrayType(_with_texts(type_.elementType))
        case types.MapType():
            return types.MapType(_with_texts(type_.keyType), _with_texts(type_.valueType))
        case types.StructType():
            return types.StructType([types.StructField(one.name, _with_texts(one.dataType)) for one in type_.fields])
    return type_


def _nullable(type_: pa.DataType, *, widens: bool) -> pa.DataType:
    """Return the type with nullable fields: Spark marks literals as never null, but later batches may have nulls."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, _nullable(field.type, widens=widens)) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(pa.field("element", _nullable(type_.value_type, widens=widens)))
    if pa.types.is_map(type_):
        return pa.map_(_nullable(type_.key_type, widens=widens), _nullable(type_.item_type, widens=widens))
    return pa.int32() if widens and type_ in (pa.int8(), pa.int16()) else type_


def fields_in(schema: pa.Schema) -> Iterator[tuple[str, pa.Field]]:
    """Yield each field of a table, also within its columns, with its path. A map's key, never null, demands nothing."""
    import pyarrow as pa  # noqa: PLC0415

    def within(path: str, type_: pa.DataType) -> Iterator[tuple[str, pa.Field]]:
        inner: list[pa.Field] = []
        if pa.types.is_struct(type_):
            inner = list(type_)
        elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
            inner = [type_.value_field]
        elif pa.types.is_map(type_):
            inner = [type_.key_field.with_nullable(True), type_.item_field]  # noqa: FBT003  it takes no keywords
        for field in inner:
            yield f"{path}.{field.name}", field
            yield from within(f"{path}.{field.name}", field.type)

    for column in schema:
        yield column.name, column
        yield from within(column.name, column.type)

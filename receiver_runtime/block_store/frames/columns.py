"""Convert between columns as the driver log has them, (name, type) in text, and Arrow schemas; fit blocks to a schema.

A type's text is Arrow's own, as ``str(pyarrow type)`` has it: ``int64``, ``timestamp[us, tz=UTC]``, ``list<item:
string>``. Two columns must differ in more than case, as in Spark.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence

import pyarrow as pa

Columns = Sequence[tuple[str, str]]

#: In a block's Arrow schema: the fingerprint of the receiver's columns.
FINGERPRINT_KEY = b"forebay.schema"

_SIMPLE = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float", "double", "date32[day]"}
    | {"string", "large_string", "binary", "large_binary"}
    | {f"timestamp[{unit}]" for unit in ("s", "ms", "us", "ns")}
)
_WITH_ZONE = re.compile(r"timestamp\[(s|ms|us|ns), tz=([^\]]+)\]")
_DECIMAL = re.compile(r"decimal128\((\d+), (\d+)\)")
# Types in one another: Arrow's IPC refuses 64.
_DEEPEST = 60
# Types in one another in a text: each level reads the text of all below it, and a schema of others may have hundreds.
_DEEPEST_TEXT = 2 * _DEEPEST
_TOO_DEEP = f"there are more than {_DEEPEST} types in one another: flatten them"
_NESTED = re.compile(r"(list|large_list|struct|map)<(.*)>", re.DOTALL)


class ColumnsError(ValueError):
    """Columns that no block can have; the message names the column, its type and the way out."""


def arrow_type(text: str) -> pa.DataType:
    """Return the type for a text, or for one of Arrow's short names (``float64``, ``date32``, ``utf8``).

    Raises:
        ColumnsError: no such type, one that Spark has no type for, or far too many types in one another.
    """
    return _type(text, 0)


def _type(text: str, levels: int) -> pa.DataType:
    if levels > _DEEPEST_TEXT:
        raise ColumnsError(_TOO_DEEP)
    try:
        found = pa.type_for_alias(text)
    except ValueError:
        found = None
    if found is not None:
        if str(found) not in _SIMPLE:
            raise ColumnsError(f"the type {text} can't be read by Spark: use another, as int64, double or string")
        return found
    if match := _WITH_ZONE.fullmatch(text):
        return pa.timestamp(match[1], tz=match[2])
    if match := _DECIMAL.fullmatch(text):
        return pa.decimal128(int(match[1]), int(match[2]))
    if match := _NESTED.fullmatch(text):
        return _nested(match[1], match[2], levels + 1)
    raise ColumnsError(f"there is no type {text!r} for a column: use one of {', '.join(sorted(_SIMPLE))}")


def _nested(kind: str, inside: str, levels: int) -> pa.DataType:
    parts = _parts(inside)
    if kind == "map":
        if len(parts) != 2:  # noqa: PLR2004  key and value
            raise ColumnsError(f"map<{inside}> needs a key and a value: write it as map<string, int64>")
        return pa.map_(_type(parts[0], levels), _type(parts[1], levels))
    fields = []
    for part in parts:
        name, separator, text = part.partition(": ")
        fields.append(pa.field(name, _type(text, levels)) if separator else pa.field("item", _type(part, levels)))
    if kind == "struct":
        return pa.struct(fields)
    return pa.list_(fields[0]) if kind == "list" else pa.large_list(fields[0])


def _parts(inside: str) -> list[str]:
    """Split at the commas that are in no inner bracket."""
    parts, depth, start = [], 0, 0
    for position, character in enumerate(inside):
        depth += (character in "<[(") - (character in ">])")
        if character == "," and depth == 0:
            parts.append(inside[start:position].strip())
            start = position + 1
    return [*parts, inside[start:].strip()]


def arrow_schema(columns: Columns) -> pa.Schema:
    """Return the Arrow schema of columns. Raises ColumnsError."""
    return pa.schema([(name, arrow_type(text)) for name, text in columns])


def columns_of(schema: pa.Schema) -> tuple[tuple[str, str], ...]:
    """Return the columns of an Arrow schema, in its order.

    Raises:
        ColumnsError: no columns, two columns or fields with one name, or a type that a block can't have.
    """
    if not schema.names:
        raise ColumnsError("a receiver's schema has no column: declare at least one")
    seen: dict[str, str] = {}
    for field in schema:
        before = seen.setdefault(field.name.lower(), field.name)
        if schema.names.count(field.name) > 1 or before != field.name:
            raise ColumnsError(f"the columns {before!r} and {field.name!r} have one name in Spark: rename one")
        try:
            _check_inner(field.type, 0)
            same = arrow_type(str(field.type)) == field.type
        except ColumnsError as error:
            raise ColumnsError(f"column {field.name!r}: {error}") from error
        if not same:
            raise ColumnsError(f"column {field.name!r}: the type {field.type} can't be stored: use a simpler one")
    return tuple((field.name, str(field.type)) for field in schema)


def _check_inner(kind: pa.DataType, levels: int) -> None:
    """Refuse a type, ``levels`` below a column, with too many types in one another, or fields with one name."""
    if levels > _DEEPEST:
        raise ColumnsError(_TOO_DEEP)
    inner = []
    if pa.types.is_map(kind):
        # Its entries are a struct.
        levels += 1
        inner = [kind.key_type, kind.item_type]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = [kind.value_type]
    elif pa.types.is_struct(kind):
        seen: dict[str, str] = {}
        for field in kind:
            if (name := field.name.lower()) in seen:
                raise ColumnsError(f"the fields {seen[name]!r} and {field.name!r} have one name in Spark: rename one")
            seen[name] = field.name
            inner.append(field.type)
    for one in inner:
        _check_inner(one, levels + 1)


def fingerprint_of(columns: Columns) -> str:
    """Return a fingerprint of names and types in order; nothing else of an Arrow schema is part of it."""
    return hashlib.sha256(json.dumps([list(column) for column in columns]).encode()).hexdigest()[:16]


def stamped(schema: pa.Schema) -> pa.Schema:
    """Return the schema with its fingerprint, as blocks carry it. Raises ColumnsError."""
    return schema.with_metadata(
        {**(schema.metadata or {}), FINGERPRINT_KEY: fingerprint_of(columns_of(schema)).encode()}
    )


def union(*versions: Columns) -> tuple[tuple[str, str], ...]:
    """Return every column of any version, in order of appearance; for one name the first type counts."""
    found: dict[str, tuple[str, str]] = {}
    for columns in versions:
        for name, text in columns:
            found.setdefault(name.lower(), (name, text))
    return tuple(found.values())


def fitted(schema: pa.Schema) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a function that fits batches of any version to ``schema``: by name, with casts, nulls where missing."""

    def fit(batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.equals(schema):
            return batch
        arrays = []
        for field in schema:
            index = batch.schema.get_field_index(field.name)
            if index < 0:
                arrays.append(pa.nulls(batch.num_rows, field.type))
            else:
                array = batch.column(index)
                # Not "safe": nanoseconds that Spark can't hold are truncated, as Spark itself does.
                arrays.append(array if array.type == field.type else array.cast(field.type, safe=False))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return fit

"""Read Avro schemas into a tree of types, each with the Arrow type of its column.

The columns are those that Spark's ``from_avro`` gives. Loads neither Arrow nor NumPy, because declarations use it. It
must take each schema that the specification allows, except types that contain themselves, 512 levels, and
columns whose type is longer than a quarter of a million letters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracker_store.long_texts import shortened

_PRIMITIVES = {
    "boolean": "bool",
    "int": "int32",
    "long": "int64",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
    "null": "",
}
_LOGICAL = {
    ("int", "date"): "date32[day]",
    ("long", "timestamp-millis"): "timestamp[us, tz=UTC]",
    ("long", "timestamp-micros"): "timestamp[us, tz=UTC]",
    ("long", "local-timestamp-millis"): "timestamp[us]",
    ("long", "local-timestamp-micros"): "timestamp[us]",
}
# The member of an array or a map that has the type of its values, and the type of its column.
_ITEMS = {"array": ("items", "list<item: {}>"), "map": ("values", "map<string, {}>")}
_NAMED = frozenset({"record", "error", "enum", "fixed"})
_WIDER = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}
_MOST_DIGITS = 38
# Letters of a type: records that use others twice would have more than any memory holds.
_LONGEST = 2**18
#: The column of a schema that is no record.
VALUE = "value"


class AvroSchemaError(ValueError):
    """Correct the Avro schema; the message says what is wrong, and where."""


@dataclass(frozen=True, slots=True)
class Type:
    """One type. ``arrow``: the type of its column, in text; empty for null, which has no column.

    ``least``: the fewest bytes that a value of it has.
    """

    kind: str
    arrow: str
    least: int = 1
    #: Of times in milliseconds 1,000, to have microseconds.
    factor: int = 1
    #: Bytes of a fixed one.
    size: int = 0
    symbols: tuple[str, ...] = ()
    #: Of a record its fields; of a union its branches, each by the name of its column's member; of an array or a map
    #: its one value.
    members: tuple[tuple[str, Type], ...] = field(default=())

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Return the columns of records of this type."""
        members = self.members if self.kind == "record" else ((VALUE, self),)
        return tuple((name, of.arrow) for name, of in members if of.arrow)


def parse_avro_schema(text: str, references: Sequence[str] = ()) -> Type:
    """Return the type that a schema in JSON describes.

    Args:
        text: the schema.
        references: schemas of the named types that it uses, each after those that it uses itself.

    Raises:
        AvroSchemaError: it is none, or has a type that no column can have.
    """
    names: dict[str, Type | None] = {}
    try:
        for reference in references:
            _parse(json.loads(reference), "", names)
        return _parse(json.loads(text), "", names)
    except (json.JSONDecodeError, RecursionError) as error:
        raise AvroSchemaError(f"{text!r:.60}: this is no Avro schema in JSON: {error}") from error


def _parse(schema: Any, space: str, names: dict[str, Type | None]) -> Type:  # noqa: ANN401  JSON
    if isinstance(schema, str):
        return _primitive(schema, {}) if schema in _PRIMITIVES else _named(schema, space, names)
    if isinstance(schema, list):
        return _union(schema, space, names)
    if not isinstance(schema, Mapping) or "type" not in schema:
        raise AvroSchemaError(f"{schema!r:.60}: a type is a name, a list or an object with a 'type'")
    kind = schema["type"]
    if isinstance(kind, str) and kind in _PRIMITIVES:
        return _primitive(kind, schema)
    if isinstance(kind, str) and kind in _ITEMS:
        member, arrow = _ITEMS[kind]
        value = _value(schema, member, space, names)
        return Type(kind, _checked(arrow.format(value.arrow)), members=((member, value),))
    if isinstance(kind, str) and kind in _NAMED:
        return _defined(schema, space, names)
    return _parse(kind, space, names)


def _defined(schema: Mapping[str, Any], space: str, names: dict[str, Type | None]) -> Type:
    name, inner = _full_name(schema, space)
    if name in names:
        raise AvroSchemaError(f"{name}: it is defined twice")
    names[name] = None
    make = {"enum": _enum, "fixed": _fixed}.get(schema["type"], _record)
    names[name] = made = make(schema, inner, names)
    return made


def _value(schema: Mapping[str, Any], member: str, space: str, names: dict[str, Type | None]) -> Type:
    if member not in schema:
        raise AvroSchemaError(f"{schema!r:.60}: it has no {member!r}")
    value = _parse(schema[member], space, names)
    if not value.arrow:
        raise AvroSchemaError(f"{schema!r:.60}: no column can have only nulls in it")
    return value


def _named(name: str, space: str, names: Mapping[str, Type | None]) -> Type:
    full = name if "." in name or not space else f"{space}.{name}"
    # As Avro's own libraries do: a name without a namespace that is not found there.
    found = full if full in names else name
    if found not in names:
        raise AvroSchemaError(f"{full}: there is no type of this name")
    if (type_ := names[found]) is None:
        raise AvroSchemaError(f"{full}: it contains itself, which no column can")
    return type_


def _full_name(schema: Mapping[str, Any], space: str) -> tuple[str, str]:
    """Return the name with its namespace, and the namespace of what is inside."""
    name = schema.get("name")
    if not isinstance(name, str) or not name:
        raise AvroSchemaError(f"{schema!r:.60}: it has no name")
    if "." in name:
        return name, name.rpartition(".")[0]
    inner = schema.get("namespace", space) or ""
    return (f"{inner}.{name}" if inner else name), inner


def _primitive(kind: str, schema: Mapping[str, Any]) -> Type:
    logical = schema.get("logicalType")
    least = {"null": 0, "float": 4, "double": 8}.get(kind, 1)
    if kind == "bytes" and logical == "decimal" and (arrow := _decimal(schema)):
        return Type("decimal", arrow, least)
    if isinstance(logical, str) and (arrow := _LOGICAL.get((kind, logical), "")):
        return Type(kind, arrow, least, factor=1000 if logical.endswith("-millis") else 1)
    return Type(kind, _PRIMITIVES[kind], least)


def _decimal(schema: Mapping[str, Any]) -> str:
    """Return the type of a decimal's column; none if it is not a valid one, whose values then are bytes."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision:
        return ""
    return f"decimal128({precision}, {scale})" if 1 <= precision <= _MOST_DIGITS else ""


def _record(schema: Mapping[str, Any], space: str, names: dict[str, Type | None]) -> Type:
    fields = schema.get("fields")
    if not isinstance(fields, list) or not all(isinstance(one, dict) and "name" in one for one in fields):
        raise AvroSchemaError(f"{schema.get('name')}: its fields are no list of objects with names")
    members: dict[str, Type] = {}
    for one in fields:
        if "type" not in one or one["name"] in members:
            raise AvroSchemaError(f"{schema.get('name')}.{one['name']}: it is there twice, or has no type")
        # A logical type may stand beside the type of a field by mistake; Avro ignores it there.
        members[str(one["name"])] = _parse(one["type"], space, names)
    inside = ", ".join(f"{name}: {of.arrow}" for name, of in members.items() if of.arrow)
    if not inside:
        raise AvroSchemaError(f"{schema.get('name')}: it has no field with a value, so that it can be no column")
    return Type(
        "record",
        _checked(f"struct<{inside}>"),
        sum(of.least for of in members.values()),
        members=tuple(members.items()),
    )


def _checked(arrow: str) -> str:
    """Return a type of a column. Raises AvroSchemaError: it is too long."""
    if len(arrow) > _LONGEST:
        raise AvroSchemaError(f"{shortened(arrow, 60)} has more than {_LONGEST:,} letters: declare a smaller record")
    return arrow


def _enum(schema: Mapping[str, Any], _space: str, _names: object) -> Type:
    symbols = schema.get("symbols")
    if not isinstance(symbols, list) or not all(isinstance(one, str) for one in symbols):
        raise AvroSchemaError(f"{schema.get('name')}: its symbols are no list of names")
    return Type("enum", "string", symbols=tuple(symbols))


def _fixed(schema: Mapping[str, Any], _space: str, _names: object) -> Type:
    size = schema.get("size")
    if not isinstance(size, int) or size < 0:
        raise AvroSchemaError(f"{schema.get('name')}: its size is no number of bytes")
    arrow = _decimal(schema) if schema.get("logicalType") == "decimal" else ""
    return Type("fixed_decimal" if arrow else "fixed", arrow or "binary", size, size=size)


def _union(schema: Sequence[Any], space: str, names: dict[str, Type | None]) -> Type:
    branches = [_parse(one, space, names) for one in schema]
    valued = [one for one in branches if one.arrow]
    if len({(one.kind, one.arrow) for one in valued if one.kind in _PRIMITIVES}) < sum(
        one.kind in _PRIMITIVES for one in valued
    ) or any(one.kind == "union" for one in branches):
        raise AvroSchemaError(f"{schema!r:.60}: a union has each type once, and no union")
    least = 1 + min((one.least for one in branches), default=0)
    if not valued:
        return Type("union", "", least, members=tuple(("", one) for one in branches))
    kinds = frozenset(one.kind for one in valued)
    if len({one.arrow for one in valued}) == 1:
        arrow = valued[0].arrow
    elif kinds in _WIDER and all(one.factor == 1 and one.arrow == _PRIMITIVES[one.kind] for one in valued):
        arrow = _PRIMITIVES[_WIDER[kinds]]
    else:
        # As Spark has it.
        numbers = iter(range(len(valued)))
        named = tuple((f"member{next(numbers)}" if one.arrow else "", one) for one in branches)
        inside = ", ".join(f"{name}: {one.arrow}" for name, one in named if one.arrow)
        return Type("union", _checked(f"struct<{inside}>"), least, members=named)
    return Type("union", arrow, least, members=tuple(("", one) for one in branches))

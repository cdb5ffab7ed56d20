"""Turn a JSON Schema into columns and rules: the part of it that says one type for each place.

Every keyword is read, is known to say nothing of what fits, or is refused by its name and place. So a schema is never
checked by half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forebay_contrib.json_schema.references import joined_documents
from receiver_runtime.sources.records.shapes import Shape, ShapeError, columns_of, list_of, map_of, one_of, struct_of
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.sources.records.shapes import RuleName

# Keywords that say nothing of what fits.
_ANNOTATIONS = frozenset(
    {"$schema", "$id", "$comment", "$defs", "definitions", "$anchor", "title", "description", "default", "examples"}
    | {"deprecated", "readOnly", "writeOnly"}
    # Of the serializers of schema registries.
    | {"javaType"}
)
# Schemas that are read for one document, each as often as it is referred to: documents that refer to others twice would
# have more columns than any memory holds.
_MOST_SCHEMAS = 5_000
_ANNOTATING = ("connect.", "confluent:")
_CHOICES = ("anyOf", "oneOf")
_FORMATS = {"date-time": "timestamp[us, tz=UTC]", "date": "date32[day]"}
_PATTERNS = {
    "uuid": "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$",
    "ipv4": r"^((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)(\.(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)){3})$",
}
_KINDS = {"string": "string", "integer": "int64", "number": "double", "boolean": "bool"}
_BOUNDS: dict[str, RuleName] = {
    "minimum": "at_least",
    "exclusiveMinimum": "more_than",
    "maximum": "at_most",
    "exclusiveMaximum": "less_than",
}
_TEXT_RULES: dict[str, RuleName] = {"minLength": "min_length", "maxLength": "max_length", "pattern": "pattern"}
_LIST_RULES: dict[str, RuleName] = {"minItems": "min_length", "maxItems": "max_length"}
_LENGTHS = frozenset({"min_length", "max_length"})
_END_LENGTH = 2**31
# Keywords of each type, beside those of all.
_KEYWORDS = {
    "string": {*_TEXT_RULES, "format"},
    "integer": {*_BOUNDS},
    "number": {*_BOUNDS},
    "boolean": set[str](),
    "array": {*_LIST_RULES, "items"},
    "object": {"properties", "required", "additionalProperties"},
}
_OF_ALL = frozenset({"type", "enum", "const"})

Schema = Mapping[str, Any]


def declared_by_schema(schema: Schema, references: Sequence[tuple[str, str]] = ()) -> dict[str, Any]:
    """Return the fields of a declaration of JSON for a schema, and the schemas that it refers to, by name.

    Raises ShapeError, and ValueError: one of them is no JSON object.
    """
    if not isinstance(schema, Mapping):
        raise ShapeError(f"#: {shortened(repr(schema), 60)} says no type: write a schema with a type")
    documents = joined_documents(schema, references)
    read = _Documents(documents)
    root = read.resolved(documents[""], "#")
    if read.type_of(root, "#") != ("object", False):
        raise ShapeError("#: a record is an object: its type is 'object'")
    members = read.members(root, "#")
    return {**columns_of(members), "closed": read.closed()}


class _Documents:
    """Read the schemas of some documents, given by name."""

    def __init__(self, documents: Mapping[str, Schema]) -> None:
        self._documents = documents
        self._within: list[str] = []
        self._schemas = 0
        self._closed: dict[str, bool] = {}

    def closed(self) -> bool:
        """Return whether unknown members are refused. Raises ShapeError: in some objects only."""
        if len(set(self._closed.values())) > 1:
            which = next(place for place, is_closed in self._closed.items() if is_closed)
            raise ShapeError(
                f"{which}: additionalProperties is false in some objects only, which can't be checked: write it in all"
            )
        return any(self._closed.values())

    def resolved(self, schema: object, place: str) -> Schema:
        """Return a schema, or the one that it refers to. Raises ShapeError."""
        if not isinstance(schema, Mapping):
            raise ShapeError(f"{place}: {schema!r} says no type: write a schema with a type")
        seen: list[str] = []
        while "$ref" in schema:
            reference = schema["$ref"]
            if others := sorted(_said(schema) - {"$ref"}):
                raise ShapeError(f"{place}: {others[0]} beside $ref can't be checked: move it to {reference}")
            if reference in seen or reference in self._within:
                raise ShapeError(f"{place}: {reference} contains itself: a column has an end")
            seen.append(reference)
            schema = self._found(reference, place)
        return schema

    def _found(self, reference: object, place: str) -> Schema:
        document, has_place, path = reference.partition("#") if isinstance(reference, str) else ("", "", "")
        if document not in self._documents or not has_place or path[:1] not in {"", "/"}:
            raise ShapeError(f"{place}: $ref {reference!r} is in no place of this document: write it as '#/$defs/NAME'")
        found: Any = self._documents[document]
        for part in path.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            raise ShapeError(f"{place}: there is no {reference}: correct it")
        return found

    def type_of(self, schema: Schema, place: str) -> tuple[str, bool]:
        """Return the one type of a schema, and whether null fits too. Raises ShapeError."""
        given = schema.get("type")
        types = [given] if isinstance(given, str) else list(given) if isinstance(given, list) else []
        others = [one for one in types if one != "null"]
        if len(others) != 1 or others[0] not in _KEYWORDS:
            known = ", ".join(_KEYWORDS)
            raise ShapeError(f"{place}: type {given!r} is not one type: write one of {known}, or that and 'null'")
        allowed = _OF_ALL | _KEYWORDS[others[0]]
        for keyword in schema:
            if keyword in _said(schema) - allowed:
                raise ShapeError(f"{place}: {keyword} can't be checked for {others[0]}: leave it out")
        return others[0], len(others) < len(types)

    def members(self, schema: Schema, place: str) -> list[tuple[str, Shape]]:
        """Return the properties of an object. Raises ShapeError."""
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties:
            raise ShapeError(f"{place}: it has no properties: declare at least one")
        required = schema.get("required", [])
        if lacking := [name for name in required if name not in properties]:
            raise ShapeError(f"{place}: required has {lacking[0]!r}, which is no property: declare it")
        others = schema.get("additionalProperties", True)
        if not isinstance(others, bool):
            raise ShapeError(f"{place}: additionalProperties beside properties can't be checked: write true or false")
        self._closed[place] = not others
        found = []
        for name, inner in properties.items():
            shape = self.shape(inner, f"{place}/properties/{name}")
            found.append((name, replace(shape, nullable=shape.nullable or name not in required)))
        return found

    def shape(self, given: object, place: str) -> Shape:
        """Return the shape of a schema within the document. Raises ShapeError."""
        self._schemas += 1
        if self._schemas > _MOST_SCHEMAS:
            raise ShapeError(
                f"{shortened(place, 200)}: there are more than {_MOST_SCHEMAS:,} schemas in all: use fewer"
            )
        if isinstance(given, Mapping) and (choice := _choice_of(given)):
            return self._one_or_null(given, choice, place)
        schema = self.resolved(given, place)
        reference = given.get("$ref") if isinstance(given, Mapping) else None
        self._within.append(str(reference))
        choice = _choice_of(schema)
        made = self._one_or_null(schema, choice, place) if choice else self._shape(schema, place)
        self._within.pop()
        return made

    def _one_or_null(self, schema: Schema, choice: str, place: str) -> Shape:
        """Return the shape of a schema that is one of two, of which one is null. Raises ShapeError."""
        options = schema[choice]
        others = [one for one in options if not _is_null(one)] if isinstance(options, list) else []
        if len(others) != 1 or _said(schema) - {choice}:
            raise ShapeError(f"{place}: {choice} can't be checked: write one type, or one and {{'type': 'null'}}")
        shape = self.shape(others[0], f"{place}/{choice}")
        nulls = len(options) - 1
        if choice == "oneOf" and nulls + shape.nullable > 1:
            raise ShapeError(f"{place}: oneOf refuses null, which fits twice: allow it once")
        return replace(shape, nullable=shape.nullable or nulls > 0)

    def _shape(self, schema: Schema, place: str) -> Shape:
        if "type" not in schema and ("enum" in schema or "const" in schema):
            if others := sorted(_said(schema) - _OF_ALL):
                raise ShapeError(f"{place}: {others[0]} can't be checked without a type: write the type")
            return _allowed(schema, place)
        name, nullable = self.type_of(schema, place)
        if name == "object":
            shape = self._object(schema, place)
        elif name == "array":
            shape = list_of(self.shape(schema.get("items", True), f"{place}/items"))
            shape = _with_rules(shape, schema, _LIST_RULES, place)
        else:
            shape = _scalar(name, schema, place)
        if "enum" in schema or "const" in schema:
            allowed = _allowed(schema, place)
            if allowed.kind != shape.kind:
                raise ShapeError(f"{place}: enum has values of another type than {name}: correct it")
            # Null is allowed if both allow it.
            nullable = nullable and allowed.nullable
            shape = replace(shape, rules=(*shape.rules, *allowed.rules))
        return replace(shape, nullable=nullable)

    def _object(self, schema: Schema, place: str) -> Shape:
        others = schema.get("additionalProperties", True)
        if "properties" not in schema and isinstance(others, Mapping):
            if schema.get("required"):
                raise ShapeError(f"{place}: required can't be checked without properties: declare them")
            return map_of(self.shape(others, f"{place}/additionalProperties"), place)
        return struct_of(self.members(schema, place), place)


def _said(schema: Schema) -> set[str]:
    """Return the keywords that say what fits."""
    return {name for name in schema if name not in _ANNOTATIONS and not name.startswith(_ANNOTATING)}


def _choice_of(schema: Schema) -> str:
    """Return the keyword by which a schema is one of several, or an empty text."""
    return next((choice for choice in _CHOICES if choice in schema), "")


def _is_null(schema: object) -> bool:
    return isinstance(schema, Mapping) and schema.get("type") == "null" and _said(schema) == {"type"}


def _allowed(schema: Schema, place: str) -> Shape:
    """Return the shape of the values that enum and const allow. Raises ShapeError."""
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    if not isinstance(values, list) or ("const" in schema and values != [schema["const"]]):
        raise ShapeError(f"{place}: enum and const say different values: correct them")
    return one_of(values, place)


def _scalar(name: str, schema: Schema, place: str) -> Shape:
    given = schema.get("format")
    if given is None:
        shape = Shape(_KINDS[name])
    elif given in _PATTERNS:
        shape = Shape("string").with_rule("pattern", _PATTERNS[given], place)
    elif given in _FORMATS:
        shape = Shape(_FORMATS[given])
    else:
        known = ", ".join((*_FORMATS, *_PATTERNS))
        raise ShapeError(f"{place}: format {given!r} can't be checked: use one of {known}, or leave it out")
    for keyword in ("exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(schema.get(keyword), bool):
            raise ShapeError(f"{place}: {keyword} is a number since draft 6: write it so")
    return _with_rules(shape, schema, {**_BOUNDS, **_TEXT_RULES}, place)


def _check_operand(rule: RuleName, value: object, place: str) -> None:
    """Refuse a length that is none, and a pattern that is no text. Raises ShapeError."""
    if rule in _LENGTHS:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _END_LENGTH:
            raise ShapeError(f"{place}: {shortened(repr(value), 60)} is no length: write a whole number from 0 on")
    elif rule == "pattern" and not isinstance(value, str):
        raise ShapeError(f"{place}: {shortened(repr(value), 60)} is no pattern: write a text")


def _with_rules(shape: Shape, schema: Schema, rules: Mapping[str, RuleName], place: str) -> Shape:
    for keyword, rule in rules.items():
        if keyword in schema:
            _check_operand(rule, schema[keyword], f"{place}/{keyword}")
            shape = shape.with_rule(rule, schema[keyword], f"{place}/{keyword}")
    return shape

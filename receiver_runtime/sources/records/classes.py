"""Turn a class of the user's into columns: a pydantic model, a dataclass, a TypedDict or a Struct of msgspec.

It happens where a stream is declared: receivers have the columns, and never import the class. So what only the class
could do, such as a validator or a default, is refused by name.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from receiver_runtime.sources.records.shapes import (
    RuleName,
    Shape,
    ShapeError,
    columns_of,
    list_of,
    map_of,
    one_of,
    struct_of,
)

_KINDS = {
    bool: "bool",
    int: "int64",
    float: "double",
    str: "string",
    date: "date32[day]",
    datetime: "timestamp[us, tz=UTC]",
}
_ZONED = {"AwareDatetime": "timestamp[us, tz=UTC]", "NaiveDatetime": "timestamp[us]"}
_RULES: dict[str, RuleName] = {
    "ge": "at_least",
    "gt": "more_than",
    "le": "at_most",
    "lt": "less_than",
    "min_length": "min_length",
    "max_length": "max_length",
    "pattern": "pattern",
}
# Packages whose types are no classes of the user's.
_NO_CLASSES = frozenset({"builtins", "datetime", "decimal", "ipaddress", "pathlib", "pydantic", "typing", "uuid"})
# What a value's metadata may say without changing what fits.
_NO_RULES = frozenset(
    {"title", "description", "documentation", "examples", "extra_json_schema", "extra", "strict", "unit"}
)
_META = (*_RULES, "multiple_of", "tz", "title", "description", "examples", "extra_json_schema", "extra")
# Settings of a model that change values, or what fits.
_CHANGES = (
    *("str_to_lower", "str_to_upper", "str_strip_whitespace", "str_min_length", "str_max_length"),
    *("coerce_numbers_to_str", "populate_by_name", "validate_by_name"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Member:
    """Hold a member of a class: its name in JSON, its type with what is said of it, and whether it may be missing."""

    name: str
    annotation: Any
    metadata: tuple[Any, ...] = ()
    may_lack: bool = False


def declared_by_class(given: type) -> dict[str, Any]:
    """Return the fields of a declaration of JSON for a class. Raises ShapeError."""
    found = _Classes()
    members = found.members(given, given.__name__)
    return {**columns_of(members), "closed": found.closed(given.__name__)}


class _Classes:
    """Read a class and those within it."""

    def __init__(self) -> None:
        self._within: list[type] = []
        self._closed: dict[str, bool] = {}

    def closed(self, name: str) -> bool:
        """Return whether unknown members are refused. Raises ShapeError: by some classes only."""
        if len(set(self._closed.values())) > 1:
            which = " and ".join(one for one, is_closed in self._closed.items() if is_closed)
            raise ShapeError(f"{name}: {which} refuses unknown members, and other classes do not: let all do the same")
        return next(iter(self._closed.values()))

    def members(self, given: type, place: str) -> list[tuple[str, Shape]]:
        """Return the members of a class. Raises ShapeError."""
        if given in self._within:
            raise ShapeError(f"{place}: {given.__name__} contains itself: a column has an end")
        self._within.append(given)
        found = []
        for member in self._members(given, place):
            at = f"{place}.{member.name}"
            shape = self.shape(member.annotation, member.metadata, at)
            found.append((member.name, dataclasses.replace(shape, nullable=shape.nullable or member.may_lack)))
        self._within.pop()
        return found

    def _members(self, given: type, place: str) -> Iterator[_Member]:
        if hasattr(given, "__pydantic_fields__"):
            members, is_closed = _of_pydantic(given, place)
        elif hasattr(given, "__struct_fields__"):
            members, is_closed = _of_msgspec(given, place)
        elif dataclasses.is_dataclass(given):
            members, is_closed = _of_dataclass(given, place), False
        elif hasattr(given, "__required_keys__"):
            members, is_closed = _of_typed_dict(given), False
        else:
            raise ShapeError(
                f"{place}: {given.__name__} is no pydantic model, dataclass, TypedDict or msgspec Struct: declare one"
            )
        self._closed[given.__name__] = is_closed
        return iter(members)

    def shape(self, annotation: Any, metadata: Sequence[Any], place: str) -> Shape:  # noqa: ANN401  a type
        """Return the shape of a type, with what is said of it. Raises ShapeError."""
        annotation, metadata = _unwrapped(annotation, metadata)
        said = dict(_said(metadata, place))
        if get_origin(annotation) in {Union, types.UnionType}:
            others = [one for one in get_args(annotation) if one is not type(None)]
            if len(others) != 1 or len(get_args(annotation)) == 1:
                raise ShapeError(f"{place}: {_name(annotation)} is several types: a column has one")
            return dataclasses.replace(self.shape(others[0], metadata, place), nullable=True)
        if annotation is Decimal:
            digits, scale = said.pop("max_digits", None), said.pop("decimal_places", None)
            if digits is None or scale is None:
                raise ShapeError(f"{place}: Decimal has no digits: write Field(max_digits=12, decimal_places=2)")
            if not 0 <= scale <= digits <= 38 or not digits:  # noqa: PLR2004  of Arrow and Spark
                raise ShapeError(f"{place}: there is no DECIMAL({digits}, {scale}): at most 38 digits, scale included")
            shape = Shape(f"decimal128({digits}, {scale})")
        elif annotation is datetime and "tz" in said:
            shape = Shape(_ZONED["AwareDatetime" if said.pop("tz") in {True, ...} else "NaiveDatetime"])
        else:
            shape = self._plain(annotation, place)
        for name, value in said.items():
            if name not in _RULES:
                raise ShapeError(f"{place}: {name}={value!r} can't be checked: leave it out")
            shape = shape.with_rule(_RULES[name], getattr(value, "pattern", value), place)
        return shape

    def _plain(self, annotation: Any, place: str) -> Shape:  # noqa: ANN401  a type
        if isinstance(annotation, type) and not get_args(annotation):
            return self._class(annotation, place)
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Literal:
            return one_of(arguments, place)
        if origin in {list, Sequence}:
            return list_of(self.shape(arguments[0], (), place))
        if origin is dict and _unwrapped(arguments[0], ())[0] is str:
            return map_of(self.shape(arguments[1], (), place), place)
        raise ShapeError(f"{place}: {_name(annotation)} has no column: use another type")

    def _class(self, given: type, place: str) -> Shape:
        if given in _KINDS:
            return Shape(_KINDS[given])
        if issubclass(given, Enum):
            return one_of((one.value for one in given), place)
        if given.__module__ == "pydantic.types" and given.__name__ in _ZONED:
            return Shape(_ZONED[given.__name__])
        if given.__module__.partition(".")[0] in _NO_CLASSES:
            raise ShapeError(f"{place}: {_name(given)} has no column: use another type")
        return struct_of(self.members(given, place), place)


def _unwrapped(annotation: Any, metadata: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:  # noqa: ANN401  a type
    """Return a type without its names and what is said of it, and all of what is said."""
    said = tuple(metadata)
    while True:
        if get_origin(annotation) is Annotated:
            said = (*said, *annotation.__metadata__)
            annotation = annotation.__origin__
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return annotation, said


def _said(metadata: Iterable[Any], place: str) -> Iterator[tuple[str, Any]]:
    """Yield what metadata says of a value, as (name, value). Raises ShapeError: by a kind of metadata of its own."""
    for one in metadata:
        if one is None or isinstance(one, str):
            continue
        if isinstance(one, FieldInfo):
            yield from _said(one.metadata, place)
            continue
        package = type(one).__module__.partition(".")[0]
        if package == "msgspec":
            parts = {name: getattr(one, name, None) for name in _META}
        elif package == "annotated_types" and dataclasses.is_dataclass(one):
            parts = {field.name: getattr(one, field.name) for field in dataclasses.fields(one)}
        elif package == "pydantic" and type(one).__name__.lstrip("_") in {"PydanticGeneralMetadata", "Strict"}:
            parts = dict(vars(one))
        else:
            raise ShapeError(f"{place}: {type(one).__name__} can't be checked: leave it out")
        for name, value in parts.items():
            is_default = value is None or (name == "min_length" and value == 0)
            if (
                name not in _NO_RULES
                and not (is_default and name != "tz")
                and not (value is None and package == "msgspec")
            ):
                yield name, value


def _of_pydantic(given: Any, place: str) -> tuple[list[_Member], bool]:  # noqa: ANN401  a class of pydantic's
    config = dict(getattr(given, "model_config", None) or getattr(given, "__pydantic_config__", None) or {})
    decorators = given.__pydantic_decorators__
    for kind in ("validators", "field_validators", "root_validators", "model_validators"):
        if names := ", ".join(getattr(decorators, kind)):
            raise ShapeError(f"{place}: receivers do not run its validator {names}: declare a class without it")
    if changes := ", ".join(name for name in _CHANGES if config.get(name)):
        raise ShapeError(f"{place}: receivers do not apply its setting {changes}: declare a class without it")
    if getattr(given, "__pydantic_root_model__", False):
        raise ShapeError(f"{place}: it is a RootModel: declare a model with fields")
    members = []
    for name, field in given.__pydantic_fields__.items():
        alias = field.validation_alias or field.alias or name
        if not isinstance(alias, str):
            raise ShapeError(f"{place}.{name}: its alias is no name: write one name")
        default = None if field.is_required() else field.get_default(call_default_factory=False)
        if field.default_factory is not None:
            default = field.default_factory
        _refuse_default(default, f"{place}.{name}")
        if field.discriminator is not None:
            raise ShapeError(f"{place}.{name}: it is several types: a column has one")
        members.append(_Member(alias, field.annotation, tuple(field.metadata), may_lack=not field.is_required()))
    return members, config.get("extra") == "forbid"


def _of_msgspec(given: Any, place: str) -> tuple[list[_Member], bool]:  # noqa: ANN401  a class of msgspec's
    from msgspec import NODEFAULT, structs  # noqa: PLC0415  only for those who have one

    config = given.__struct_config__
    if config.array_like or config.tag is not None:
        raise ShapeError(f"{place}: receivers read no Struct with a tag or array_like: declare a class without it")
    members = []
    for field in structs.fields(given):
        default = field.default if field.default is not NODEFAULT else None
        if field.default_factory is not NODEFAULT:
            default = field.default_factory
        _refuse_default(default, f"{place}.{field.name}")
        members.append(_Member(field.encode_name, field.type, may_lack=not field.required))
    return members, config.forbid_unknown_fields


def _of_dataclass(given: type, place: str) -> list[_Member]:
    hints = typing.get_type_hints(given, include_extras=True)
    members = []
    for field in dataclasses.fields(given):
        has_factory = field.default_factory is not dataclasses.MISSING
        has_default = field.default is not dataclasses.MISSING
        _refuse_default(
            field.default_factory if has_factory else field.default if has_default else None, f"{place}.{field.name}"
        )
        if not field.init:
            raise ShapeError(f"{place}.{field.name}: receivers do not run __post_init__: leave it out")
        members.append(_Member(field.name, hints[field.name], may_lack=has_default))
    return members


def _of_typed_dict(given: Any) -> list[_Member]:  # noqa: ANN401  a TypedDict
    members = []
    for name, hint in typing.get_type_hints(given, include_extras=True).items():
        # What is said of a member within its annotation counts: a module may have its annotations as text.
        may_lack, inner = name not in given.__required_keys__, hint
        while (wrapper := getattr(get_origin(inner), "_name", None)) in {"Required", "NotRequired", "ReadOnly"}:
            may_lack = wrapper == "NotRequired" if wrapper != "ReadOnly" else may_lack
            inner = get_args(inner)[0]
        members.append(_Member(name, inner, may_lack=may_lack))
    return members


def _refuse_default(default: object, place: str) -> None:
    """Raise ShapeError for a default other than None: receivers store null for what is missing."""
    if default is not None:
        raise ShapeError(f"{place}: receivers do not fill in its default: write `| None = None`")


def _name(annotation: Any) -> str:  # noqa: ANN401  a type
    return annotation.__qualname__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)

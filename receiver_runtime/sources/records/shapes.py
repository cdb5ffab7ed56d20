"""Build columns from types that nest, with the rules that their values must keep.

Owns the form of a rule as it is stored, and which rules values of a type can have. A rule that can't be checked for
every value is refused here, never left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RuleName = Literal[
    "required", "one_of", "at_least", "more_than", "at_most", "less_than", "min_length", "max_length", "pattern"
]
#: In a rule's path: the items of a list.
ITEMS = "[]"
_BOUNDS = frozenset({"at_least", "more_than", "at_most", "less_than"})
_LENGTHS = frozenset({"min_length", "max_length"})
_INTEGERS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_FLOATS = frozenset({"float", "double"})
# What Arrow's text of a type ends a field's name with.
_NO_FIELD = frozenset("<>[](),:")


class ShapeError(ValueError):
    """Correct a class or a schema: a part of it can't be columns. The message names the part."""


class Rule(BaseModel):
    """Say what the values at a place must keep. Null keeps all but ``required``.

    Args:
        path: the column, then names of fields, and ``[]`` for the items of a list.
        rule: its name.
        value: the bound, the length, RE2's pattern, or the values that are allowed; a bound of decimals is text.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: tuple[str, ...]
    rule: RuleName
    value: bool | int | float | str | tuple[bool | int | str, ...] = True

    def within(self, name: str) -> Rule:
        """Return it as a rule of what contains its place."""
        return self.model_copy(update={"path": (name, *self.path)})


@dataclass(frozen=True, slots=True)
class Shape:
    """Hold a type as Arrow's text has it, the rules of its values, and whether there may be none."""

    kind: str
    rules: tuple[Rule, ...] = ()
    nullable: bool = False

    def with_rule(self, rule: RuleName, value: Any, place: str) -> Shape:  # noqa: ANN401  what a user gave
        """Return it with one more rule. Raises ShapeError: no value of the type could have it, or all have."""
        made = self._bound(rule, value, place) if rule in _BOUNDS else Rule(path=(), rule=rule, value=value)
        is_text = self.kind == "string"
        if (rule in _LENGTHS and not (is_text or self.kind.startswith("list<"))) or (rule == "pattern" and not is_text):
            raise ShapeError(f"{place}: {rule} of {self.kind} can't be checked: leave it out")
        return self if made is None else replace(self, rules=(*self.rules, made))

    def _bound(self, rule: RuleName, value: Any, place: str) -> Rule | None:  # noqa: ANN401  what a user gave
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not math.isfinite(value):
            raise ShapeError(f"{place}: {rule} is {value!r}, no number: correct it")
        if self.kind in _FLOATS:
            return Rule(path=(), rule=rule, value=float(value))
        if self.kind.startswith("decimal128"):
            return Rule(path=(), rule=rule, value=str(value))
        if self.kind not in _INTEGERS:
            raise ShapeError(f"{place}: {rule} of {self.kind} can't be checked: leave it out")
        most = 2 ** _INTEGERS[self.kind]
        if rule in {"at_least", "more_than"}:
            bound = math.floor(value) + 1 if rule == "more_than" else math.ceil(value)
            if bound >= most:
                raise ShapeError(f"{place}: no {self.kind} is {rule} {value}: correct it")
            return None if bound <= -most else Rule(path=(), rule="at_least", value=bound)
        bound = math.ceil(value) - 1 if rule == "less_than" else math.floor(value)
        if bound < -most:
            raise ShapeError(f"{place}: no {self.kind} is {rule} {value}: correct it")
        return None if bound >= most - 1 else Rule(path=(), rule="at_most", value=bound)


def one_of(values: Iterable[Any], place: str) -> Shape:
    """Return the shape of values that are one of some. Raises ShapeError: they have no one type."""
    allowed = tuple(values)
    others = tuple(value for value in allowed if value is not None)
    for kind, found in (("bool", bool), ("int64", int), ("string", str)):
        # True is an int too.
        if others and all(type(value) is found for value in others):
            return Shape(kind, (Rule(path=(), rule="one_of", value=others),), nullable=len(others) < len(allowed))
    raise ShapeError(f"{place}: the values {allowed!r} are not all texts, or all integers: declare one type")


def list_of(items: Shape) -> Shape:
    """Return the shape of lists."""
    return Shape(f"list<item: {items.kind}>", tuple(_rules_within(ITEMS, items)))


def map_of(values: Shape, place: str) -> Shape:
    """Return the shape of objects with any names. Raises ShapeError."""
    if values.rules:
        raise ShapeError(f"{place}: values of a map can't be checked: leave out {values.rules[0].rule}")
    return Shape(f"map<string, {values.kind}>")


def struct_of(fields: Sequence[tuple[str, Shape]], place: str) -> Shape:
    """Return the shape of objects with these members. Raises ShapeError."""
    if not fields:
        raise ShapeError(f"{place}: it has no member: declare one")
    for name, _ in fields:
        if not name or not _NO_FIELD.isdisjoint(name):
            raise ShapeError(f"{place}: a field can't be named {name!r}: leave out <>[](),:")
    kinds = ", ".join(f"{name}: {shape.kind}" for name, shape in fields)
    return Shape(f"struct<{kinds}>", tuple(rule for name, shape in fields for rule in _rules_within(name, shape)))


def columns_of(members: Sequence[tuple[str, Shape]]) -> dict[str, Any]:
    """Return members as the fields of a declaration: columns, those that are required, and the rules of all."""
    return {
        "columns": tuple((name, shape.kind) for name, shape in members),
        "required": tuple(name for name, shape in members if not shape.nullable),
        "rules": tuple(rule.within(name) for name, shape in members for rule in shape.rules),
    }


def _rules_within(name: str, shape: Shape) -> Iterable[Rule]:
    if not shape.nullable:
        yield Rule(path=(name,), rule="required")
    yield from (rule.within(name) for rule in shape.rules)

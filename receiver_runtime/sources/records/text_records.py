"""Declare what kinds of records share whose values are text: types of columns, and formats of times."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, model_validator

from receiver_runtime.sources.records.ddl import parse_ddl
from receiver_runtime.sources.records.declared import Records

#: What a format of times may have, each with the most digits or characters that it takes.
_DIRECTIVES = {"Y": 4, "m": 2, "d": 2, "b": 3, "H": 2, "M": 2, "S": 2, "f": 6, "z": 6}
_PART = re.compile(r"%(.)|([^%]+)", re.DOTALL)
_DAY = frozenset("Yd")
_CLOCK = "HMS"


def format_parts(text: str) -> list[tuple[str, str]]:
    """Return a format of times as (directive, "") and ("", literal text). Raises ValueError."""
    parts: list[tuple[str, str]] = []
    for match in _PART.finditer(text):
        directive, literal = match.group(1) or "", match.group(2) or ""
        if directive and directive not in _DIRECTIVES:
            raise ValueError(f"{text!r} has %{directive}: use {', '.join('%' + one for one in _DIRECTIVES)}")
        if not literal.isascii():
            raise ValueError(f"{text!r} is not ASCII: write it in ASCII")
        parts.append((directive, literal))
    found = [directive for directive, _ in parts if directive]
    has_day = set(found) >= _DAY and ("m" in found) != ("b" in found)
    clock = "".join(one for one in _CLOCK if one in found)
    if (
        len(set(found)) < len(found)
        or not has_day
        or not _CLOCK.startswith(clock)
        or ("f" in found and clock != _CLOCK)
    ):
        raise ValueError(f"{text!r} gives no time: it needs %Y, %m or %b, and %d, then %H, %M, %S and %f, each once")
    if "".join(f"%{one}" if one else literal for one, literal in parts) != text:
        raise ValueError(f"{text!r} ends with %: leave it out")
    return parts


def _pairs(given: Any) -> Any:  # noqa: ANN401  what a user gave
    return tuple(given.items()) if isinstance(given, Mapping) else given


class TextRecords(Records):
    """One kind of record whose values are text. A subclass says how a record is cut into them.

    An empty value is null. Nothing is guessed: a value is of its column's type as a whole, or the record does not fit.

    Args:
        schema: the columns in Spark's DDL, as ``"item STRING, pieces BIGINT NOT NULL, at TIMESTAMP"``.
        times: for columns with times or dates that are not as ISO 8601 has them: a format by the column's name, as
            ``{"at": "%d/%b/%Y:%H:%M:%S %z"}``, of ``%Y %m %b %d %H %M %S %f %z``. ``%f`` has 1 to 6 digits, ``%z`` is
            ``+0100``, ``+01:00`` or ``Z``.
        raw: also keep each record as it came, in the column ``_raw``.
    """

    times: Annotated[tuple[tuple[str, str], ...], BeforeValidator(_pairs)] = ()

    def __init__(self, schema: str | None = None, /, **fields: Any) -> None:  # noqa: ANN401  a model's fields
        """Take the columns from DDL, or, stored before, as ``columns`` and ``required``. Raises ValueError."""
        if schema is not None:
            columns, required = parse_ddl(schema)
            fields = {"columns": columns, "required": required, **fields}
        super().__init__(**fields)

    @model_validator(mode="after")
    def _check_types(self) -> Self:
        for name, kind in self.columns:
            if "<" in kind or kind == "binary":
                raise ValueError(f"column {name!r}: a text has no value of {kind}: use STRING")
        kinds = dict(self.columns)
        for name, text in self.times:
            kind = kinds.get(name, "")
            if not kind.startswith(("timestamp", "date")):
                raise ValueError(f"times: {name!r} is no column with times or dates: declare it as TIMESTAMP")
            found = {directive for directive, _ in format_parts(text)}
            if ("z" in found) != ("tz=" in kind):
                needed = "a TIMESTAMP needs %z" if "tz=" in kind else "TIMESTAMP_NTZ and DATE have no zone"
                raise ValueError(f"times: {name!r}: {text!r}: {needed}: change the format, or the column's type")
            if kind.startswith("date") and not found.isdisjoint(_CLOCK):
                raise ValueError(f"times: {name!r}: {text!r}: a DATE has no time of day: declare TIMESTAMP_NTZ")
        return self

"""Declare that a stream's records are JSON objects, and which columns they become."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from receiver_runtime.sources.records.classes import declared_by_class
from receiver_runtime.sources.records.ddl import parse_ddl
from receiver_runtime.sources.records.declared import Records
from receiver_runtime.sources.records.shapes import Rule  # noqa: TC001  pydantic evaluates it


class JsonObjects(Records):
    """One kind of record that is a JSON object. A subclass says where its columns come from.

    Args:
        rules: what values must keep.
        closed: refuse members without a column.
    """

    reader_class: ClassVar[str] = "receiver_runtime.record_formats.checked_json:CheckedJsonReader"
    is_json: ClassVar[bool] = True

    rules: tuple[Rule, ...] = ()
    closed: bool = False

    @model_validator(mode="after")
    def _check_types(self) -> Self:
        for name, kind in self.columns:
            for other in ("map<", "binary"):
                if other in kind:
                    raise ValueError(f"column {name!r}: JSON has no values of {kind}: use STRUCT, or STRING")
        if self.rules:
            # Only its reader knows which patterns it takes.
            self.load_reader()(self)
        return self


class Json(JsonObjects):
    """Each record is one JSON object: its members become columns by name; members without a column are left out.

    A record that does not fit becomes a dead letter, and the records beside it are stored. Nothing is guessed: a number
    in quotes is no BIGINT, 1.5 is none either, and a TIMESTAMP has its zone (``2026-01-02T03:04:05Z``). A missing
    member, or null, is null in its column, unless that is NOT NULL.

    Args:
        schema: the columns in Spark's DDL, as ``"item STRING, pieces BIGINT NOT NULL, at TIMESTAMP"``; or a class: a
            pydantic model, a dataclass, a TypedDict or a Struct of msgspec. What is not Optional is NOT NULL.
        raw: also keep each record as it came, in the column ``_raw``.
    """

    kind: Literal["json"] = "json"

    def __init__(self, schema: str | type | None = None, /, **fields: Any) -> None:  # noqa: ANN401  a model's fields
        """Take the columns from DDL or a class, or, stored before, as ``columns`` and others. Raises ValueError."""
        if isinstance(schema, type):
            fields = {**declared_by_class(schema), **fields}
        elif schema is not None:
            columns, required = parse_ddl(schema)
            fields = {"columns": columns, "required": required, **fields}
        super().__init__(**fields)

"""Declare that a stream's records are JSON objects, and which columns they become."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from receiver_runtime.sources.records.ddl import parse_ddl
from receiver_runtime.sources.records.declared import Records


class Json(Records):
    """Each record is one JSON object: its members become columns by name; members without a column are left out.

    A record that does not fit becomes a dead letter, and the records beside it are stored. Nothing is guessed: a number
    in quotes is no BIGINT, 1.5 is none either, and a TIMESTAMP has its zone (``2026-01-02T03:04:05Z``). A missing
    member, or null, is null in its column, unless that is NOT NULL.

    Args:
        schema: the columns in Spark's DDL, as ``"item STRING, pieces BIGINT NOT NULL, at TIMESTAMP"``.
        raw: also keep each record as it came, in the column ``_raw``.
    """

    reader_class: ClassVar[str] = "receiver_runtime.record_formats.json_reader:JsonReader"
    is_json: ClassVar[bool] = True

    kind: Literal["json"] = "json"

    def __init__(self, schema: str | None = None, /, **fields: Any) -> None:  # noqa: ANN401  a model's fields
        """Take the columns from DDL, or, stored before, as ``columns`` and ``required``. Raises ValueError."""
        if schema is not None:
            columns, required = parse_ddl(schema)
            fields = {"columns": columns, "required": required, **fields}
        super().__init__(**fields)

    @model_validator(mode="after")
    def _check_types(self) -> Self:
        for name, kind in self.columns:
            for other in ("map<", "binary"):
                if other in kind:
                    raise ValueError(f"column {name!r}: JSON has no values of {kind}: use STRUCT, or STRING")
        return self

"""Define what declarations of records with a schema have in common: a schema, a registry, or both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import ConfigDict, model_validator

from receiver_runtime.sources.fields.schema_registry import Registry  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.records.declared import Records


class DeclaredSchema(Records):
    """Records with a schema. ``definition`` is its text; empty: each record names its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    columns: tuple[tuple[str, str], ...] = ()
    definition: str = ""
    registry: Registry | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if not self.definition and self.registry is None:
            raise ValueError("give the schema, as a file or a text, or the registry that has it")
        return self

    @property
    def columns_grow(self) -> bool:
        """Return whether a registry has the records' schemas."""
        return self.registry is not None


def text_of(schema: str | Path | Mapping[str, Any], begins: tuple[str, ...]) -> str:
    """Return the text of a schema that is a file, an object, or text that begins so. Raises OSError."""
    if isinstance(schema, Mapping):
        return json.dumps(schema)
    if isinstance(schema, str) and schema.lstrip().startswith(begins):
        return schema
    return Path(schema).read_text(encoding="utf-8")

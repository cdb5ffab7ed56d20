"""Declare that a stream's records are JSON objects of a JSON Schema, and become columns as its properties say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from forebay_contrib.json_schema.schema_columns import declared_by_schema
from receiver_runtime.sources.fields.schema_registry import Registry  # noqa: TC001  pydantic reads it
from receiver_runtime.sources.records.json_records import JsonObjects

if TYPE_CHECKING:
    from collections.abc import Mapping

_BY_REGISTRY = "forebay_contrib.json_schema.registry_reader:JsonSchemaReader"


class JsonSchema(JsonObjects):
    """Each record is one JSON object that a JSON Schema describes; see ``forebay_contrib/json_schema/README.md``.

    The schema becomes columns where the stream is declared. What of it can be checked is checked for each record; a
    keyword that can't be is refused here. A missing member and null are the same, as in ``Json``.

    Args:
        schema: the schema, or the path of its file.
        registry: the registry that has the schemas of records with Confluent's header. A record is checked by the
            schema that it names, and one that is new to the stream adds its columns while receivers run. A ``schema``
            beside it declares columns from the start.
        raw: also keep each record as it came, in the column ``_raw``.
    """

    kind: Literal["json_schema"] = "json_schema"
    columns: tuple[tuple[str, str], ...] = ()
    registry: Registry | None = None

    def __init__(self, schema: Mapping[str, Any] | str | Path | None = None, /, **fields: Any) -> None:  # noqa: ANN401  a model's fields
        """Take the columns from a schema, or, stored before, as ``columns`` and others. Raises ValueError, OSError."""
        if schema is not None:
            declared = declared_by_schema(_document(schema))
            # What a record must keep is said by the schema that it names.
            fields = {**(declared if fields.get("registry") is None else {"columns": declared["columns"]}), **fields}
        super().__init__(**fields)

    @property
    def columns_grow(self) -> bool:
        """Return whether a registry has the records' schemas."""
        return self.registry is not None

    @property
    def reader_address(self) -> str:
        """Return which reader this declaration needs, as ``module:Class``."""
        return self.reader_class if self.registry is None else _BY_REGISTRY


def _document(schema: Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
    """Return a schema, read from its file. Raises ValueError, and OSError."""
    if isinstance(schema, str | Path):
        read: Mapping[str, Any] = json.loads(Path(schema).read_text(encoding="utf-8"))
        return read
    return schema

"""Declare that a stream's records are JSON objects of a JSON Schema, and become columns as its properties say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from forebay_contrib.json_schema.schema_columns import declared_by_schema
from receiver_runtime.sources.records.json_records import JsonObjects

if TYPE_CHECKING:
    from collections.abc import Mapping


class JsonSchema(JsonObjects):
    """Each record is one JSON object that a JSON Schema describes; see ``forebay_contrib/json_schema/README.md``.

    The schema becomes columns where the stream is declared. What of it can be checked is checked for each record; a
    keyword that can't be is refused here. A missing member and null are the same, as in ``Json``.

    Args:
        schema: the schema, or the path of its file.
        raw: also keep each record as it came, in the column ``_raw``.
    """

    kind: Literal["json_schema"] = "json_schema"

    def __init__(self, schema: Mapping[str, Any] | str | Path | None = None, /, **fields: Any) -> None:  # noqa: ANN401  a model's fields
        """Take the columns from a schema, or, stored before, as ``columns`` and others. Raises ValueError, OSError."""
        if isinstance(schema, str | Path):
            fields = {**declared_by_schema(json.loads(Path(schema).read_text(encoding="utf-8"))), **fields}
        elif schema is not None:
            fields = {**declared_by_schema(schema), **fields}
        super().__init__(**fields)

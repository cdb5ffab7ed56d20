"""Describe the records of a typed stream as a JSON schema, for the OpenAPI document, from the stream's columns.

The reader of the records decides what is taken, not this. What the stream's ``coerce`` takes besides is not described.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.block_store.frames.columns import arrow_schema

if TYPE_CHECKING:
    from receiver_runtime.receivers.http.requests.route import Json
    from receiver_runtime.sources.records.declared import Records


def record_schema(records: Records) -> Json:
    """Return the JSON schema of one record."""
    schema: Json = {
        "description": "A record; members that are not named here are left out.",
        "type": "object",
        "properties": {
            field.name: _schema_of(field.type) if field.name in records.required else _or_null(_schema_of(field.type))
            for field in arrow_schema(records.columns)
        },
    }
    return {**schema, "required": list(records.required)} if records.required else schema


def _schema_of(kind: pa.DataType) -> Json:
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return {"type": "integer", "minimum": -most, "maximum": most - 1}
    if pa.types.is_list(kind):
        return {"type": "array", "items": _or_null(_schema_of(kind.value_type))}
    if pa.types.is_struct(kind):
        return {"type": "object", "properties": {field.name: _or_null(_schema_of(field.type)) for field in kind}}
    if pa.types.is_map(kind):
        return {"type": "object", "additionalProperties": _or_null(_schema_of(kind.item_type))}
    simple: list[tuple[bool, Json]] = [
        (pa.types.is_boolean(kind), {"type": "boolean"}),
        (pa.types.is_floating(kind), {"type": "number"}),
        (pa.types.is_decimal(kind), {"type": ["number", "string"], "description": f"A {kind}."}),
        (pa.types.is_date(kind), {"type": "string", "format": "date"}),
        (pa.types.is_timestamp(kind) and kind.tz is not None, {"type": "string", "format": "date-time"}),
        (pa.types.is_timestamp(kind), {"type": "string", "description": "Without a zone: 2026-01-02T03:04:05."}),
        (pa.types.is_binary(kind), {"type": "string", "contentEncoding": "base64"}),
    ]
    return next((schema for is_it, schema in simple if is_it), {"type": "string"})


def _or_null(schema: Json) -> Json:
    kinds = schema["type"]
    return {**schema, "type": [*(kinds if isinstance(kinds, list) else [kinds]), "null"]}

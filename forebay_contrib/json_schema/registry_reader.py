"""Read JSON records behind the header of a schema registry, each by the JSON Schema that its header names."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from forebay_contrib.json_schema.declaration import JsonSchema
from forebay_contrib.json_schema.schema_columns import declared_by_schema
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.record_formats.checked_json import CheckedJsonReader
from receiver_runtime.record_formats.registries.schema_reader import SchemaDecoder, SchemaReader

if TYPE_CHECKING:
    from receiver_runtime.record_formats.record_reader import Parsed
    from receiver_runtime.record_formats.registries.registry_client import RegisteredSchema


class JsonSchemaReader(SchemaReader):
    """Read JSON, one object a record."""

    kind = "JSON"

    def __init__(self, records: JsonSchema) -> None:
        self._coerce = records.coerce
        super().__init__(records, records.registry)

    def make_decoder(self, schema: RegisteredSchema) -> SchemaDecoder:
        """Return the decoder of a schema in JSON."""
        declared = declared_by_schema(json.loads(schema.text), schema.references)
        return _JsonDecoder(JsonSchema(**declared, coerce=self._coerce))


class _JsonDecoder(SchemaDecoder):
    def __init__(self, records: JsonSchema) -> None:
        super().__init__(arrow_schema(records.columns))
        self._reader = CheckedJsonReader(records)

    def decode(self, records: pa.BinaryArray, header: int) -> Parsed:
        return self._reader.read(_without_headers(records, header))


def _without_headers(records: pa.BinaryArray, header: int) -> pa.BinaryArray:
    """Return records without the first bytes of each."""
    _, offsets, data = records.buffers()
    places = np.frombuffer(offsets, np.int32)[records.offset : records.offset + len(records) + 1]
    first, last = int(places[0]), int(places[-1])
    keeps = np.ones(last - first, np.bool_)
    for byte in range(header):
        keeps[places[:-1] - first + byte] = False
    text = np.frombuffer(data, np.uint8)[first:last][keeps]
    moved = (places - first - header * np.arange(len(places))).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(records), [None, pa.py_buffer(moved), pa.py_buffer(text)])

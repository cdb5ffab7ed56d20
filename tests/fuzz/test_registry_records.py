"""Fuzz records behind the header of a schema registry: each is read by the schema that it names, or is a fault."""

from __future__ import annotations

import pyarrow as pa

from forebay_contrib.json_schema.declaration import JsonSchema
from forebay_contrib.json_schema.registry_reader import JsonSchemaReader
from receiver_runtime.record_formats.registries.registry_client import (
    NoSuchSchemaError,
    RegisteredSchema,
    RegistryClient,
)
from receiver_runtime.sources.fields.schema_registry import Registry
from tests.fuzz.target import fuzzed

_SCHEMAS = {
    1: RegisteredSchema("JSON", '{"type": "object", "properties": {"a": {"type": "string"}}}'),
    2: RegisteredSchema("JSON", '{"type": "object", "properties": {"b": {"type": "integer", "minimum": 1}}}'),
    3: RegisteredSchema("AVRO", '"string"'),
}
_GOOD = b'\0\0\0\0\1{"a": "x"}'


class _Registry(RegistryClient):
    """Have three schemas, and ask no server."""

    def schema(self, number: int) -> RegisteredSchema:
        if number not in _SCHEMAS:
            raise NoSuchSchemaError("no such schema")
        return _SCHEMAS[number]


def _reader() -> JsonSchemaReader:
    declared = JsonSchema(registry=Registry("http://127.0.0.1:1"))
    made = JsonSchemaReader(declared)
    made._client = _Registry(Registry("http://127.0.0.1:1"))
    made.grow(dict, lambda _: None)
    # Both columns are there from the start, so that rows can be compared.
    made.read(pa.array([_GOOD, b'\0\0\0\0\2{"b": 1}'], pa.binary()))
    return made


_READER = _reader()


@fuzzed(
    "registry_records",
    valid=[_GOOD, b'\0\0\0\0\2{"b": 2}', b"\0\0\0\0\1{}", b"\0\0\0\0\3\2a", b"\0\0\0\0\7{}"],
    words=[b"\0\0\0\0\1", b"\0\0\0\0\2", b"\0", b"{", b"}", b'"', b"\n", b"\xff"],
    attacks=[b"\0" * 65_536, b"\0\0\0\0\1" * 16_384, b"\0\0\0\0\1" + b"{" * 65_536],
)
def test_a_record_is_a_row_or_a_fault_whatever_stands_beside_it(record: bytes) -> None:
    alone = _READER.read(pa.array([record], pa.binary()))
    assert alone.batch.num_rows + len(alone.faults) == 1
    alone.batch.validate(full=True)
    values = pa.array([b"", _GOOD, record, b"\0\0\0\0", b'\0\0\0\0\2{"b": 5}', _GOOD, b""], pa.binary())
    beside = _READER.read(values.slice(1, 5))
    assert [fault.row for fault in beside.faults] == [*(1 for _ in alone.faults), 2]
    assert [fault.why for fault in beside.faults[:-1]] == [fault.why for fault in alone.faults]
    rows = beside.batch.to_pylist()
    assert rows == [{"a": "x", "b": None}, *alone.batch.to_pylist(), {"a": None, "b": 5}, {"a": "x", "b": None}]

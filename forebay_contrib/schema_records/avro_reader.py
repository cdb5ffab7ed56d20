"""Read Avro records into typed columns; see ``avro_decoder`` and ``schema_reader``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_contrib.schema_records.avro_decoder import Record, make_decoder
from forebay_contrib.schema_records.avro_schema import parse_avro_schema
from forebay_contrib.schema_records.cursor_decoder import CursorDecoder
from receiver_runtime.record_formats.registries.registry_client import RegisteredSchema, texts_of
from receiver_runtime.record_formats.registries.schema_reader import SchemaDecoder, SchemaReader

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay_contrib.schema_records.cursor import Cursor
    from forebay_contrib.schema_records.declared_schema import DeclaredSchema


class AvroReader(SchemaReader):
    """Read Avro, one value of its binary encoding a record."""

    kind = "AVRO"

    def __init__(self, records: DeclaredSchema) -> None:
        self._definition = records.definition
        super().__init__(records, records.registry)

    def make_declared(self) -> SchemaDecoder:
        """Return the decoder of the schema that is declared."""
        return self.make_decoder(RegisteredSchema(self.kind, self._definition))

    def make_decoder(self, schema: RegisteredSchema) -> SchemaDecoder:
        """Return the decoder of a schema in JSON."""
        return _AvroDecoder(schema)


class _AvroDecoder(CursorDecoder):
    called = "Avro"

    def __init__(self, schema: RegisteredSchema) -> None:
        parsed = parse_avro_schema(schema.text, texts_of(schema.references))
        super().__init__(parsed.columns)
        self._decoder = make_decoder(parsed)

    def arrays(self, cursor: Cursor) -> list[pa.Array]:
        decoder = self._decoder
        return decoder.columns(cursor) if isinstance(decoder, Record) else [decoder.read(cursor)]

"""Read Protobuf messages into typed columns; see ``proto_decoder`` and ``schema_reader``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from forebay_contrib.schema_records.cursor_decoder import CursorDecoder
from forebay_contrib.schema_records.proto_decoder import MessageDecoder
from forebay_contrib.schema_records.proto_schema import ProtoError, ProtoSchema
from forebay_contrib.schema_records.protobuf import Protobuf, first_message
from receiver_runtime.record_formats.registries.registry_client import RegisteredSchema
from receiver_runtime.record_formats.registries.schema_reader import SchemaDecoder, SchemaReader

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay_contrib.schema_records.cursor import Cursor
    from forebay_contrib.schema_records.declared_schema import DeclaredSchema

# Levels of messages within messages.
_DEEPEST = 32


class ProtobufReader(SchemaReader):
    """Read Protobuf, one message a record."""

    kind = "PROTOBUF"

    def __init__(self, records: DeclaredSchema) -> None:
        assert isinstance(records, Protobuf)
        self._declaration = records
        super().__init__(records, records.registry)

    def make_declared(self) -> SchemaDecoder:
        """Return the decoder of the schema that is declared."""
        return self.make_decoder(RegisteredSchema(self.kind, self._declaration.definition, self._declaration.imports))

    def make_decoder(self, schema: RegisteredSchema) -> SchemaDecoder:
        """Return the decoder of a .proto file."""
        has_header = self._declaration.registry is not None
        file = ProtoSchema(schema.text, schema.references)
        return _ProtobufDecoder(file, self._declaration.message, has_index=has_header)


class _ProtobufDecoder(CursorDecoder):
    """Decode messages of one type. ``has_index``: before each is which message of the file it is."""

    called = "Protobuf"

    def __init__(self, schema: ProtoSchema, name: str, *, has_index: bool) -> None:
        message = schema.message(name or first_message(schema))
        super().__init__(message.columns)
        self._schema = schema
        self._name = message.name
        self._message = MessageDecoder(message)
        self._has_index = has_index

    def arrays(self, cursor: Cursor) -> list[pa.Array]:
        if self._has_index:
            self._read_index(cursor)
        return self._message.columns(cursor)

    def _read_index(self, cursor: Cursor) -> None:
        """Move over the place of each message in its file; note a fault where it is another message."""
        counts = cursor.zigzags()
        bad = (counts < 0) | (counts > _DEEPEST)
        if bad.any():
            cursor.fail(bad, "the place of its message in the file is none")
            counts = np.where(bad, 0, counts)
        # A count of 0 stands for the first message.
        levels = max(int(counts.max(initial=0)), 1)
        paths = np.full((len(cursor), levels), -1, np.int64)
        paths[counts == 0, 0] = 0
        for level in range(levels):
            which = np.flatnonzero(counts > level)
            some = cursor.only(which)
            paths[which, level] = some.zigzags()
            cursor.put(which, some)
        for path in np.unique(paths, axis=0):
            which = (paths == path).all(axis=1) & ~cursor.failed
            if not which.any():
                continue
            try:
                name = self._schema.at(tuple(path[: int(counts[which][0]) or 1].tolist()))
            except ProtoError as error:
                cursor.fail(which, str(error))
            else:
                if name != self._name:
                    cursor.fail(which, f"its message is {name}, and the stream's is {self._name}")

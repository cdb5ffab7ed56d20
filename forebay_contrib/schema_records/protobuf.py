"""Declare that a stream's records are Protobuf messages, and which columns they become."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar, Literal

from forebay_contrib.schema_records.declared_schema import DeclaredSchema
from forebay_contrib.schema_records.proto_schema import ProtoError, ProtoSchema

_IMPORT = re.compile(r'(?:^|;)\s*import\s+(?:public\s+|weak\s+)?"([^"]+)"\s*;', re.MULTILINE)
_GOOGLE = "google/protobuf/"


class Protobuf(DeclaredSchema):
    """Each record is one Protobuf message: its fields become columns.

    A field without presence (a plain one of proto3) has its default where a message leaves it out; any other one is
    null. Fields that the schema does not have are passed over. Bytes that are no message of the schema become a dead
    letter, and the records beside it are stored.

    Args:
        schema: the .proto file of records without a header, or its text. Files that it imports are looked for beside
            it; Google's own are known.
        message: the message, by its name; by default the first one of the file.
        registry: the registry that has the schemas of records with Confluent's header. A schema that is new to the
            stream adds its columns while receivers run. A ``schema`` beside it declares columns from the start.
        raw: also keep each record as it came, in the column ``_raw``.
    """

    reader_class: ClassVar[str] = "forebay_contrib.schema_records.protobuf_reader:ProtobufReader"

    kind: Literal["protobuf"] = "protobuf"
    message: str = ""
    #: The files that the schema imports, by name.
    imports: tuple[tuple[str, str], ...] = ()

    def __init__(self, schema: str | Path | None = None, /, **fields: Any) -> None:  # noqa: ANN401  a model's
        """Read the schema; a stored declaration has its text. Raises ValueError, and OSError of a file."""
        if schema is not None:
            text, imports = _read(schema)
            parsed = ProtoSchema(text, imports)
            message = parsed.message(fields.get("message") or first_message(parsed))
            fields = {"definition": text, "imports": imports, "columns": message.columns, **fields}
        super().__init__(**fields)


def first_message(schema: ProtoSchema) -> str:
    """Return the name of the first message of a file. Raises ProtoError."""
    if not schema.messages:
        raise ProtoError("the file has no message")
    return schema.messages[0]


def _read(schema: str | Path) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Return the text of a schema, and those of the files that it imports."""
    if isinstance(schema, str) and (";" in schema or "{" in schema):
        return schema, ()
    path = Path(schema)
    text = path.read_text(encoding="utf-8")
    found: dict[str, str] = {}
    pending = [text]
    while pending:
        for name in _IMPORT.findall(pending.pop()):
            if name not in found and not name.startswith(_GOOGLE):
                found[name] = (path.parent / name).read_text(encoding="utf-8")
                pending.append(found[name])
    return text, tuple(found.items())

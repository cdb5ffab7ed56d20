"""Declare that a stream's records are Avro, and which columns they become."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from forebay_contrib.schema_records.avro_schema import parse_avro_schema
from receiver_runtime.sources.records.declared import Records


class Avro(Records):
    """Each record is one value in Avro's binary encoding, without a header: the fields of a record become columns.

    The columns are those that Spark's ``from_avro`` gives: a timestamp is a TIMESTAMP, an enum a STRING, a union of
    null and another type that other type, which may be null. Bytes that the schema does not describe, from the first
    to the last, become a dead letter, and the records beside it are stored.

    Args:
        schema: the schema that the records were written with: a file, as ``"order.avsc"``, or what such a file has.
        raw: also keep each record as it came, in the column ``_raw``.
    """

    reader_class: ClassVar[str] = "forebay_contrib.schema_records.avro_reader:AvroReader"

    kind: Literal["avro"] = "avro"
    avro_schema: str

    def __init__(self, schema: str | Path | Mapping[str, Any] | None = None, /, **fields: Any) -> None:  # noqa: ANN401
        """Read the schema; a stored declaration has it as ``avro_schema``. Raises ValueError, and OSError of a file."""
        if schema is not None:
            text = _text_of(schema)
            fields = {"avro_schema": text, "columns": parse_avro_schema(text).columns, **fields}
        super().__init__(**fields)


def _text_of(schema: str | Path | Mapping[str, Any]) -> str:
    """Return the schema in JSON."""
    if isinstance(schema, Mapping):
        return json.dumps(schema)
    if isinstance(schema, str) and schema.lstrip().startswith(("{", "[", '"')):
        return schema
    return Path(schema).read_text(encoding="utf-8")

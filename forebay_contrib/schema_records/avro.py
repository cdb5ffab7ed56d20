"""Declare that a stream's records are Avro, and which columns they become."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from forebay_contrib.schema_records.avro_schema import parse_avro_schema
from forebay_contrib.schema_records.declared_schema import DeclaredSchema, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Avro(DeclaredSchema):
    """Each record is one value in Avro's binary encoding: the fields of a record become columns.

    The columns are those that Spark's ``from_avro`` gives: a timestamp is a TIMESTAMP, an enum a STRING, a union of
    null and another type that other type, which may be null. Bytes that the schema does not describe, from the first
    to the last, become a dead letter, and the records beside it are stored.

    Args:
        schema: the schema of records without a header: a file, as ``"order.avsc"``, or what such a file has.
        registry: the registry that has the schemas of records with Confluent's header. A schema that is new to the
            stream adds its columns while receivers run. A ``schema`` beside it declares columns from the start.
        raw: also keep each record as it came, in the column ``_raw``.
    """

    reader_class: ClassVar[str] = "forebay_contrib.schema_records.avro_reader:AvroReader"

    kind: Literal["avro"] = "avro"

    def __init__(self, schema: str | Path | Mapping[str, Any] | None = None, /, **fields: Any) -> None:  # noqa: ANN401
        """Read the schema; a stored declaration has its text. Raises ValueError, and OSError of a file."""
        if schema is not None:
            text = text_of(schema, ("{", "[", '"'))
            fields = {"definition": text, "columns": parse_avro_schema(text).columns, **fields}
        super().__init__(**fields)

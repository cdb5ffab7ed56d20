"""From records as a receiver has them to Arrow record batches of its schema.

A record is a bare value where the schema has one column, else a mapping by column name or a tuple in column order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa


class RecordTypeError(TypeError):
    """A record does not fit the receiver's schema. Convert it before it is stored, or correct the schema."""


def schema_of(columns: Sequence[tuple[str, str]]) -> pa.Schema:
    """An Arrow schema from (name, Arrow type by name)."""
    return pa.schema([(name, pa.type_for_alias(alias)) for name, alias in columns])


def check_record(record: object, schema: pa.Schema) -> int:
    """Check one record against the schema; returns about how many bytes it takes.

    Raises:
        RecordTypeError: it does not fit; names column, value and type.
    """
    return sum(_check_value(value, field) for value, field in zip(_values(record, schema), schema, strict=True))


def to_batch(records: Sequence[object], schema: pa.Schema) -> pa.RecordBatch:
    """Many records to one batch.

    Raises:
        RecordTypeError: one does not fit the schema.
    """
    if len(schema) == 1:
        columns: list[Sequence[object]] = [records]
    else:
        columns = list(zip(*(_values(record, schema) for record in records), strict=True)) or [()] * len(schema)
    arrays = []
    for values, field in zip(columns, schema, strict=True):
        try:
            arrays.append(pa.array(values, type=field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise RecordTypeError(f"column {field.name!r} is {field.type}: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch with exactly this schema.

    Raises:
        RecordTypeError: it has other columns or types.
    """
    if batch.schema.equals(schema):
        return batch
    if batch.schema.names != schema.names or batch.schema.types != schema.types:
        raise RecordTypeError(f"the batch has {_describe(batch.schema)}, the receiver declares {_describe(schema)}")
    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _describe(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _values(record: object, schema: pa.Schema) -> Sequence[object]:
    if len(schema) == 1:
        return (record,)
    if isinstance(record, Mapping) and set(record) <= set(schema.names):
        return [record.get(name) for name in schema.names]
    if isinstance(record, tuple) and len(record) == len(schema):
        return record
    raise RecordTypeError(
        f"{record!r:.100} is no record of ({_describe(schema)}): give a mapping by name or a tuple of {len(schema)}"
    )


def _check_value(value: object, field: pa.Field) -> int:
    try:
        scalar = pa.scalar(value, type=field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise RecordTypeError(
            f"column {field.name!r} is {field.type}, found {value!r:.100} ({type(value).__name__}): {error}"
        ) from error
    if isinstance(value, str | bytes):
        return len(value) + 4
    return 8 if not isinstance(value, list | dict | tuple) else len(repr(scalar))

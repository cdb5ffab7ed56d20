"""Turn records as a receiver has them into Arrow record batches of its schema.

A record is a bare value if the schema has one column, else a mapping by column name or a tuple in column order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal

import pyarrow as pa

from receiver_runtime.block_store.frames.columns import arrow_schema

# Types whose values can't change after the hand-over; all have a fixed size in Arrow.
_UNCHANGING = (bool, int, float, date, time, timedelta, Decimal)
_FIXED_BYTES = 16
_OFFSET_BYTES = 4


class RecordTypeError(TypeError):
    """Convert the record before it is stored, or correct the receiver's schema: the record does not fit it."""


def schema_of(columns: Sequence[tuple[str, str]]) -> pa.Schema:
    """Return an Arrow schema from (name, Arrow type by name). Raises ColumnsError."""
    return arrow_schema(columns)


def takes_bytes(schema: pa.Schema) -> bool:
    """Return whether ``bytes`` can be one record: there is one column, and it is binary or text."""
    if len(schema) != 1:
        return False
    kind = schema.field(0).type
    return any(is_it(kind) for is_it in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string))


def from_bytes(data: bytes | bytearray | memoryview | pa.Buffer) -> pa.Table:
    """Return the records of an Arrow IPC stream.

    Raises:
        RecordTypeError: it is no such stream, or is cut off.
    """
    try:
        with pa.ipc.open_stream(data) as reader:
            return reader.read_all()
    except (pa.ArrowException, OSError) as error:
        raise RecordTypeError(
            f"{len(data) if not isinstance(data, pa.Buffer) else data.size} bytes are no Arrow IPC stream ({error}): "
            "store records, or what pyarrow.ipc.new_stream wrote with the receiver's schema"
        ) from error


def many_of(data: object, schema: pa.Schema) -> pa.RecordBatch | pa.Table | Sequence[object] | None:
    """Return the records of data that holds many, as ``Receiver.store`` takes them; None: the data is one record.

    Raises:
        RecordTypeError: bytes are no Arrow IPC stream.
    """
    if isinstance(data, pa.Buffer) or (isinstance(data, bytes | bytearray | memoryview) and not takes_bytes(schema)):
        return from_bytes(data)
    if isinstance(data, pa.RecordBatchReader):
        return data.read_all()
    if isinstance(data, Iterator):
        return list(data)
    return data if isinstance(data, pa.RecordBatch | pa.Table | list) else None


def to_batches(records: pa.RecordBatch | pa.Table | Sequence[object], schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return many records as batches of this schema, none of them empty.

    Raises:
        RecordTypeError: they have other columns or types, or one record does not fit.
    """
    if isinstance(records, pa.RecordBatch):
        batches = [conform(records, schema)]
    elif isinstance(records, pa.Table):
        batches = [conform(batch, schema) for batch in records.to_batches()]
    else:
        batches = [to_batch(records, schema)]
    return [batch for batch in batches if batch.num_rows]


def keep_record(record: object, schema: pa.Schema) -> tuple[object, int]:
    """Check one record against the schema and make it safe to keep.

    Return it as ``to_batch`` takes it, and how many bytes its data takes. The caller's later changes to its own lists
    and buffers do not change what is returned.

    Raises:
        RecordTypeError: it does not fit; names column, value and type.
    """
    if len(schema) == 1:
        return _keep_value(record, schema.field(0))
    kept, sizes = zip(
        *(_keep_value(value, field) for value, field in zip(_values(record, schema), schema, strict=True)), strict=True
    )
    return kept, sum(sizes)


def to_batch(records: Sequence[object], schema: pa.Schema) -> pa.RecordBatch:
    """Turn many records into one batch.

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
    """Return the batch with exactly this schema.

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


def _keep_value(value: object, field: pa.Field) -> tuple[object, int]:
    try:
        scalar = pa.scalar(value, type=field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise RecordTypeError(
            f"column {field.name!r} is {field.type}, found {value!r:.100} ({type(value).__name__}): {error}"
        ) from error
    if isinstance(value, str | bytes):
        return value, _OFFSET_BYTES + len(value if isinstance(value, bytes) or value.isascii() else value.encode())
    if value is None or isinstance(value, _UNCHANGING):
        return value, _FIXED_BYTES
    # The scalar has its own copy.
    return scalar, pa.array([scalar], type=field.type).nbytes + _OFFSET_BYTES

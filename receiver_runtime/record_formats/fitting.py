"""Fit columns of a schema to the columns of a stream: by name, and to a wider type where nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

_WIDER = {
    (pa.int32(), pa.int64()),
    (pa.uint32(), pa.int64()),
    (pa.float32(), pa.float64()),
    (pa.int32(), pa.float64()),
}


def misfits(kind: pa.DataType, wanted: pa.DataType, place: str) -> Iterator[str]:
    """Yield why values of a type can't be stored as another one without a loss; nothing if they can."""
    if kind == wanted or (kind, wanted) in _WIDER:
        return
    if pa.types.is_struct(kind) and pa.types.is_struct(wanted):
        for field in kind:
            index = wanted.get_field_index(field.name)
            if index < 0:
                yield f"{place}.{field.name} is new within a column, which keeps its type"
            else:
                yield from misfits(field.type, wanted.field(index).type, f"{place}.{field.name}")
    elif pa.types.is_list(kind) and pa.types.is_list(wanted):
        yield from misfits(kind.value_type, wanted.value_type, f"{place}[]")
    elif pa.types.is_map(kind) and pa.types.is_map(wanted) and kind.key_type == wanted.key_type:
        yield from misfits(kind.item_type, wanted.item_type, f"{place}{{}}")
    else:
        yield f"{place} is {kind}, and the stream has {wanted}"


def fit(values: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return values, which have no misfit, as a type."""
    if values.type == wanted:
        return values
    if pa.types.is_struct(wanted):
        absent = values.is_null() if values.null_count else None
        parts = []
        for field in wanted:
            index = values.type.get_field_index(field.name)
            found = pa.nulls(len(values), field.type) if index < 0 else fit(values.field(index), field.type)
            parts.append(found)
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=absent)
    if pa.types.is_list(wanted):
        return pa.ListArray.from_arrays(
            values.offsets, fit(values.values, wanted.value_type), type=wanted, mask=_mask(values)
        )
    if pa.types.is_map(wanted):
        return pa.MapArray.from_arrays(
            values.offsets, values.keys, fit(values.items, wanted.item_type), type=wanted, mask=_mask(values)
        )
    return values.cast(wanted)


def fitted(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch with the columns of a schema: null where it has none of the name."""
    if batch.schema.equals(schema):
        return batch
    at = {name.lower(): index for index, name in enumerate(batch.schema.names)}
    return pa.RecordBatch.from_arrays(
        [
            pa.nulls(batch.num_rows, field.type)
            if (index := at.get(field.name.lower())) is None
            else fit(batch.column(index), field.type)
            for field in schema
        ],
        schema=schema,
    )


def _mask(values: pa.Array) -> pa.Array | None:
    return values.is_null() if values.null_count else None

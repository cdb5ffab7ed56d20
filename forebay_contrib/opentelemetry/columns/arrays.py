"""Make Arrow columns of values that many messages have, with no Python object for each but the value itself.

What OTLP leaves out is null. A value that a column can't have raises ValueError: the caller then looks for its record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from forebay_contrib.opentelemetry.values import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

#: The bytes of a trace's and of a span's id.
TRACE_ID, SPAN_ID = 16, 8
_MOST = 2**63 - 1
_TIME = pa.timestamp("us", tz="UTC")


def texts(values: Iterable[str]) -> pa.StringArray:
    """Return texts; null for an empty one."""
    return pa.array([value or None for value in values], pa.string())


def ids(values: Sequence[bytes], size: int) -> pa.StringArray:
    """Return ids in hexadecimal; null for an empty one. Raises ValueError for one of another length."""
    lengths = set(map(len, values))
    if odd := lengths - {0, size}:
        raise ValueError(f"an id has {min(odd)} bytes: it has {size}, or none")
    if lengths != {size}:
        return pa.array([value.hex() or None for value in values], pa.string())
    offsets = np.arange(len(values) + 1, dtype=np.int32) * (2 * size)
    data = b"".join(values).hex().encode()
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(offsets), pa.py_buffer(data))


def numbers(values: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return whole numbers. Raises ValueError for one that is no BIGINT."""
    found = np.array(values, np.uint64 if not values or min(values) >= 0 else np.int64)
    if len(found) and int(found.max()) > _MOST:
        raise ValueError(f"{found.max()} is more than a BIGINT can be")
    return found.astype(np.int64)


def whole(values: Sequence[int]) -> pa.Int64Array:
    """Return whole numbers as a column."""
    return pa.array(numbers(values))


def times(values: Sequence[int]) -> tuple[pa.TimestampArray, pa.Int64Array]:
    """Return times, given in nanoseconds, in microseconds and as they are; null for 0."""
    found = numbers(values)
    absent = found == 0
    return pa.array(found // 1000, pa.int64(), mask=absent).cast(_TIME), pa.array(found, mask=absent)


def attribute_maps(lists: Iterable[Iterable[KeyValue]]) -> pa.MapArray:
    """Return attributes, their values as text. Raises ValueError for one that is there twice."""
    keys: list[str] = []
    values: list[str | None] = []
    offsets = [0]
    begin = 0
    for attributes in lists:
        for attribute in attributes:
            keys.append(attribute.key)
            values.append(text(attribute.value))
        end = len(keys)
        if end - begin > 1 and len(set(keys[begin:])) < end - begin:
            raise ValueError(f"one of the attributes {keys[begin:]!r:.100} is there twice")
        offsets.append(end)
        begin = end
    return pa.MapArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(keys, pa.string()), pa.array(values, pa.string())
    )


def lists_of(counts: Sequence[int], items: pa.Array) -> pa.ListArray:
    """Return items as lists with these numbers of them."""
    return pa.ListArray.from_arrays(
        pa.array(np.concatenate([[0], np.cumsum(counts, dtype=np.int32)]), pa.int32()), items
    )


def structs(kind: pa.StructType, columns: Sequence[pa.Array]) -> pa.StructArray:
    """Return columns as structs of a type."""
    return pa.StructArray.from_arrays(list(columns), fields=[kind.field(index) for index in range(kind.num_fields)])


def names(values: Sequence[int], known: Sequence[str]) -> pa.StringArray:
    """Return the names of an enum's values; of one that is not known here, its number."""
    return pa.array([known[value] if 0 <= value < len(known) else str(value) for value in values], pa.string())


def fields(messages: Iterable[Any], name: str) -> list[Any]:
    """Return one field of each message."""
    return [getattr(message, name) for message in messages]

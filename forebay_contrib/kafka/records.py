"""Make Kafka's records of a result's rows, in blocks of Arrow's format, and refuse the rows that can't be records.

Runs in Spark's Python workers, so it loads neither Spark nor Dagster nor Kafka's client.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from orchestration.sinks.refused_rows import (
    TEXT_WAY_OUT,
    RefusedRow,
    RefusedRows,
    number_as_text,
    readable_row,
    row_as_json,
    shown,
    take_good_text,
    time_text,
    times_as_text,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa

#: The columns of a task's answers, as Spark's DDL: a block of records each, how many there are, and its size.
ANSWER: Final = "records BIGINT, topics ARRAY<STRING>, bytes BIGINT, block BINARY"
#: What `value` says of the whole row as a JSON object.
AS_JSON: Final = "json"
#: Bytes that a record has beside its key, value and headers, at most: what the client and a batch of records add.
OVERHEAD: Final = 512
# Bytes of rows in a block, about.
_BLOCK_BYTES: Final = 4 << 20
#: A topic's name.
TOPIC: Final = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,249}")
_encode = json.JSONEncoder(ensure_ascii=False).encode


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Say which column of a result becomes which part of a record. `value` may be `AS_JSON`: what is left as JSON.

    `most_bytes`: of one record. `needs_key`: the topic takes no record whose key is null.
    """

    key: str | None
    value: str
    headers: str | None
    topic: str | None
    most_bytes: int
    needs_key: bool = False

    def of_value(self, names: Iterable[str]) -> list[str]:
        """Return the columns in the JSON of a value."""
        return [name for name in names if name not in (self.headers, self.topic)]

    def blocks(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the answers of a task. Raises RefusedRowsError."""
        import pyarrow as pa  # noqa: PLC0415

        refused = RefusedRows(way_out=TEXT_WAY_OUT)
        for batch in batches:
            for rows in _parts(batch):
                for good in take_good_text(rows, refused):
                    records = self._records(good, refused)
                    if refused.rows:
                        # It will fail: go on only to name more rows.
                        continue
                    block, topics = _packed(records), records["topic"].unique().drop_null().to_pylist()
                    yield pa.record_batch(
                        [
                            pa.array([records.num_rows], pa.int64()),
                            pa.array([topics], pa.list_(pa.string())),
                            pa.array([len(block)], pa.int64()),
                            pa.array([block], pa.binary()),
                        ],
                        names=["records", "topics", "bytes", "block"],
                    )
        refused.end()

    def _records(self, batch: pa.RecordBatch, refused: RefusedRows) -> pa.RecordBatch:
        """Return the records of rows; add those that can't be records to `refused`."""
        import pyarrow as pa  # noqa: PLC0415

        rows = batch.num_rows
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        topic = pa.nulls(rows, pa.string()) if self.topic is None else columns[self.topic]
        key = pa.nulls(rows, pa.binary()) if self.key is None else columns[self.key].cast(pa.binary())
        headers = pa.nulls(rows, _HEADERS()) if self.headers is None else _headers(columns[self.headers])
        try:
            value = self._value(columns)
        except _RepeatedKeyError:
            # Rare: find the rows.
            self._refuse_each(batch, refused)
            return _table(topic, key, pa.nulls(rows, pa.binary()), headers)
        if self.topic is not None:
            for at, name in enumerate(topic.to_pylist()):
                if name is None or not TOPIC.fullmatch(name):
                    _refuse(batch, at, f"column {self.topic} is {shown(name)}, which is no topic's name", refused)
        if self.needs_key and key.null_count:
            for at in (at for at, is_null in enumerate(key.is_null().to_pylist()) if is_null):
                _refuse(
                    batch, at, f"column {self.key} is null, and its topic, which is compacted, needs a key", refused
                )
        for at, size in _larger(self.most_bytes - OVERHEAD, (key, value), headers):
            most = f"{self.most_bytes - OVERHEAD} (message.max.bytes or the topic's max.message.bytes, less {OVERHEAD})"
            why = f"its record has {size} bytes, and may have {most}"
            _refuse(batch, at, why, refused)
        return _table(topic, key, value, headers)

    def _value(self, columns: dict[str, pa.Array]) -> pa.Array:
        import pyarrow as pa  # noqa: PLC0415

        if self.value != AS_JSON:
            return columns[self.value].cast(pa.binary())
        names = self.of_value(columns)
        template = "{" + ", ".join(f"{_encode(name)}: ".replace("%", "%%") + "%s" for name in names) + "}"
        fragments = [_fragments(name, columns[name]) for name in names]
        if not names:
            return pa.array([b"{}"] * len(next(iter(columns.values()))))
        return pa.array([template % row for row in zip(*fragments, strict=True)], pa.string()).cast(pa.binary())

    def _refuse_each(self, batch: pa.RecordBatch, refused: RefusedRows) -> None:
        for at in range(batch.num_rows):
            row = batch.slice(at, 1)
            try:
                self._value(dict(zip(row.schema.names, row.columns, strict=True)))
            except _RepeatedKeyError as error:
                _refuse(batch, at, f"column {error.column}: {error}", refused)


class _RepeatedKeyError(Exception):
    """This map has two keys that are one name in JSON, which keeps one of them. `column`: the map's."""

    column = ""


def unpacked(block: bytes) -> pa.RecordBatch:
    """Return the records of a block: `topic` (null: the sink's), `key`, `value`, `headers`."""
    import pyarrow as pa  # noqa: PLC0415

    with pa.ipc.open_stream(block) as stream:
        return stream.read_next_batch()


def _packed(records: pa.RecordBatch) -> bytes:
    import pyarrow as pa  # noqa: PLC0415

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, records.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
        stream.write_batch(records)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield the rows in parts of about `_BLOCK_BYTES`."""
    if batch.num_rows:
        rows = max(1, batch.num_rows * _BLOCK_BYTES // max(1, batch.nbytes))
        for begin in range(0, batch.num_rows, rows):
            yield batch.slice(begin, rows)


def _HEADERS() -> pa.DataType:  # noqa: N802  a constant, whose import waits
    import pyarrow as pa  # noqa: PLC0415

    return pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def _headers(column: pa.Array) -> pa.Array:
    """Return maps as lists of their entries."""
    import pyarrow as pa  # noqa: PLC0415

    lists = [
        None if entries is None else [{"key": key, "value": _bytes(value)} for key, value in entries]
        for entries in column.to_pylist()
    ]
    return pa.array(lists, _HEADERS())


def _bytes(value: str | bytes | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _table(*columns: pa.Array) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415

    return pa.record_batch(list(columns), names=["topic", "key", "value", "headers"])


def _larger(most: int, columns: Sequence[pa.Array], headers: pa.Array) -> list[tuple[int, int]]:
    """Return the rows whose bytes are more, and how many."""
    from pyarrow import compute  # noqa: PLC0415

    sizes = [compute.fill_null(compute.binary_length(column), 0) for column in columns]
    total = compute.add(*sizes)
    of_headers = headers.null_count < len(headers)
    if not of_headers and (compute.max(total).as_py() or 0) <= most:
        return []
    found = total.to_pylist()
    if of_headers:
        for at, entries in enumerate(headers.to_pylist()):
            found[at] += sum(len(one["key"].encode()) + len(one["value"] or b"") for one in entries or ())
    return [(at, size) for at, size in enumerate(found) if size > most]


def _refuse(batch: pa.RecordBatch, at: int, why: str, refused: RefusedRows) -> None:
    import pyarrow as pa  # noqa: PLC0415

    row = readable_row(batch.take(pa.array([at])))
    refused.add(RefusedRow(row_as_json(row), why))


def _fragments(name: str, column: pa.Array) -> list[str]:
    """Return each value of a column as JSON."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import types  # noqa: PLC0415

    if types.is_integer(column.type) or types.is_boolean(column.type):
        texts: list[str] = column.cast(pa.string()).fill_null("null").to_pylist()
        return texts
    if types.is_floating(column.type):
        return ["null" if value is None else _number(value) for value in column.to_pylist()]
    if types.is_string(column.type) or types.is_large_string(column.type):
        return ["null" if value is None else _encode(value) for value in column.to_pylist()]
    try:
        # The types are those of before, in which times are times.
        return [_encode(_jsonable(value, column.type)) for value in times_as_text(column).to_pylist()]
    except _RepeatedKeyError as error:
        error.column = name
        raise


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'"{number_as_text(value)}"'


def _jsonable(value: Any, type_: pa.DataType) -> Any:  # noqa: ANN401  any value of a column
    """Convert a value as `PostgresSink` does within its jsonb: text for what JSON has not."""
    from pyarrow import types  # noqa: PLC0415

    if value is None:
        return None
    if types.is_map(type_):
        found: dict[str, Any] = {}
        for key, item in value:
            of_key = _jsonable(key, type_.key_type)
            name = of_key if isinstance(of_key, str) else _encode(of_key)
            if name in found:
                raise _RepeatedKeyError(f"its key {shown(name)} is there twice, and an object of JSON keeps one")
            found[name] = _jsonable(item, type_.item_type)
        return found
    if types.is_struct(type_):
        return {entry.name: _jsonable(value[entry.name], entry.type) for entry in type_}
    if types.is_list(type_) or types.is_large_list(type_):
        return [_jsonable(item, type_.value_type) for item in value]
    return time_text(value, type_) if types.is_date(type_) or types.is_timestamp(type_) else _scalar(value)


def _scalar(value: Any) -> Any:  # noqa: ANN401
    match value:
        case bytes():
            return value.hex()
        case Decimal():
            return f"{value:f}"
        case float() if not math.isfinite(value):
            return number_as_text(value)
    return value

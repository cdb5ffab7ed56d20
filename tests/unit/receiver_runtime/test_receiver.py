"""Check what a receiver may pass to `store`, and what it declares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from receiver_runtime.block_path.records import RecordTypeError
from receiver_runtime.block_store.frames.columns import FINGERPRINT_KEY, ColumnsError, fingerprint_of
from tests.unit.receiver_runtime.rig import HandReceiver, Rig, running
from tests.unit.receiver_runtime.support import eventually
from tracker_store.connection.errors import EmptyBlockError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from receiver_runtime.supervisor.receiver import Receiver

TWO = pa.schema([("word", pa.string()), ("count", pa.int64())])
ROWS: list[dict[str, Any]] = [{"word": "a", "count": 1}, {"word": "b", "count": None}]


class Counts(HandReceiver):
    columns = (("word", "string"), ("count", "int64"))


class Raw(HandReceiver):
    columns = (("value", "binary"),)


def stream_of(schema: pa.Schema, rows: list[dict[str, Any]]) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=schema))
    return sink.getvalue()


def rows_of(made: Rig) -> list[dict[str, Any]]:
    return [row for batch in batches_of(made) for row in batch.to_pylist()]


def batches_of(made: Rig) -> list[pa.RecordBatch]:
    return [
        batch
        for block in made.log.chain(1)
        for batch in made.store.read_batches(
            made.rows.paths[block.handle.segment_id], block.handle.offset, block.handle.length, block.handle.crc32c
        )
    ]


@pytest.mark.parametrize(
    "as_bytes",
    [pa.Buffer.to_pybytes, bytearray, memoryview, lambda buffer: buffer],
    ids=["bytes", "", "view", "buffer"],
)
def test_r02_serialised_records_are_one_block_that_is_registered_on_return(
    tmp_path: Path, as_bytes: Callable[[pa.Buffer], object]
) -> None:
    receiver = Counts()
    with running(tmp_path, receiver, block_interval="300s") as made:
        receiver.store(as_bytes(stream_of(TWO, ROWS)))
        assert rows_of(made) == ROWS


@pytest.mark.parametrize("receiver", [Raw(), HandReceiver()], ids=["binary", "text"])
def test_r02_bytes_are_one_record_where_the_one_column_takes_them(tmp_path: Path, receiver: Receiver) -> None:
    serialised = stream_of(receiver.record_schema, [{"value": b"of a stream"}])
    with running(tmp_path, receiver) as made:
        receiver.store(b"alone")
        eventually(lambda: made.log.chain(1), "the block of the buffer")
        # A pyarrow buffer is never taken for a record.
        receiver.store(serialised)
        assert [
            bytes(str(row["value"]), "ascii") if isinstance(row["value"], str) else row["value"]
            for row in rows_of(made)
        ] == [
            b"alone",
            b"of a stream",
        ]


def test_r02_bytes_that_are_no_stream_of_the_schema_are_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    receiver = Counts()
    whole = stream_of(TWO, ROWS).to_pybytes()
    with running(tmp_path, receiver) as made:
        for bad in (b"", b"no stream", whole[: len(whole) // 2]):
            with pytest.raises(RecordTypeError, match=f"{len(bad)} bytes are no Arrow IPC stream"):
                receiver.store(bad)
        other = pa.schema([("word", pa.string()), ("count", pa.float64())])
        with pytest.raises(RecordTypeError, match="the batch has word: string, count: double, the receiver declares"):
            receiver.store(stream_of(other, [{"word": "a", "count": 1.0}]))
        wrong = pa.RecordBatch.from_pylist([{"word": "a", "count": 1.0}], schema=other)
        for push in (receiver.store_buffered, made.supervisor.block_path.push_if_free):
            with pytest.raises(RecordTypeError, match="the batch has word: string, count: double"):
                push(wrong)
        made.stop()
        assert rows_of(made) == []


def test_h05_many_records_that_are_none_are_refused_and_receiving_goes_on(tmp_path: Path) -> None:
    receiver = Counts()
    no_rows = pa.RecordBatch.from_pylist([], schema=TWO)
    with running(tmp_path, receiver) as made:
        nothing: list[object] = [[], iter(()), no_rows, pa.Table.from_batches([no_rows]), stream_of(TWO, [])]
        for records in nothing:
            with pytest.raises(EmptyBlockError, match="receiver 1 stored many records as one block, and there were 0"):
                receiver.store(records)
        # Nothing is stored by this, so nothing is refused: a block is cut from a buffer that holds something.
        receiver.store_buffered([])
        assert made.rows.paths == {}
        receiver.store([("a", 1)])
        assert made.stop().drained
        assert rows_of(made) == [{"word": "a", "count": 1}]


def test_an_arrow_schema_overrides_columns_and_blocks_carry_its_fingerprint(tmp_path: Path) -> None:
    class Declared(HandReceiver):
        schema = pa.schema([("at", pa.timestamp("us", tz="UTC"))], metadata={"made": "by hand"})

    receiver = Declared()
    with running(tmp_path, receiver) as made:
        receiver.store(pa.record_batch([pa.array([1], pa.timestamp("us", tz="UTC"))], names=["at"]))
        [batch] = batches_of(made)
        assert batch.schema.metadata == {
            b"made": b"by hand",
            FINGERPRINT_KEY: fingerprint_of([("at", "timestamp[us, tz=UTC]")]).encode(),
        }


def test_columns_of_an_unknown_type_are_refused_by_name() -> None:
    class Wrong(HandReceiver):
        columns = (("value", "text"),)

    with pytest.raises(ColumnsError, match="there is no type 'text' for a column"):
        _ = Wrong().record_schema

"""Check that a block is compressed while the one before it is written: the timer encodes, a push thread writes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from receiver_runtime.block_path.block_generator import BlockGenerator
from receiver_runtime.block_path.block_handler import EncodedBlock
from receiver_runtime.block_path.load.rate_limiter import RateLimiter
from receiver_runtime.block_store.frames.payload import decode_batches, encode_batches
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from tests.unit.receiver_runtime.block_path.recording_pusher import RecordingPusher
from tests.unit.receiver_runtime.support import ManualClock, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from receiver_runtime.block_path.block import Block

SCHEMA = pa.schema([("value", pa.string())])


class EncodingPusher(RecordingPusher):
    """Encodes as the test says; pushes wait until `gate` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate.clear()
        self.waits = threading.Event()
        self.encoder: Callable[[Sequence[pa.RecordBatch]], EncodedBlock] = Encoder()

    def encode(self, batches: Sequence[pa.RecordBatch]) -> EncodedBlock:
        return self.encoder(batches)

    def choose_codec(self, block: Block) -> None:
        assert block.encoded is None

    def push(self, block: Block) -> None:
        self.waits.set()
        super().push(block)


class Encoder:
    """Encodes, or fails while `broken` is set."""

    def __init__(self) -> None:
        self.encoded = 0
        self.broken = False

    def __call__(self, batches: Sequence[pa.RecordBatch]) -> EncodedBlock:
        if self.broken:
            raise MemoryError("no room")
        self.encoded += 1
        return EncodedBlock([encode_batches(SCHEMA, batches)], sum(batch.num_rows for batch in batches))


def _generator(pusher: EncodingPusher, encoder: Encoder) -> BlockGenerator:
    pusher.encoder = encoder
    settings = ReceiverSettings.model_construct(block_interval=0.001, block_queue_size=3)
    made = BlockGenerator(pusher, SCHEMA, limiter=RateLimiter(), settings=settings, name="test")
    made.start()
    return made


def test_a_block_is_encoded_while_the_one_before_it_is_written() -> None:
    pusher, encoder = EncodingPusher(), Encoder()
    made = _generator(pusher, encoder)
    try:
        made.add_multiple_data(pa.record_batch([pa.array(["first"])], schema=SCHEMA))
        assert pusher.waits.wait(30)
        made.add_multiple_data(pa.record_batch([pa.array(["second"])], schema=SCHEMA))
        eventually(lambda: encoder.encoded == 2)
        assert not pusher.pushed
    finally:
        pusher.gate.set()
    made.stop()
    blocks = [block.encoded for block in pusher.pushed]
    values = [
        [value for batch in decode_batches(encoded.payload[0]) for value in batch.column(0).to_pylist()]
        for encoded in blocks
        if encoded is not None
    ]
    assert values == [["first"], ["second"]]
    assert [encoded.records for encoded in blocks if encoded is not None] == [1, 1]
    # A waiting block is held once, in its smaller, encoded form.
    assert [block.batches for block in pusher.pushed] == [(), ()]


def test_a_block_that_could_not_be_encoded_ahead_is_pushed_unencoded() -> None:
    pusher, encoder = EncodingPusher(), Encoder()
    encoder.broken = True
    pusher.gate.set()
    made = _generator(pusher, encoder)
    made.add_multiple_data(pa.record_batch([pa.array(["first"])], schema=SCHEMA))
    eventually(lambda: len(pusher.pushed) == 1)
    encoder.broken = False
    made.add_multiple_data(pa.record_batch([pa.array(["second"])], schema=SCHEMA))
    made.stop()
    first, second = pusher.pushed
    assert first.encoded is None
    assert [batch.column(0).to_pylist() for batch in first.batches] == [["first"]]
    assert pusher.errors == ["block 1 could not be encoded, it is tried again when it is pushed: no room"]
    assert second.encoded is not None


def _full_block() -> pa.RecordBatch:
    return pa.record_batch([pa.array(["x" * 1000])], schema=SCHEMA)


def test_a_block_says_how_long_it_waited_for_the_encoder_and_not_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    pusher, clock, gate = EncodingPusher(), ManualClock(), threading.Semaphore(0)
    cut: list[Block] = []
    monkeypatch.setattr(pusher, "choose_codec", cut.append)

    def encode(batches: Sequence[pa.RecordBatch]) -> EncodedBlock:
        assert gate.acquire(timeout=30)
        return EncodedBlock([encode_batches(SCHEMA, batches)], sum(batch.num_rows for batch in batches))

    pusher.encoder = encode
    made = BlockGenerator(
        pusher,
        SCHEMA,
        limiter=RateLimiter(clock=clock),
        settings=ReceiverSettings.model_construct(block_queue_size=1, max_block_bytes=_full_block().nbytes),
        clock=clock,
    )
    made.start()
    try:
        made.add_multiple_data(_full_block())
        eventually(lambda: len(cut) == 1)
        # It is full while the first one is being encoded.
        made.add_multiple_data(_full_block())
        clock.advance(0.05)
        gate.release()
        eventually(lambda: len(cut) == 2)
        assert (cut[0].seconds, cut[0].waited, cut[1].seconds, cut[1].waited) == pytest.approx((0, 0, 0.05, 0.05))
        # The first is being pushed and the second waits on the queue; so the third, and what comes after it, waits.
        assert pusher.waits.wait(30)
        gate.release()
        eventually(lambda: made.waiting_blocks == 1)
        made.add_multiple_data(_full_block())
        eventually(lambda: len(cut) == 3)
        gate.release()
        eventually(lambda: made._queue.held is not None)
        made.add_multiple_data(_full_block())
        clock.advance(0.1)
        pusher.gate.set()
        eventually(lambda: len(cut) == 4)
        assert (cut[3].seconds, cut[3].waited) == pytest.approx((0.1, 0))
    finally:
        pusher.gate.set()
        gate.release(10)
        made.abort()

"""Attack a reader with frames whose checksums are right and whose content is forged."""

from __future__ import annotations

import pyarrow as pa
import pytest

from receiver_runtime.block_store.frames.encryption import BlockKeys
from receiver_runtime.block_store.frames.errors import BlockCorruptError
from receiver_runtime.block_store.frames.frame import encode_frame
from receiver_runtime.block_store.frames.payload import encode_batches
from receiver_runtime.block_store.frames.reading import batches_of, checked_frame
from tests.support.receivers.frame_fields import block_fields


def offsets(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(4, "little", signed=True) for number in numbers)


def read(payload: pa.Buffer | bytes) -> list[pa.RecordBatch]:
    frame = encode_frame(payload, block_fields(sequence=2, records=2))
    data = b"".join(bytes(part) for part in frame.buffers)
    found = checked_frame(data, "a.segment", 0, frame.length, frame.crc32c)
    return list(batches_of(found, "a.segment", 0, BlockKeys()))


SCHEMA = pa.schema([("value", pa.string())])
RIGHT = pa.record_batch([pa.array(["ab", "cd"])], schema=SCHEMA)
FORGED = {
    "offsets far behind the data": (offsets(0, 2, 4), offsets(0, 2, 2**30)),
    "negative offsets": (offsets(0, 2, 4), offsets(0, -(2**30), 4)),
    "offsets that go back": (offsets(0, 2, 4), offsets(0, 4, 2)),
    "bytes that are no UTF-8": (b"abcd", b"\xff\xfe\xfd\xfc"),
}


@pytest.mark.parametrize(("was", "forged"), FORGED.values(), ids=FORGED.keys())
def test_a_forged_block_with_right_checksums_is_refused(was: bytes, forged: bytes) -> None:
    payload = bytes(encode_batches(SCHEMA, [RIGHT], compression="none"))
    assert payload.count(was) == 1
    with pytest.raises(BlockCorruptError, match=r"a\.segment, offset 0, is corrupt"):
        read(payload.replace(was, forged))


def test_bytes_that_are_no_arrow_stream_are_refused() -> None:
    whole = bytes(encode_batches(SCHEMA, [RIGHT]))
    for forged in (b"no stream", b"\xff\xff\xff\xff\xff\xff\xff\x7f" * 4, whole[:-60]):
        with pytest.raises(BlockCorruptError):
            read(forged)


def test_a_right_block_is_read() -> None:
    assert read(encode_batches(SCHEMA, [RIGHT])) == [RIGHT]

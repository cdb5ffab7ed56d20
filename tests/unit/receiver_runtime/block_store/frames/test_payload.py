from __future__ import annotations

import threading
from typing import TYPE_CHECKING, get_args

import pyarrow as pa
import pytest

from receiver_runtime.block_path.block_handler import BlockHandler
from receiver_runtime.block_store.frames.errors import BlockCorruptError
from receiver_runtime.block_store.frames.payload import (
    Compression,
    decode_batches,
    encode_batches,
    encode_parts,
)
from receiver_runtime.block_store.frames.segment import IntactFrame
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from tests.unit.receiver_runtime.support import make_log

if TYPE_CHECKING:
    from pathlib import Path


CODECS: tuple[Compression, ...] = get_args(Compression)
SCHEMA = pa.schema([("value", pa.string()), ("offset", pa.int64())])
BATCHES = [
    pa.record_batch([pa.array(values, pa.string()), pa.array(numbers, pa.int64())], schema=SCHEMA)
    for values, numbers in (
        ([f"line {n}" for n in range(5000)], list(range(5000))),
        ([None, "", "ü" * 100], [None, 0, -1]),
        ([], []),
    )
]


def test_batches_survive_every_compression() -> None:
    for compression in CODECS:
        payload = encode_batches(SCHEMA, BATCHES, compression=compression)
        assert list(decode_batches(payload)) == BATCHES
        with pa.ipc.open_stream(payload) as reader:
            assert reader.schema.equals(SCHEMA)


def test_a_payload_encoded_in_parts_has_the_same_bytes() -> None:
    for compression in CODECS:
        parts = encode_parts(SCHEMA, BATCHES, compression=compression)
        assert b"".join(parts) == encode_batches(SCHEMA, BATCHES, compression=compression).to_pybytes()


def test_threads_that_share_a_block_make_the_same_bytes() -> None:
    dictionary = pa.array(["a", "b"] * 50_000).dictionary_encode()
    wide = pa.record_batch({"value": pa.array([f"{number:099}" for number in range(10_000)])})
    narrow = pa.record_batch({"kind": dictionary.slice(0, 100_000)})
    for batches, threads, shares in (
        ([wide] * 16, 2, 2),
        ([wide] * 16, 4, 4),
        # Sizes differ, and each thread gets one at least.
        ([wide, wide.slice(0, 9), wide, wide.slice(9, 2000), wide], 3, 3),
        # A MiB for each thread, or they are not worth it.
        ([wide, wide], 4, 2),
        ([wide.slice(0, 5000), wide.slice(5000)], 4, 1),
        ([wide], 4, 1),
    ):
        for compression in ("lz4", "zstd"):
            parts = encode_parts(wide.schema, batches, compression=compression, threads=threads)
            assert len(parts) == shares
            assert b"".join(parts) == encode_batches(wide.schema, batches, compression=compression).to_pybytes()
    # Each thread writes the dictionary, which a stream may do again.
    parts = encode_parts(narrow.schema, [narrow] * 20, threads=2)
    assert len(parts) == 2
    assert list(decode_batches(pa.py_buffer(b"".join(parts)))) == [narrow] * 20


def test_a_block_is_encoded_by_its_own_thread_where_the_system_has_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    batch = pa.record_batch({"value": pa.array([f"{number:099}" for number in range(10_000)])})
    monkeypatch.setattr(threading.Thread, "start", start)
    [part] = encode_parts(batch.schema, [batch] * 4, threads=2)
    assert list(decode_batches(part)) == [batch] * 4


def test_uncompressed_data_is_not_copied_except_small_batches() -> None:
    large = pa.record_batch([pa.array(["x" * 99] * 10_000), pa.array(range(10_000), pa.int64())], schema=SCHEMA)
    small = large.slice(0, 10)
    parts = encode_parts(SCHEMA, [large, *[small] * 1000, large], compression="none")
    assert list(decode_batches(pa.py_buffer(b"".join(parts)))) == [large, *[small] * 1000, large]
    [text] = [part for part in parts if part.size == 990_000][:1]
    assert text.address == large.column(0).buffers()[2].address
    # A thousand small batches do not become parts of their own.
    assert len(parts) < 14


def test_the_compressions_differ_in_size_as_expected() -> None:
    size = {compression: encode_batches(SCHEMA, BATCHES, compression=compression).size for compression in CODECS}
    assert size["none"] > sum(batch.nbytes for batch in BATCHES)
    assert size["none"] > 1.5 * size["lz4"]
    assert size["lz4"] > size["zstd"]
    assert encode_batches(SCHEMA, BATCHES).size == size["lz4"]


def test_a_payload_of_another_writer_is_read_whatever_its_options_are() -> None:
    for options in (
        pa.ipc.IpcWriteOptions(),
        pa.ipc.IpcWriteOptions(compression="lz4", use_threads=True),
        pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=9)),
    ):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, SCHEMA, options=options) as writer:
            for batch in BATCHES:
                writer.write_batch(batch)
        assert list(decode_batches(sink.getvalue())) == BATCHES


def test_the_setting_and_the_payload_know_the_same_compressions() -> None:
    assert ReceiverSettings().compression == "auto"
    for compression in ("auto", *CODECS):
        row = ReceiverSettings(compression=compression).to_row()
        assert ReceiverSettings.of_row(row).compression == row["compression"] == compression
    with pytest.raises(ValueError, match="'auto', 'lz4', 'zstd' or 'none'"):
        ReceiverSettings.model_validate({"compression": "gzip"})


def test_blocks_of_every_compression_share_a_segment_and_are_verified(tmp_path: Path) -> None:
    store = LocalBlockStore(tmp_path)
    log = make_log(store)
    blocks = [
        BlockHandler(log, SCHEMA, compression=compression).store_block(BATCHES, sequence=sequence)
        for sequence, compression in enumerate(CODECS, start=1)
    ]
    log.close()
    [path] = store.segment_paths()
    for block in blocks:
        handle = block.handle
        assert list(store.read_batches(path, handle.offset, handle.length, handle.crc32c)) == BATCHES
    found = list(store.scan(path))
    assert [item.crc32c for item in found if isinstance(item, IntactFrame)] == [b.handle.crc32c for b in blocks]
    damaged = bytearray((tmp_path / path).read_bytes())
    for block in blocks:
        damaged[block.handle.offset + block.handle.length - 50] ^= 1
    (tmp_path / path).write_bytes(damaged)
    for block in blocks:
        handle = block.handle
        with pytest.raises(BlockCorruptError):
            store.read_frame(path, handle.offset, handle.length, handle.crc32c)

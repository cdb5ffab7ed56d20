from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from receiver_runtime.block_store.frames.errors import (
    BlockCorruptError,
    BlockMissingError,
    BlockStoreError,
    StoreUnavailableError,
)
from receiver_runtime.block_store.frames.frame import EncodedFrame, encode_frame
from receiver_runtime.block_store.frames.payload import encode_batches
from receiver_runtime.block_store.stores.local import LocalBlockStore
from tests.support.receivers.frame_fields import block_fields
from tests.unit.receiver_runtime.support import FaultyFiles, dead_letter_frame, frame

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("value", pa.string())])


def block_frame(*chunks: list[str]) -> EncodedFrame:
    batches = [pa.record_batch([pa.array(chunk, pa.string())], schema=SCHEMA) for chunk in chunks]
    return encode_frame(
        encode_batches(SCHEMA, batches), block_fields(epoch=2, sequence=3, records=sum(map(len, chunks)))
    )


def stored(store: LocalBlockStore, *frames: EncodedFrame, path: str = "r/1.segment") -> list[int]:
    segment = store.create_segment(path)
    offsets = [segment.append(item) for item in frames]
    segment.sync()
    segment.close()
    return offsets


def test_a_block_is_read_by_its_handle_alone(tmp_path: Path) -> None:
    store = LocalBlockStore(tmp_path / "blocks")
    frames = [block_frame(["a", ""], ["ü" * 1000]), block_frame(["z"])]
    offsets = stored(store, *frames)
    read = [
        [batch.column(0).to_pylist() for batch in store.read_batches("r/1.segment", offset, item.length, item.crc32c)]
        for offset, item in zip(offsets, frames, strict=True)
    ]
    assert read == [[["a", ""], ["ü" * 1000]], [["z"]]]
    with pa.ipc.open_stream(frames[0].payload) as reader:
        assert reader.schema.equals(SCHEMA)


def test_text_is_stored_compressed() -> None:
    lines = [f"UA,EWR,IAH,2013-01-01 05:00,{n}" for n in range(10_000)]
    assert block_frame(lines).length < sum(map(len, lines)) / 2


def test_a_missing_or_too_short_file_is_a_missing_block(tmp_path: Path) -> None:
    store = LocalBlockStore(tmp_path)
    item = block_frame(["a"])
    with pytest.raises(BlockMissingError, match=r"r/1\.segment, offset 0.*no such file") as missing:
        store.read_frame("r/1.segment", 0, item.length, item.crc32c)
    assert missing.value.path == str(tmp_path / "r/1.segment")
    stored(store, item)
    with pytest.raises(BlockMissingError, match="the file ends after"):
        store.read_frame("r/1.segment", 10, item.length, item.crc32c)


@pytest.mark.parametrize("position", [0, 20, 63, 64, -1])
def test_a_changed_byte_anywhere_is_corruption_with_place_and_checksums(tmp_path: Path, position: int) -> None:
    store = LocalBlockStore(tmp_path)
    item = block_frame(["a" * 50])
    stored(store, frame(), item)
    path = tmp_path / "r/1.segment"
    data = bytearray(path.read_bytes())
    at = frame().length + (position if position >= 0 else item.length - 1)
    data[at] ^= 4
    path.write_bytes(bytes(data))
    with pytest.raises(BlockCorruptError, match=f"offset {frame().length}") as corrupt:
        list(store.read_batches("r/1.segment", frame().length, item.length, item.crc32c))
    again = pickle.loads(pickle.dumps(corrupt.value))
    assert str(again) == str(corrupt.value)
    assert again.expected == corrupt.value.expected


def test_another_block_at_its_place_is_corruption(tmp_path: Path) -> None:
    store = LocalBlockStore(tmp_path)
    mine, other = block_frame(["a"]), block_frame(["b"])
    stored(store, other)
    with pytest.raises(BlockCorruptError, match=f"{mine.crc32c:08x}"):
        store.read_frame("r/1.segment", 0, other.length, mine.crc32c)
    with pytest.raises(BlockCorruptError, match="another frame's length"):
        store.read_frame("r/1.segment", 0, other.length - 1, other.crc32c)


def test_a_dead_letter_is_not_read_as_a_block(tmp_path: Path) -> None:
    store = LocalBlockStore(tmp_path)
    item = dead_letter_frame(b"\xff\x00raw")
    stored(store, item)
    assert store.read_frame("r/1.segment", 0, item.length, item.crc32c).payload.to_pybytes() == b"\xff\x00raw"
    with pytest.raises(BlockCorruptError, match="DEAD_LETTER"):
        store.read_batches("r/1.segment", 0, item.length, item.crc32c)


def test_an_existing_file_is_never_opened_for_writing(tmp_path: Path) -> None:
    store = LocalBlockStore(tmp_path)
    stored(store, frame())
    with pytest.raises(FileExistsError):
        store.create_segment("r/1.segment")


def test_names_of_new_files_and_directories_are_synced(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = LocalBlockStore(tmp_path / "a" / "b", files=files)
    store.create_segment("r/1.segment").close()
    assert set(files.synced_directories) == {str(tmp_path / name) for name in (".", "a", "a/b", "a/b/r")}
    files.synced_directories.clear()
    store.create_segment("r/2.segment").close()
    assert files.synced_directories == [str(tmp_path / "a/b/r")]


@pytest.mark.parametrize("path", ["", "/etc/x", "../x", "a/../../x"])
def test_a_path_outside_the_store_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(BlockStoreError, match="is no path in the block store"):
        LocalBlockStore(tmp_path).create_segment(path)


def test_a_scan_reports_the_torn_tail_of_a_short_write(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = LocalBlockStore(tmp_path, files=files)
    segment = store.create_segment("r/1.segment")
    segment.append(frame())
    segment.sync()
    files.write_faults = ["short"]
    with pytest.raises(BlockStoreError, match=r"^writing to .* failed"):
        segment.append(frame(b"y" * 100, sequence=2))
    segment.close()
    assert [type(item).__name__ for item in store.scan("r/1.segment")] == ["IntactFrame", "TornTail"]


def test_a_spark_worker_loads_only_pyarrow_and_google_crc32c_besides_the_standard_library() -> None:
    code = (
        "import sys, pyarrow, google_crc32c; before = set(sys.modules)\n"
        "import receiver_runtime.block_store.stores.stores\n"
        "new = {m.split('.')[0] for m in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))\n"
        "ours = {m for m in sys.modules if m.startswith('receiver_runtime.')}\n"
        "print(sorted(m for m in ours if not m.startswith('receiver_runtime.block_store')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split("\n")[:2] == ["['receiver_runtime']", "[]"]


def test_an_emptied_root_takes_segments_again_and_a_missing_root_does_not(tmp_path: Path) -> None:
    root = tmp_path / "blocks"
    store = LocalBlockStore(root)
    store.create_segment("receiver-7/9-000001.segment").close()
    shutil.rmtree(root)
    with pytest.raises(StoreUnavailableError, match="not mounted"):
        store.create_segment("receiver-7/9-000002.segment")
    assert not root.exists()
    root.mkdir()
    store.create_segment("receiver-7/9-000003.segment").close()
    assert list(store.segment_paths()) == ["receiver-7/9-000003.segment"]

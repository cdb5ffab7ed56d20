from __future__ import annotations

import errno
import mmap
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver_runtime.block_store.frames.direct import LEAST_DIRECT_BYTES, PORTION_BYTES, Portions, copies, split
from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.block_store.frames.files import DIRECT_BYTES, Files
from receiver_runtime.block_store.frames.segment import IntactFrame, SegmentWriter, TornTail
from receiver_runtime.block_store.stores.local import LocalBlockStore
from tests.unit.receiver_runtime.support import frame, whole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path, PurePath

    from receiver_runtime.block_store.frames.frame import EncodedFrame

LARGE = LEAST_DIRECT_BYTES + 12_345
PATH = "receiver-7/9-000001.segment"


def of_size(size: int, sequence: int = 1) -> EncodedFrame:
    return frame(bytes([sequence]) * (size - 1) + b"!", sequence=sequence)


def joined(parts: Sequence[pa.Buffer]) -> bytes:
    return b"".join(part.to_pybytes() for part in parts)


class CountingFiles(Files):
    """The operating system, except that direct write number ``at`` (from 1) fails as ``fault`` says."""

    def __init__(self, fault: str = "", at: int = 1) -> None:
        self.fault = fault
        self.at = at
        self.direct_writes = 0

    def open_direct(self, path: PurePath, fd: int) -> int | None:
        return None if self.fault == "no direct" else super().open_direct(path, fd)

    def write_direct(self, fd: int, buffer: Any, offset: int) -> int | None:  # noqa: ANN401
        assert offset % DIRECT_BYTES == 0
        assert len(buffer) % DIRECT_BYTES == 0
        self.direct_writes += 1
        if self.direct_writes == self.at:
            if self.fault == "refused":
                return None
            if self.fault == "short":
                return super().write_direct(fd, buffer[: len(buffer) // 2], offset)
            if self.fault == "error":
                raise OSError(errno.EIO, "Input/output error")
        return super().write_direct(fd, buffer, offset)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a directory on a file system with direct writes; skip if there is none: the tests would prove nothing."""
    probe = tmp_path / "probe"
    probe.touch()
    with probe.open("rb") as file:
        fd = Files().open_direct(probe, file.fileno())
    if fd is None:
        pytest.skip("this file system has no direct writes")
    Files().close(fd)
    return tmp_path


def store_of(directory: Path, files: Files) -> tuple[LocalBlockStore, SegmentWriter]:
    store = LocalBlockStore(directory, files=files)
    return store, store.create_segment(PATH)


@given(sizes=st.lists(st.integers(0, 9000), min_size=1, max_size=6), offset=st.integers(0, 20_000))
def test_a_frame_is_split_at_page_boundaries_wherever_it_begins(sizes: list[int], offset: int) -> None:
    parts = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    head, middle, tail = split(parts, offset)
    assert joined(head) + joined(middle) + joined(tail) == b"".join(parts)
    assert len(joined(middle)) % DIRECT_BYTES == 0
    assert not middle or (offset + len(joined(head))) % DIRECT_BYTES == 0
    assert len(joined(head)) < DIRECT_BYTES
    assert len(joined(tail)) < DIRECT_BYTES


def test_copies_contain_all_bytes_in_order() -> None:
    data = bytes(range(256)) * (2 * PORTION_BYTES // 256 + 3)
    cuts = [0, 5, PORTION_BYTES - 7, PORTION_BYTES + 1, len(data)]
    parts = [pa.py_buffer(data[a:b]) for a, b in pairwise(cuts)]
    buffer = mmap.mmap(-1, PORTION_BYTES)
    found = [bytes(portion) for portion in copies(parts, buffer)]
    assert b"".join(found) == data
    assert [len(portion) for portion in found] == [PORTION_BYTES, PORTION_BYTES, 768]


def test_a_borrowed_buffer_is_exclusive_and_is_reused() -> None:
    portions = Portions()
    with portions.borrowed() as first, portions.borrowed() as second:
        assert first is not second
    with portions.borrowed() as third:
        assert third is first


@pytest.mark.parametrize(("fault", "at"), [("", 1), ("no direct", 1), ("refused", 1), ("refused", 2), ("refused", 3)])
def test_frames_of_every_size_follow_each_other_without_gaps(directory: Path, fault: str, at: int) -> None:
    files = CountingFiles(fault, at)
    store, writer = store_of(directory, files)
    sizes = [10, LARGE, 5000, LARGE + 777, LEAST_DIRECT_BYTES - 64, LEAST_DIRECT_BYTES - 65, 1]
    frames = [of_size(size, number) for number, size in enumerate(sizes, 1)]
    offsets = []
    for item in frames:
        offsets.append(writer.append(item))
        writer.sync()
    writer.close()
    assert (directory / PATH).read_bytes() == b"".join(map(whole, frames))
    found = list(store.scan(PATH))
    assert [(type(item), item.offset) for item in found] == [(IntactFrame, offset) for offset in offsets]
    assert writer.synced_length == sum(item.length for item in frames)
    for item, offset in zip(frames, offsets, strict=True):
        assert store.read_frame(PATH, offset, item.length, item.crc32c).data == whole(item)
    # After the file system has refused once, no direct write is tried again.
    assert files.direct_writes == {"no direct": 0, "refused": at}.get(fault, 5)


@pytest.mark.parametrize("fault", ["short", "error"])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_failed_direct_write_ends_the_segment_and_leaves_a_torn_tail(directory: Path, fault: str, at: int) -> None:
    files = CountingFiles(fault, at)
    store, writer = store_of(directory, files)
    # Each frame takes two direct writes.
    done = (at - 1) // 2
    for number in range(1, done + 1):
        writer.append(of_size(LARGE, number))
        writer.sync()
    with pytest.raises(BlockStoreError, match=r"^writing to .* failed"):
        writer.append(of_size(LARGE, done + 1))
    assert writer.synced_length == done * of_size(LARGE).length
    with pytest.raises(BlockStoreError, match="takes no more frames"):
        writer.append(of_size(10))
    writer.close()
    found = list(store.scan(PATH))
    torn = (directory / PATH).stat().st_size > writer.synced_length
    assert torn or (fault, at) == ("error", 1)
    assert [type(item) for item in found] == [IntactFrame] * done + [TornTail] * torn


def test_unsynced_and_small_frames_go_to_the_page_cache(directory: Path) -> None:
    files = CountingFiles()
    _, writer = store_of(directory, files)
    writer.append(of_size(LEAST_DIRECT_BYTES - 65))
    writer.sync()
    assert files.direct_writes == 0
    writer.skip_sync()
    for number in range(2, 4):
        writer.append(of_size(LARGE, number))
        writer.skip_sync()
    writer.close()
    assert files.direct_writes == 0


def test_a_frame_with_more_parts_than_one_write_takes_is_whole(directory: Path) -> None:
    store, writer = store_of(directory, Files())
    parts = [pa.py_buffer(bytes([number % 251])) for number in range(5000)]
    item = frame(b"x")
    many = type(item)(item.header, parts, 0)
    writer.append(many)
    writer.close()
    assert (directory / PATH).read_bytes() == item.header + bytes(number % 251 for number in range(5000))
    assert store.root == directory

"""Rows L and H of the original (write-ahead log, block handler) that no unit test is named after, and crash recovery.

The last test checks what holds wherever a crash cuts the log. docs/parity.md lists all rows.
"""

from __future__ import annotations

import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from receiver_runtime.block_path.block_handler import BlockHandler
from receiver_runtime.block_path.write_ahead_log import WriteAheadLog, WriteAheadLogClosedError
from receiver_runtime.block_store.frames.errors import InvalidFrameError
from receiver_runtime.block_store.frames.segment import DamagedFrame, IntactFrame, TornTail
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.block_store.stores.object_store import ObjectBlockStore
from receiver_runtime.block_store.stores.replicated import ReplicatedBlockStore
from tests.unit.receiver_runtime.memory_objects import MemoryObjects
from tests.unit.receiver_runtime.support import FaultyFiles, MemoryDriverLog, eventually, frame, make_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future

    from receiver_runtime.block_store.frames.segment import ScannedItem
    from receiver_runtime.block_store.stores.interface import BlockStore

T = TypeVar("T")


def log_with_rows(store: BlockStore, *, max_segment_bytes: int = 2**20) -> tuple[WriteAheadLog, MemoryDriverLog]:
    rows = MemoryDriverLog()
    return make_log(store, rows, max_segment_bytes=max_segment_bytes), rows


def sequences(items: Iterable[ScannedItem]) -> list[int]:
    return [item.header.sequence for item in items if isinstance(item, IntactFrame)]


def test_l05_everything_is_read_back_in_order_over_all_segments(tmp_path: Path) -> None:
    store = LocalBlockStore(tmp_path)
    log, rows = log_with_rows(store, max_segment_bytes=300)
    for sequence in range(1, 21):
        log.write([frame(sequence=sequence)])
    assert len(rows.paths) > 3
    found = [sequence for path in rows.paths.values() for sequence in sequences(store.scan(path))]
    assert found == list(range(1, 21))


def test_l06_a_damaged_record_is_named_and_hides_nothing_behind_it(tmp_path: Path) -> None:
    """Check what the original gets wrong: it ends the file there and reports nothing."""
    store = LocalBlockStore(tmp_path)
    log, rows = log_with_rows(store)
    handles = [handle for sequence in (1, 2, 3) for handle in log.write([frame(sequence=sequence)])]
    path = tmp_path / rows.paths[1]
    data = bytearray(path.read_bytes())
    data[handles[1].offset + 70] ^= 1
    path.write_bytes(bytes(data) + b"FBAYgarbage")
    items = list(store.scan(rows.paths[1]))
    assert [type(item) for item in items] == [IntactFrame, DamagedFrame, IntactFrame, TornTail]
    assert sequences(items) == [1, 3]


def test_l08_callers_at_once_are_written_one_after_the_other_and_after_the_end_refused(tmp_path: Path) -> None:
    files = FaultyFiles()
    store = LocalBlockStore(tmp_path, files=files)
    log, rows = log_with_rows(store)
    begin = threading.Barrier(8)
    handles = {}

    def write(number: int) -> None:
        begin.wait(10)
        for sequence in range(number * 100, number * 100 + 20):
            [handles[sequence]] = log.write([frame(b"x" * number, sequence=sequence)])

    threads = [threading.Thread(target=write, args=(number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(handles) == files.syncs == 160
    for sequence, handle in handles.items():
        read = store.read_frame(rows.paths[handle.segment_id], handle.offset, handle.length, handle.crc32c)
        assert read.header.sequence == sequence
    log.close()
    with pytest.raises(WriteAheadLogClosedError):
        log.write([frame()])


class HangingObjects(MemoryObjects):
    """Set `hangs` when a PUT hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.hangs = threading.Event()

    def put(self, key: str, buffers: Sequence[Any]) -> None:
        if not self.answers.is_set():
            self.hangs.set()
        super().put(key, buffers)


def test_l09_w04_what_was_called_failed_and_lands_late_is_behind_the_sealed_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Check what the original got wrong: its caller was told "failed", and recovery found the record nevertheless."""
    objects = HangingObjects()
    store = ObjectBlockStore(objects, "s3://bucket", max_attempts=1)
    log, rows = log_with_rows(store)
    log.write([frame(sequence=1)])
    objects.answers.clear()
    wait, open_segment = store._objects._pool.wait, rows.open_segment

    def wait_briefly_for_hanging_puts(future: Future[T], seconds: float) -> T:
        # A PUT that is given up before it begins is never made, so wait until it hangs.
        if objects.answers.is_set():
            return wait(future, seconds)
        assert objects.hangs.wait(30)
        return wait(future, 0.1)

    def open_next_segment(path: str, source_rule: str) -> int:
        # The write to the first segment has been reported as failed; from now on the store answers again.
        objects.answers.set()
        return open_segment(path, source_rule)

    monkeypatch.setattr(store._objects._pool, "wait", wait_briefly_for_hanging_puts)
    monkeypatch.setattr(rows, "open_segment", open_next_segment)
    [handle] = log.write([frame(sequence=2)])
    assert (handle.segment_id, handle.offset) == (2, 0)
    log.close()
    eventually(lambda: len(objects.objects) == 3, "the late write")
    length = frame(sequence=1).length
    assert rows.lengths == {1: length, 2: length}
    assert [(item.offset, type(item)) for item in store.scan(rows.paths[1])] == [
        (0, IntactFrame),
        (length, IntactFrame),
    ]


def make_handler(store: BlockStore) -> tuple[BlockHandler, MemoryDriverLog]:
    log, rows = log_with_rows(store)
    schema = pa.schema([("value", pa.string())])
    return BlockHandler(log, schema), rows


def lines(*values: str) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.string())], names=["value"])


def test_h02_a_block_is_serialized_once_and_every_replica_has_the_same_bytes(tmp_path: Path) -> None:
    sites = [LocalBlockStore(tmp_path / name) for name in ("a", "b")]
    handler, rows = make_handler(ReplicatedBlockStore(sites, min_replicas=2))
    block = handler.store_block([lines("one", "two"), lines("three")], sequence=1)
    assert (block.records, block.bytes) == (3, block.handle.length)
    one, other = ((site.root / rows.paths[1]).read_bytes() for site in sites)
    assert one == other
    assert len(one) == block.handle.length


def test_h05_a_block_without_records_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """Check what the original gets wrong: it accepts such a block, which becomes an empty partition."""
    handler, rows = make_handler(LocalBlockStore(tmp_path))
    with pytest.raises(InvalidFrameError, match="0 records"):
        handler.store_block([lines()], sequence=1)
    assert rows.paths == {}


@dataclass(frozen=True)
class Crash:
    """The remains of one replica's newest segment: `left` thousandths of its bytes, then `zeros` zeros."""

    left: int
    zeros: int


SIZES = st.lists(st.integers(1, 300), min_size=1, max_size=12)
CRASHES = st.lists(
    st.builds(Crash, st.integers(0, 1000), st.sampled_from([0, 1, 63, 64, 500, 5000])), min_size=1, max_size=3
)


@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, crashes=CRASHES, max_segment_bytes=st.sampled_from([200, 1000, 2**20]), zeros=st.booleans())
@example(sizes=[300, 300], crashes=[Crash(500, 5000)], max_segment_bytes=2**20, zeros=True)
def test_l06_a_crash_anywhere_leaves_a_prefix_of_the_blocks(
    sizes: list[int], crashes: list[Crash], max_segment_bytes: int, *, zeros: bool
) -> None:
    """Cut at any byte, with zeros after it, in any replica: blocks 1 to n are there, and nothing else is a block."""
    with tempfile.TemporaryDirectory() as directory:
        sites = [LocalBlockStore(Path(directory) / str(number)) for number in range(len(crashes))]
        store = sites[0] if len(sites) == 1 else ReplicatedBlockStore(sites)
        log, rows = log_with_rows(store, max_segment_bytes=max_segment_bytes)
        written = [
            frame((b"\0" if zeros else b"FBAY") * size, sequence=sequence)
            for sequence, size in enumerate(sizes, start=1)
        ]
        handles = [handle for item in written for handle in log.write([item])]
        newest = max(rows.paths)
        ends = [handle.offset + handle.length for handle in handles if handle.segment_id == newest]
        before = len(handles) - len(ends)
        left = []
        for site, crash in zip(sites, crashes, strict=True):
            path = site.root / rows.paths[newest]
            whole = path.read_bytes()
            after = whole[: len(whole) * crash.left // 1000] + bytes(crash.zeros)
            path.write_bytes(after)
            # The lost bytes may have been zeros too.
            count = sum(1 for end in ends if after[:end] == whole[:end])
            assert sequences(site.scan(rows.paths[newest])) == list(range(before + 1, before + count + 1))
            left.append(count)
        found = [sequence for path in rows.paths.values() for sequence in sequences(store.scan(path))]
        assert found == list(range(1, before + max(left) + 1))
        for sequence in found:
            handle = handles[sequence - 1]
            read = store.read_frame(rows.paths[handle.segment_id], handle.offset, handle.length, handle.crc32c)
            assert read.header.sequence == sequence

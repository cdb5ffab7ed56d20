"""Check replicas: written at the same time, under one handle, read in turn; and what is lost if one is lost."""

from __future__ import annotations

import os
import stat
import threading
from typing import TYPE_CHECKING, Any

import pytest

from receiver_runtime.block_path.write_ahead_log import WriteAheadLogError
from receiver_runtime.block_store.frames.errors import (
    BlockCorruptError,
    BlockMissingError,
    BlockStoreError,
    StoreUnavailableError,
)
from receiver_runtime.block_store.frames.reading import FrameAt
from receiver_runtime.block_store.frames.segment import DamagedFrame, IntactFrame, TornTail
from receiver_runtime.block_store.stores.local import LocalBlockStore
from receiver_runtime.block_store.stores.object_store import ObjectBlockStore
from receiver_runtime.block_store.stores.replica_notes import NotingListener, take_notes
from receiver_runtime.block_store.stores.replicated import ReplicaListener, ReplicatedBlockStore
from tests.unit.receiver_runtime.memory_objects import MemoryObjects
from tests.unit.receiver_runtime.support import (
    FaultyFiles,
    ManualClock,
    MemoryDriverLog,
    eventually,
    frame,
    make_log,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path, PurePath

PATH = "receiver-7/9-000001.segment"
LENGTH = frame().length


class HangingFiles(FaultyFiles):
    """Writes wait until `answers` is set, syncs wait for each other at `meet`, and a delete may be refused."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = threading.Event()
        self.answers.set()
        self.closed = 0
        self.meet: threading.Barrier | None = None
        self.refuse_to_delete = False

    def sync(self, fd: int) -> None:
        if self.meet is not None:
            self.meet.wait(10)
        super().sync(fd)

    def delete(self, path: PurePath, *, dir_fd: int) -> None:
        if self.refuse_to_delete:
            raise OSError("read-only file system")
        super().delete(path, dir_fd=dir_fd)

    def write(self, fd: int, buffers: Sequence[Any]) -> int:
        self.answers.wait(60)
        return super().write(fd, buffers)

    def close(self, fd: int) -> None:
        is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        super().close(fd)
        self.closed += is_file


class Listener:
    def __init__(self) -> None:
        self.lost: list[tuple[str, str]] = []
        self.back: list[str] = []
        self.damaged: list[tuple[str, int, str]] = []

    def on_replica_lost(self, name: str, detail: str) -> None:
        self.lost.append((name, detail))

    def on_replica_back(self, name: str) -> None:
        self.back.append(name)

    def on_replica_damaged(self, name: str, receiver_id: int, detail: str) -> None:
        self.damaged.append((name, receiver_id, detail))


class Replicas:
    """Holds replicas in directories a, b, …, and a write-ahead log on them."""

    def __init__(self, root: Path, count: int = 2, *, min_replicas: int = 1, timeout: float = 10) -> None:
        self.files = [HangingFiles() for _ in range(count)]
        self.sites = [LocalBlockStore(root / "abc"[n], files=self.files[n]) for n in range(count)]
        self.listener = Listener()
        self.store = ReplicatedBlockStore(
            self.sites, min_replicas=min_replicas, timeout=timeout, listener=self.listener
        )
        self.rows = MemoryDriverLog()
        self.clock = ManualClock()
        self.log = make_log(self.store, self.rows, clock=self.clock)

    def write(self, sequence: int) -> tuple[int, int]:
        [handle] = self.log.write([frame(sequence=sequence)])
        return handle.segment_id, handle.offset

    def sequences(self, site: int) -> dict[int, list[int]]:
        """Return the sequences of the intact frames in one replica, by segment."""
        return {
            segment_id: [i.header.sequence for i in self.sites[site].scan(path) if isinstance(i, IntactFrame)]
            for segment_id, path in self.rows.paths.items()
            if (self.sites[site].root / path).exists()
        }

    def read(self, sequence: int, segment_id: int, offset: int) -> bytes:
        item = frame(sequence=sequence)
        return self.store.read_frame(self.rows.paths[segment_id], offset, item.length, item.crc32c).data


def test_replicas_roll_together_under_one_handle(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path, 3)
    handles = [replicas.write(1), replicas.write(2)]
    replicas.clock.advance(61)
    handles.append(replicas.write(3))
    assert handles == [(1, 0), (1, LENGTH), (2, 0)]
    assert [replicas.sequences(site) for site in range(3)] == [{1: [1, 2], 2: [3]}] * 3
    assert [files.syncs for files in replicas.files] == [3, 3, 3]
    assert replicas.listener.lost == []


def test_h02_replicas_are_written_at_the_same_time(tmp_path: Path) -> None:
    """Both writes must be in progress before either may end."""
    replicas = Replicas(tmp_path)
    both = threading.Barrier(2)
    for files in replicas.files:
        files.meet = both
    replicas.write(1)
    assert replicas.listener.lost == []


@pytest.mark.parametrize("fault", ["short", "error", "sync"])
def test_h02_h04_a_replica_that_fails_is_told_and_gets_nothing_more_of_the_segment(tmp_path: Path, fault: str) -> None:
    replicas = Replicas(tmp_path)
    replicas.write(1)
    if fault == "sync":
        replicas.files[1].sync_faults = 1
    else:
        replicas.files[1].write_faults = [fault]
    assert [replicas.write(2), replicas.write(3)] == [(1, LENGTH), (1, 2 * LENGTH)]
    assert replicas.sequences(0) == {1: [1, 2, 3]}
    assert replicas.sequences(1) in ({1: [1]}, {1: [1, 2]})
    [(name, detail)] = replicas.listener.lost
    assert name == str(tmp_path / "b")
    assert PATH in detail
    assert replicas.listener.back == []
    replicas.clock.advance(61)
    assert replicas.write(4) == (2, 0)
    assert replicas.sequences(1)[2] == [4]
    assert replicas.listener.back == [name]
    assert [replicas.read(n, 1, (n - 1) * LENGTH) for n in (1, 2, 3)] == [whole(frame(sequence=n)) for n in (1, 2, 3)]


def test_h02_a_replica_that_hangs_is_given_up_in_time_and_costs_one_thread(tmp_path: Path) -> None:
    # The first write waits this long for it, once. The other replica has as long for each of its writes.
    replicas = Replicas(tmp_path, timeout=3)
    replicas.write(1)
    hanging = replicas.files[1]
    hanging.answers.clear()
    before = threading.active_count()
    for sequence in range(2, 22):
        replicas.clock.advance(61)
        assert replicas.write(sequence) == (sequence, 0)
    assert threading.active_count() <= before + 1
    assert "no answer" in replicas.listener.lost[0][1]
    assert "have not been answered yet" in replicas.listener.lost[-1][1]
    hanging.answers.set()
    eventually(lambda: hanging.closed == 2, "closing what hung")
    eventually(lambda: not replicas.store._sites[1].writes._given_up, "the end of the call that hung")
    replicas.clock.advance(61)
    replicas.write(22)
    assert replicas.sequences(1)[22] == [22]
    assert replicas.listener.back == [str(tmp_path / "b")]
    # The write that landed late is at its own offset, and nothing follows it.
    assert replicas.sequences(1)[2] == [2]


def test_a_replica_unavailable_from_the_start_is_reported_and_the_others_continue(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path, 3, min_replicas=2)
    replicas.files[0].create_faults = 1
    assert replicas.write(1) == (1, 0)
    assert [name for name, _ in replicas.listener.lost] == [str(tmp_path / "a")]
    assert [site.root.exists() and len(list(site.segment_paths())) for site in replicas.sites] == [0, 1, 1]


def test_fewer_than_min_replicas_is_a_failed_write_that_is_made_again_in_a_new_segment(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path, min_replicas=2)
    replicas.write(1)
    replicas.files[1].write_faults = ["error"]
    assert replicas.write(2) == (2, 0)
    assert [replicas.sequences(site)[2] for site in range(2)] == [[2], [2]]
    replicas.log.close()
    # The first replica's copy of the failed block lies after the sealed length.
    assert replicas.rows.lengths == {1: LENGTH, 2: LENGTH}
    assert replicas.sequences(0)[1] == [1, 2]


def test_with_fewer_than_min_replicas_for_good_attempts_are_bounded_and_the_error_says_so(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path, min_replicas=2)
    replicas.files[1].create_faults = 99
    with pytest.raises(WriteAheadLogError, match=r"1 of the 2 replicas that min_replicas asks for.*No space left"):
        replicas.write(1)
    assert replicas.files[1].create_faults == 96
    with pytest.raises(BlockStoreError, match="replicas that min_replicas asks for"):
        replicas.store.create_segment("other")


def test_an_ended_segment_takes_nothing(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path, min_replicas=2)
    segment = replicas.store.create_segment(PATH)
    replicas.files[0].write_faults = ["short"]
    segment.append(frame())
    with pytest.raises(BlockStoreError, match=r"1 of the 2 replicas.*short write"):
        segment.sync()
    with pytest.raises(BlockStoreError, match="takes no more frames"):
        segment.append(frame())


def stored(replicas: Replicas) -> list[Path]:
    """Store three blocks in one segment; return its file in each replica."""
    for sequence in (1, 2, 3):
        replicas.write(sequence)
    return [site.root / PATH for site in replicas.sites]


def test_a_block_is_read_from_any_replica_that_has_it_whole(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path)
    one, other = stored(replicas)
    data = bytearray(one.read_bytes())
    data[LENGTH - 1] ^= 1
    one.write_bytes(bytes(data))
    other.write_bytes(other.read_bytes()[:LENGTH])
    assert replicas.read(1, 1, 0) == whole(frame(sequence=1))
    assert replicas.read(3, 1, 2 * LENGTH) == whole(frame(sequence=3))
    other.unlink()
    with pytest.raises(BlockCorruptError, match=f"{tmp_path}/a: .*; {tmp_path}/b: no such file"):
        replicas.read(1, 1, 0)
    one.unlink()
    with pytest.raises(
        BlockMissingError, match=f"no replica has it: {tmp_path}/a: no such file; {tmp_path}/b: no such"
    ):
        replicas.read(1, 1, 0)


def test_a_block_is_not_called_missing_while_a_replica_is_unreachable(tmp_path: Path) -> None:
    objects = MemoryObjects()
    away = ObjectBlockStore(objects, "s3://bucket", max_attempts=1)
    here = LocalBlockStore(tmp_path)
    here.create_segment("other").close()
    store = ReplicatedBlockStore([here, away])
    objects.get_faults = 1
    with pytest.raises(StoreUnavailableError, match=f"{tmp_path}: no such file; .*SLOW_DOWN"):
        store.read_frame(PATH, 0, LENGTH, frame().crc32c)


def test_a_scan_finds_frames_that_any_replica_has_whole(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path)
    one, other = stored(replicas)

    def scanned() -> list[tuple[int, type]]:
        return [(item.offset, type(item)) for item in replicas.store.scan(PATH)]

    intact = [(0, IntactFrame), (LENGTH, IntactFrame), (2 * LENGTH, IntactFrame)]
    data = other.read_bytes()
    one.write_bytes(data[: LENGTH + 5])
    assert scanned() == intact
    other.write_bytes(bytes(LENGTH) + data[LENGTH : 2 * LENGTH] + data[2 * LENGTH : -1])
    assert scanned() == [*intact[:2], (2 * LENGTH, TornTail)]
    one.unlink()
    assert scanned() == [(0, DamagedFrame), intact[1], (2 * LENGTH, TornTail)]
    other.unlink()
    with pytest.raises(FileNotFoundError):
        scanned()


def test_l07_a_segment_is_deleted_in_every_replica_also_when_one_refuses(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path)
    one, other = stored(replicas)
    replicas.files[0].refuse_to_delete = True
    with pytest.raises(StoreUnavailableError, match=f"{tmp_path}/a: read-only"):
        replicas.store.delete_segment(PATH)
    assert (one.exists(), other.exists()) == (True, False)
    replicas.files[0].refuse_to_delete = False
    replicas.store.delete_segment(PATH)
    assert not one.exists()


def test_a_directory_and_an_object_store_can_be_replicas_of_each_other(tmp_path: Path) -> None:
    objects = MemoryObjects()
    store = ReplicatedBlockStore([LocalBlockStore(tmp_path), ObjectBlockStore(objects, "s3://bucket")], min_replicas=2)
    log = make_log(store)
    handles = [handle for n in (1, 2) for handle in log.write([frame(sequence=n), frame(b"more", sequence=n)])]
    assert len(objects.objects) == 2
    for replica in store.replicas:
        for handle in handles:
            replica.read_frame(PATH, handle.offset, handle.length, handle.crc32c)


def test_h01_a_frame_is_lost_when_every_replica_lost_it(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path)
    handles = [replicas.write(sequence) for sequence in (1, 2, 3)]
    path = replicas.rows.paths[1]
    frames = [FrameAt(offset, LENGTH, frame(sequence=n).crc32c) for n, (_, offset) in enumerate(handles, start=1)]
    assert replicas.store.lost_frames(path, frames) == set()
    first, second = (site.root / path for site in replicas.sites)
    whole_file = first.read_bytes()
    # The first replica lost its end, the second has other bytes in the middle.
    first.write_bytes(whole_file[: LENGTH + 7])
    second.write_bytes(whole_file[:LENGTH] + bytes(LENGTH) + whole_file[2 * LENGTH :])
    assert replicas.store.lost_frames(path, frames) == {frames[1]}
    replicas.sites[1].root.rename(tmp_path / "away")
    with pytest.raises(StoreUnavailableError, match="can't be reached"):
        replicas.store.lost_frames(path, frames)
    assert replicas.store.lost_frames(path, frames[:1]) == set()


def test_h01_a_crash_explains_other_bytes_only_in_stores_where_it_can_leave_them(tmp_path: Path) -> None:
    here, there = LocalBlockStore(tmp_path), ObjectBlockStore(MemoryObjects(), "s3://bucket/prefix")
    assert ReplicatedBlockStore([here, here]).crash_may_spoil
    assert not ReplicatedBlockStore([here, there]).crash_may_spoil


def test_a_read_reports_a_damaged_or_lagging_replica_and_leaves_a_note_about_it(tmp_path: Path) -> None:
    replicas = Replicas(tmp_path)
    replicas.write(1)
    replicas.write(2)
    path = replicas.rows.paths[1]
    first, second = (LocalBlockStore(tmp_path / name) for name in "ab")
    file = first.root / path
    whole_file = file.read_bytes()
    item = frame(sequence=1)

    def read(listener: ReplicaListener) -> ReplicatedBlockStore:
        store = ReplicatedBlockStore([first, second], listener=listener)
        store.read_frame(path, 0, item.length, item.crc32c)
        return store

    read(replicas.listener)
    assert replicas.listener.damaged == []
    file.write_bytes(bytes([whole_file[0] ^ 1]) + whole_file[1:])
    read(replicas.listener)
    file.unlink()
    read(replicas.listener)
    assert [(name, receiver) for name, receiver, _ in replicas.listener.damaged] == [(str(first.root), 7)] * 2

    for _ in range(3):
        noting = NotingListener()
        noting.leave(read(noting))
    store = read(noting)
    assert [path.parent for path in tmp_path.rglob("_notes/*")] == [second.root / "_notes"]
    assert set(second.segment_paths()) == {path}
    [note] = take_notes(store)
    assert (note.replica, note.receiver_id) == (str(first.root), 7)
    assert "no such file" in note.detail
    assert list(take_notes(store)) == []


def test_segments_are_listed_from_all_replicas_without_waiting_for_one_that_hangs(tmp_path: Path) -> None:
    answers = threading.Event()

    class Hanging(LocalBlockStore):
        def segment_paths(self, under: str = "") -> Iterator[str]:
            answers.wait(60)
            return super().segment_paths(under)

    first, second = LocalBlockStore(tmp_path / "a"), Hanging(tmp_path / "b")
    first.create_segment(PATH).close()
    second.create_segment("receiver-8/1-000001.segment").close()
    store = ReplicatedBlockStore([second, first], timeout=0.01)
    with pytest.raises(TimeoutError, match="no answer"):
        list(store.segment_paths())
    answers.set()
    store = ReplicatedBlockStore([first, second])
    assert sorted(store.segment_paths()) == [PATH, "receiver-8/1-000001.segment"]
    assert list(store.segment_paths("receiver-7")) == [PATH]

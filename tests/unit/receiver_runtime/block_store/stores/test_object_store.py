"""Check that each write of a block store becomes one object: the layout, and what the store's failures leave behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from receiver_runtime.block_store.frames.errors import (
    BlockCorruptError,
    BlockMissingError,
    BlockStoreError,
    StoreUnavailableError,
)
from receiver_runtime.block_store.frames.reading import FrameAt
from receiver_runtime.block_store.frames.segment import DamagedFrame, IntactFrame, TornTail
from receiver_runtime.block_store.stores import retried_objects
from receiver_runtime.block_store.stores.object_store import ObjectBlockStore
from tests.unit.receiver_runtime.memory_objects import MemoryObjects
from tests.unit.receiver_runtime.support import dead_letter_frame, eventually, frame, reaches, whole

if TYPE_CHECKING:
    from collections.abc import Callable

PATH = "receiver-7/9-000001.segment"
LENGTH = frame().length


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> MemoryObjects:
    monkeypatch.setattr(retried_objects, "_FIRST_DELAY", 0.001)
    return MemoryObjects()


@pytest.fixture
def store(objects: MemoryObjects) -> ObjectBlockStore:
    return ObjectBlockStore(objects, "s3://bucket/prefix", timeout=10)


def stored(store: ObjectBlockStore, writes: int) -> None:
    segment = store.create_segment(PATH)
    for sequence in range(1, writes + 1):
        segment.append(frame(sequence=sequence))
        segment.sync()


def test_each_write_is_one_object_named_by_its_offset(store: ObjectBlockStore, objects: MemoryObjects) -> None:
    segment = store.create_segment(PATH)
    assert segment.append(frame()) == 0
    assert objects.objects == {}
    segment.sync()
    letters = [dead_letter_frame(b"one"), dead_letter_frame(b"two, longer")]
    offsets = [segment.append(letter) for letter in letters]
    segment.sync()
    assert list(objects.objects) == [f"{PATH}/{0:020d}", f"{PATH}/{LENGTH:020d}"]
    assert segment.synced_length == LENGTH + sum(letter.length for letter in letters)
    for offset, letter in zip(offsets, letters, strict=True):
        read = store.read_frame(PATH, offset, letter.length, letter.crc32c)
        assert read.payload.to_pybytes() == letter.payload.to_pybytes()
    assert [(item.offset, type(item)) for item in store.scan(PATH)] == [
        (0, IntactFrame),
        (LENGTH, IntactFrame),
        (offsets[1], IntactFrame),
    ]


def test_a_put_with_a_lost_answer_is_repeated_with_identical_bytes(
    store: ObjectBlockStore, objects: MemoryObjects
) -> None:
    objects.put_faults = ["lost answer", "error", ""]
    stored(store, 1)
    assert objects.puts == [(f"{PATH}/{0:020d}", whole(frame()))] * 3


def test_attempts_are_bounded_and_a_failed_write_ends_the_segment(
    store: ObjectBlockStore, objects: MemoryObjects
) -> None:
    segment = store.create_segment(PATH)
    objects.put_faults = ["error"] * 5
    segment.append(frame())
    with pytest.raises(BlockStoreError, match=r"^writing to .*PutObject operation; 5 attempts"):
        segment.sync()
    assert (segment.synced_length, len(objects.puts)) == (0, 5)
    with pytest.raises(BlockStoreError, match="takes no more frames"):
        segment.append(frame())


def test_a_hanging_store_is_given_up_in_time_and_holds_a_bounded_number_of_threads(
    objects: MemoryObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retried_objects, "_THREADS", 2)
    store = ObjectBlockStore(objects, "s3://bucket/prefix", timeout=10)
    objects.answers.clear()

    def writes_that_hang() -> int:
        """Let one more write hang and return the count; a write given up before its thread began it does not count."""
        store._objects._timeout = 10
        segment = store.create_segment(PATH)
        segment.append(frame())
        store._objects._timeout = 0.05
        with pytest.raises(BlockStoreError, match=r"^writing to .*no answer"):
            segment.sync()
        return len(store._objects._pool._given_up)

    for number in (1, 2):
        eventually(reaches(writes_that_hang, number))
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="2 earlier calls have not been answered"):
            store.create_segment(PATH)
    assert store._objects._pool.threads == 2
    objects.answers.set()
    eventually(lambda: not store._objects._pool._given_up)
    # The write that landed late has the same bytes, at the same place.
    assert list(objects.objects) == [f"{PATH}/{0:020d}"]


def test_an_existing_segment_is_not_written_to(store: ObjectBlockStore) -> None:
    stored(store, 1)
    with pytest.raises(FileExistsError, match=PATH):
        store.create_segment(PATH)


def test_missing_corrupt_and_unreachable_are_distinguished(store: ObjectBlockStore, objects: MemoryObjects) -> None:
    stored(store, 2)
    item = frame(sequence=2)
    key = f"{PATH}/{LENGTH:020d}"
    whole_object = objects.objects[key]
    objects.objects[key] = whole_object[:-1] + b"?"
    with pytest.raises(BlockCorruptError, match=f"s3://bucket/prefix/{PATH}, offset {LENGTH}"):
        store.read_frame(PATH, LENGTH, LENGTH, item.crc32c)
    objects.objects[key] = whole_object[:-1]
    with pytest.raises(BlockMissingError, match="ends after"):
        store.read_frame(PATH, LENGTH, LENGTH, item.crc32c)
    del objects.objects[key]
    with pytest.raises(BlockMissingError, match="no such object"):
        store.read_frame(PATH, LENGTH, LENGTH, item.crc32c)
    objects.get_faults = 3
    assert store.read_frame(PATH, 0, LENGTH, frame().crc32c).header.sequence == 1
    objects.get_faults = 5
    with pytest.raises(StoreUnavailableError, match="SLOW_DOWN"):
        store.read_frame(PATH, 0, LENGTH, frame().crc32c)


def test_a_missing_bucket_or_prefix_does_not_make_a_block_missing(
    store: ObjectBlockStore, objects: MemoryObjects
) -> None:
    item = frame()
    at = FrameAt(0, LENGTH, item.crc32c)
    objects.prefix_is_there = False
    with pytest.raises(StoreUnavailableError, match="nothing below this prefix"):
        store.read_frame(PATH, *at)
    with pytest.raises(StoreUnavailableError, match="nothing below this prefix"):
        store.lost_frames(PATH, [at])
    # In a new store, a segment of which nothing was ever stored is only missing.
    with pytest.raises(FileNotFoundError):
        list(store.scan(PATH))
    objects.bucket_is_there = False
    with pytest.raises(StoreUnavailableError, match="no such bucket"):
        store.read_frame(PATH, *at)
    with pytest.raises(StoreUnavailableError, match="no such bucket"):
        list(store.scan(PATH))


def test_h01_lost_frames_are_found_by_one_listing_and_no_read(store: ObjectBlockStore, objects: MemoryObjects) -> None:
    segment = store.create_segment(PATH)
    letters = [dead_letter_frame(b"one"), dead_letter_frame(b"two, longer")]
    frames = []
    for items in ([frame(sequence=1)], letters, [frame(sequence=2)], [frame(sequence=3)]):
        frames += [FrameAt(segment.append(item), item.length, item.crc32c) for item in items]
        segment.sync()
    assert store.lost_frames(PATH, frames) == set()
    del objects.objects[f"{PATH}/{frames[3].offset:020d}"]
    key = f"{PATH}/{frames[1].offset:020d}"
    objects.objects[key] = objects.objects[key][:-1]
    assert store.lost_frames(PATH, frames) == {frames[2], frames[3]}
    assert objects.gets == 0
    objects.objects.clear()
    assert store.lost_frames(PATH, frames) == set(frames)


def cut(data: bytes) -> bytes:
    return data[:-3]


@pytest.mark.parametrize(
    ("number", "change", "expected"),
    [
        (1, None, [(0, IntactFrame), (LENGTH, DamagedFrame), (2 * LENGTH, IntactFrame)]),
        (2, None, [(0, IntactFrame), (LENGTH, IntactFrame)]),
        (1, cut, [(0, IntactFrame), (LENGTH, DamagedFrame), (2 * LENGTH - 3, DamagedFrame), (2 * LENGTH, IntactFrame)]),
        (2, cut, [(0, IntactFrame), (LENGTH, IntactFrame), (2 * LENGTH, TornTail)]),
    ],
    ids=["missing between", "last missing", "cut between", "last cut"],
)
def test_a_scan_distinguishes_damage_from_a_torn_end(
    store: ObjectBlockStore,
    objects: MemoryObjects,
    number: int,
    change: Callable[[bytes], bytes] | None,
    expected: list[tuple[int, type]],
) -> None:
    stored(store, 3)
    key = f"{PATH}/{number * LENGTH:020d}"
    data = objects.objects.pop(key)
    if change is not None:
        objects.objects[key] = change(data)
    assert [(item.offset, type(item)) for item in store.scan(PATH)] == expected


def test_a_segment_without_objects_does_not_exist(store: ObjectBlockStore) -> None:
    store.create_segment(PATH).close()
    with pytest.raises(FileNotFoundError, match=PATH):
        list(store.scan(PATH))


def test_segments_are_listed_deleted_and_set_aside_as_a_whole(store: ObjectBlockStore, objects: MemoryObjects) -> None:
    stored(store, 2)
    objects.objects["stray"] = b"somebody's"
    assert sorted(store.segment_paths()) == [PATH, "stray"]
    assert store.set_aside(PATH) == f"_aside/{PATH}"
    assert store.set_aside("stray") == "_aside/stray"
    assert list(store.segment_paths()) == []
    assert len(objects.objects) == 3
    stored(store, 2)
    assert store.set_aside(PATH) == f"_aside/{PATH}.1"
    stored(store, 1)
    store.delete_segment(PATH)
    store.delete_segment(PATH)
    assert list(store.segment_paths()) == []


def test_a_segment_is_restored_from_frames_and_the_old_one_is_set_aside(
    store: ObjectBlockStore, objects: MemoryObjects
) -> None:
    stored(store, 2)
    objects.objects[f"{PATH}/{LENGTH:020d}"] = b"damaged"
    good = store.read_frame(PATH, 0, LENGTH, frame().crc32c).data
    store.restore_segment(PATH, [(0, good), (LENGTH, whole(frame(sequence=2)))])
    assert [type(item) for item in store.scan(PATH)] == [IntactFrame, IntactFrame]
    assert objects.objects[f"_aside/{PATH}/{LENGTH:020d}"] == b"damaged"
    assert list(store.segment_paths()) == [PATH]


@pytest.mark.parametrize("path", ["", "/etc/passwd", "a/../../b"])
def test_a_path_outside_the_store_is_refused(store: ObjectBlockStore, path: str) -> None:
    with pytest.raises(BlockStoreError, match="is no path in the block store"):
        store.create_segment(path)

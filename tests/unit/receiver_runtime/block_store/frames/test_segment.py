from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.block_store.frames.files import Files
from receiver_runtime.block_store.frames.frame import HEADER_LENGTH
from receiver_runtime.block_store.frames.segment import (
    DamagedFrame,
    IntactFrame,
    SegmentWriter,
    TornTail,
    scan_segment,
)
from tests.unit.receiver_runtime.support import FaultyFiles, dead_letter_frame, frame, whole


def scan(data: bytes) -> list[IntactFrame | DamagedFrame | TornTail]:
    with TemporaryDirectory() as directory:
        path = Path(directory, "s")
        path.write_bytes(data)
        return list(scan_segment(Files(), path))


def three() -> list[bytes]:
    return [
        whole(frame(b"first", sequence=1)),
        whole(frame(b"second" * 10, sequence=2)),
        whole(frame(b"x", sequence=3)),
    ]


def writer(tmp_path: Path, files: Files) -> SegmentWriter:
    path = tmp_path / "segment"
    return SegmentWriter(files, files.create(path), path)


def test_frames_come_out_in_order_with_their_places() -> None:
    frames = [*three(), whole(dead_letter_frame(b"\xff\xfe"))]
    found = scan(b"".join(frames))
    assert all(isinstance(item, IntactFrame) for item in found)
    assert [item.length for item in found] == [len(data) for data in frames]
    assert [item.offset for item in found] == [sum(map(len, frames[:n])) for n in range(4)]


def test_an_empty_file_holds_nothing() -> None:
    assert scan(b"") == []


@given(payloads=st.lists(st.binary(min_size=1, max_size=60), max_size=6), data=st.data())
def test_a_file_cut_anywhere_gives_a_prefix(payloads: list[bytes], data: st.DataObject) -> None:
    frames = [whole(frame(payload, sequence=n + 1)) for n, payload in enumerate(payloads)]
    full = b"".join(frames)
    length = data.draw(st.integers(0, len(full)))
    found = scan(full[:length])
    intact = [item for item in found if isinstance(item, IntactFrame)]
    ends = [sum(map(len, frames[: n + 1])) for n in range(len(frames))]
    whole_frames = sum(1 for end in ends if end <= length)
    assert [item.header.sequence for item in intact] == list(range(1, whole_frames + 1))
    rest = found[len(intact) :]
    good = ends[whole_frames - 1] if whole_frames else 0
    if good == length:
        assert rest == []
    else:
        assert len(rest) == 1
        assert isinstance(rest[0], TornTail)
        assert (rest[0].offset, rest[0].length) == (good, length - good)


def test_a_complete_frame_with_a_bad_checksum_is_reported_and_the_rest_is_read() -> None:
    first, second, third = three()
    damaged = bytearray(second)
    damaged[-1] ^= 1
    found = scan(first + bytes(damaged) + third)
    assert [type(item) for item in found] == [IntactFrame, DamagedFrame, IntactFrame]
    middle = found[1]
    assert isinstance(middle, DamagedFrame)
    assert middle.header is not None
    assert middle.header.sequence == 2
    assert middle.expected != middle.found


def test_a_damaged_last_frame_of_full_length_is_damage_and_not_a_torn_write() -> None:
    first, second, _ = three()
    damaged = bytearray(second)
    damaged[-1] ^= 1
    assert [type(item) for item in scan(first + bytes(damaged))] == [IntactFrame, DamagedFrame]


def test_a_damaged_header_hides_no_frame_behind_it() -> None:
    first, second, third = three()
    damaged = bytearray(second)
    damaged[50] ^= 0xFF  # its length
    found = scan(first + bytes(damaged) + third)
    assert [type(item) for item in found] == [IntactFrame, DamagedFrame, IntactFrame]
    middle = found[1]
    assert isinstance(middle, DamagedFrame)
    assert (middle.header, middle.offset, middle.length) == (None, len(first), len(second))


def test_zeros_at_the_end_are_a_torn_tail() -> None:
    first = three()[0]
    found = scan(first + bytes(5000))
    assert [type(item) for item in found] == [IntactFrame, TornTail]


def test_a_frame_of_another_epoch_inside_a_torn_payload_is_ignored() -> None:
    inner = whole(frame(b"smuggled", sequence=9, epoch=1))
    outer = whole(frame(inner * 3, sequence=1))
    broken = bytearray(outer)
    broken[2] = 0  # its own header is unreadable
    found = scan(whole(frame(b"ours", sequence=1)) + bytes(broken))
    assert [type(item) for item in found] == [IntactFrame, TornTail]


def test_a_frame_inside_a_dead_letter_is_never_taken_for_one() -> None:
    """Receiver and epoch are those of the segment, and the header before it is damaged: only the mark tells."""
    mark = 1000
    forged = whole(frame(b"smuggled", sequence=2**62, mark=1001))
    for letter in (dead_letter_frame(forged * 3, mark=mark), frame(forged * 3, sequence=2, mark=mark)):
        broken = bytearray(whole(letter))
        broken[2] = 0
        before, after = (whole(frame(payload, sequence=n, mark=mark)) for n, payload in ((1, b"a"), (3, b"b")))
        found = scan(before + bytes(broken) + after)
        assert [type(item) for item in found] == [IntactFrame, DamagedFrame, IntactFrame]
        assert [item.header.sequence for item in found if isinstance(item, IntactFrame)] == [1, 3]
        assert [type(item) for item in scan(before + bytes(broken))] == [IntactFrame, TornTail]


def test_a_frame_without_a_mark_is_damage_and_hides_no_frame_behind_it() -> None:
    first, second, third = three()
    bare = bytearray(second)
    bare[8:12] = bytes(4)
    bare[56:60] = google_crc32c.value(bytes(bare[:56])).to_bytes(4, "little")
    bare[60:64] = google_crc32c.value(bytes(bare[:60] + bare[64:])).to_bytes(4, "little")
    found = scan(first + bytes(bare) + third)
    assert [type(item) for item in found] == [IntactFrame, DamagedFrame, IntactFrame]
    middle = found[1]
    assert isinstance(middle, DamagedFrame)
    assert (middle.header, middle.offset, middle.length) == (None, len(first), len(second))
    assert [type(item) for item in scan(first + bytes(bare))] == [IntactFrame, TornTail]
    assert [type(item) for item in scan(bytes(bare) + third)] == [DamagedFrame, IntactFrame]


def test_a_mark_is_kept_with_every_kind_of_frame() -> None:
    for made, part, mark in (
        (frame(mark=1000), 0, 1000),
        (dead_letter_frame(b"a", part=3, mark=2**32 - 1), 3, 2**32 - 1),
    ):
        [item] = scan(whole(made))
        assert isinstance(item, IntactFrame)
        assert (item.header.records, item.header.part, item.header.mark) == (1, part, mark)


def test_a_header_across_two_windows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("receiver_runtime.block_store.frames.segment._WINDOW", 128)
    first, second, third = three()
    for shift in range(130):
        found = scan(first + b"\xee" * (HEADER_LENGTH + shift) + second + third)
        assert [type(item) for item in found] == [IntactFrame, DamagedFrame, IntactFrame, IntactFrame], shift


@pytest.mark.parametrize("fault", ["short", "error"])
def test_nothing_is_appended_after_a_failed_write(tmp_path: Path, fault: str) -> None:
    files = FaultyFiles()
    segment = writer(tmp_path, files)
    segment.append(frame())
    segment.sync()
    good = segment.synced_length
    files.write_faults = [fault]
    with pytest.raises(BlockStoreError, match=r"^writing to .* failed"):
        segment.append(frame(sequence=2))
    with pytest.raises(BlockStoreError, match="takes no more frames"):
        segment.append(frame(sequence=3))
    with pytest.raises(BlockStoreError, match="takes no more frames"):
        segment.sync()
    segment.close()
    segment.close()
    assert segment.synced_length == good
    kinds = [type(item) for item in scan_segment(files, segment.path)]
    assert kinds[0] is IntactFrame
    assert kinds[1:] == ([TornTail] if fault == "short" else [])


def test_a_failed_sync_ends_the_segment_and_counts_nothing(tmp_path: Path) -> None:
    files = FaultyFiles()
    segment = writer(tmp_path, files)
    segment.append(frame())
    files.sync_faults = 1
    with pytest.raises(BlockStoreError, match=r"^writing to .* failed \(sync: "):
        segment.sync()
    assert segment.synced_length == 0
    with pytest.raises(BlockStoreError, match="takes no more frames"):
        segment.sync()
    assert files.syncs == 1
    segment.close()

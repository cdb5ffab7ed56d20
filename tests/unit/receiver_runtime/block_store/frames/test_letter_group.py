"""Test groups of dead letters on disk: what comes back, and what damage does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from receiver_runtime.block_path.block_handler import BlockHandler, DeadLetter
from receiver_runtime.block_store.frames.encryption import BlockKeys
from receiver_runtime.block_store.frames.errors import BlockCorruptError, InvalidFrameError
from receiver_runtime.block_store.frames.frame import (
    HEADER_LENGTH,
    DeadLetterReason,
    FrameKind,
    decode_header,
)
from receiver_runtime.block_store.frames.letter_group import bytes_of_letters, decode_letters, encode_letters
from receiver_runtime.block_store.frames.reading import letters_of
from receiver_runtime.block_store.frames.segment import DamagedFrame, IntactFrame, TornTail
from receiver_runtime.block_store.stores.local import LocalBlockStore
from tests.unit.receiver_runtime.support import MemoryDriverLog, frame, make_log, whole

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([("value", pa.string())])


class Handled:
    """A handler on a real directory."""

    def __init__(self, root: Path) -> None:
        self.store = LocalBlockStore(root)
        self.rows = MemoryDriverLog()
        self.log = make_log(self.store, self.rows)
        self.handler = BlockHandler(self.log, SCHEMA)

    def put_aside(self, *data: bytes) -> None:
        letters = [DeadLetter(DeadLetterReason.INVALID_ENCODING, one) for one in data]
        self.rows.add_dead_letters(self.handler.store_dead_letters(letters, sequence=0))

    def letters(self) -> list[list[bytes]]:
        found = []
        for row in self.rows.dead_letters:
            path, handle = self.rows.paths[row.handle.segment_id], row.handle
            read = self.store.read_frame(path, handle.offset, handle.length, handle.crc32c)
            found.append(letters_of(read, path, handle.offset, BlockKeys()))
        return found


@given(st.lists(st.binary(max_size=40), max_size=30))
def test_letters_come_back_as_they_went_in(letters: list[bytes]) -> None:
    payload = encode_letters(letters)
    assert decode_letters(payload) == letters
    assert bytes_of_letters(len(payload), len(letters)) == sum(map(len, letters))


@given(st.binary(max_size=60))
def test_no_bytes_make_a_reader_fail_in_another_way(payload: bytes) -> None:
    try:
        letters = decode_letters(payload)
    except InvalidFrameError:
        return
    assert encode_letters(letters) == payload


@pytest.mark.parametrize(
    "payload",
    [b"", b"\1\0\0\0", b"\xff\xff\xff\xff", b"\1\0\0\0\xff\xff\xff\xff", encode_letters([b"ab"])[:-1], b"\0\0\0\0x"],
)
def test_numbers_that_do_not_fit_are_refused(payload: bytes) -> None:
    with pytest.raises(InvalidFrameError, match="are no group of"):
        decode_letters(payload)


def test_a_group_is_one_frame_for_each_reason_and_large_letters_stand_alone(tmp_path: Path) -> None:
    handled = Handled(tmp_path)
    large = b"x" * 100_000
    rows = handled.handler.store_dead_letters(
        [
            DeadLetter(DeadLetterReason.INVALID_ENCODING, b"\xff1"),
            DeadLetter(DeadLetterReason.RECORD_TOO_LARGE, large),
            DeadLetter(DeadLetterReason.TRUNCATED, b"half"),
            DeadLetter(DeadLetterReason.INVALID_ENCODING, b"\xff2"),
        ],
        sequence=4,
    )
    handled.rows.add_dead_letters(rows)
    assert [(row.reason, row.part, row.letters, row.bytes) for row in rows] == [
        ("invalid_encoding", 0, 2, 4),
        ("truncated", 0, 1, 4),
        ("record_too_large", 0, 1, len(large)),
    ]
    assert handled.letters() == [[b"\xff1", b"\xff2"], [b"half"], [large]]


def test_dead_letters_have_segments_of_their_own_that_seal_by_themselves(tmp_path: Path) -> None:
    handled = Handled(tmp_path)
    handled.handler.store_block([pa.record_batch([["a"]], schema=SCHEMA)], sequence=1)
    handled.put_aside(b"\xff")
    assert handled.rows.paths == {1: "receiver-7/9-000001.segment", 2: "receiver-7/9-d000001.segment"}
    handled.handler.close()
    # Neither the block is registered nor the letter recorded.
    assert handled.rows.lengths == {}
    handled.handler.dead_letters_recorded(handled.rows.dead_letters)
    handled.handler.close()
    assert handled.rows.lengths == {2: (tmp_path / handled.rows.paths[2]).stat().st_size}


def test_a_letter_group_as_a_block_and_a_block_as_letters_are_refused(tmp_path: Path) -> None:
    handled = Handled(tmp_path)
    handled.put_aside(b"\xff")
    block = handled.handler.store_block([pa.record_batch([["a"]], schema=SCHEMA)], sequence=1)
    assert block.handle is not None
    path, at = handled.rows.paths[block.handle.segment_id], block.handle
    with pytest.raises(BlockCorruptError, match="frame kind"):
        letters_of(handled.store.read_frame(path, at.offset, at.length, at.crc32c), path, at.offset, BlockKeys())
    [row] = handled.rows.dead_letters
    path, at = handled.rows.paths[row.handle.segment_id], row.handle
    with pytest.raises(BlockCorruptError, match="frame kind"):
        list(handled.store.read_batches(path, at.offset, at.length, at.crc32c))


@pytest.mark.parametrize("kept", [1, 70, -1])
def test_a_group_that_was_half_written_is_torn(tmp_path: Path, kept: int) -> None:
    handled = Handled(tmp_path)
    handled.put_aside(b"\xff1", b"\xff2")
    handled.put_aside(b"\xff3", b"\xff4")
    path = tmp_path / handled.rows.paths[1]
    last = handled.rows.dead_letters[1].handle
    data = path.read_bytes()
    path.write_bytes(data[: last.offset + kept] if kept > 0 else data[:kept])
    items = list(handled.store.scan(handled.rows.paths[1]))
    kinds = [item.header.kind for item in items if isinstance(item, IntactFrame)]
    assert kinds == [FrameKind.NOTE, FrameKind.LETTER_GROUP, FrameKind.NOTE]
    assert isinstance(items[-1], TornTail)
    del handled.rows.dead_letters[1:]
    assert handled.letters() == [[b"\xff1", b"\xff2"]]


def test_no_frame_inside_a_letter_is_taken_for_one_if_the_groups_header_is_damaged(tmp_path: Path) -> None:
    """Attack: a letter has a whole block frame of this receiver and epoch, without the mark, which nobody knows."""
    handled = Handled(tmp_path)
    forged = whole(frame(b"forged"))
    assert decode_header(forged)[0].kind is FrameKind.BLOCK
    for _ in range(2):
        handled.put_aside(b"\xff" + forged, forged)
    path = tmp_path / handled.rows.paths[1]
    data = bytearray(path.read_bytes())
    for row in handled.rows.dead_letters:
        data[row.handle.offset + HEADER_LENGTH - 8] ^= 1
    path.write_bytes(data)
    items = list(handled.store.scan(handled.rows.paths[1]))
    # The note before each group has the mark.
    assert [item.header.kind for item in items if isinstance(item, IntactFrame)] == [FrameKind.NOTE] * 2
    [unknown] = [item for item in items if isinstance(item, DamagedFrame)]
    assert unknown.header is None
    assert isinstance(items[-1], TornTail)

"""Fuzz frames on disk: reading them by their handle, scanning a segment after a crash, and salvaging what was found."""

from __future__ import annotations

import base64

import google_crc32c
import pyarrow as pa

from receiver_runtime.block_path.recovery.found_frames import FoundFrames
from receiver_runtime.block_store.frames.encryption import BlockKey, BlockKeys, FrameEncryptor
from receiver_runtime.block_store.frames.errors import (
    BlockAlteredError,
    BlockCorruptError,
    BlockKeyError,
    BlockMissingError,
    InvalidFrameError,
)
from receiver_runtime.block_store.frames.frame import (
    HEADER_LENGTH,
    MAGIC,
    DeadLetterReason,
    FrameFields,
    FrameHeader,
    FrameKind,
    SourceRule,
    decode_header,
    encode_frame,
)
from receiver_runtime.block_store.frames.payload import encode_batches
from receiver_runtime.block_store.frames.reading import batches_of, checked_frame
from receiver_runtime.block_store.frames.segment import DamagedFrame, IntactFrame, TornTail, scan_source
from tests.fuzz.target import fuzzed
from tracker_store.blocks.segments import OpenSegment

_SCHEMA = pa.schema([("value", pa.string())])
_PAYLOAD = encode_batches(_SCHEMA, [pa.record_batch([pa.array(["ab", "cd"])], schema=_SCHEMA)])
_MARK = 77


class _Reference:
    def resolve(self) -> str:
        return base64.b64encode(bytes(range(32))).decode()

    def __str__(self) -> str:
        return "env:KEY"


_ENCRYPTOR = FrameEncryptor(BlockKey.read(_Reference()))


def _frame(
    payload: pa.Buffer | bytes,
    sequence: int,
    kind: FrameKind = FrameKind.BLOCK,
    encryptor: FrameEncryptor | None = None,
    epoch: int = 3,
) -> bytes:
    frame = encode_frame(
        payload,
        FrameFields(
            kind=kind,
            source_rule=SourceRule.NOT_SENT_AGAIN,
            receiver_id=1,
            epoch=epoch,
            sequence=sequence,
            registered_through=sequence - 1,
            records=2,
            reason=DeadLetterReason.UNPARSABLE if kind is FrameKind.DEAD_LETTER else None,
            mark=_MARK,
        ),
        encryptor=encryptor,
    )
    return b"".join(bytes(part) for part in frame.buffers)


_WHOLE = _frame(_PAYLOAD, 1)
_LETTER = _frame(b"bad " + _WHOLE, 1, FrameKind.DEAD_LETTER)
_NOTE = _frame(b"note", 2, FrameKind.NOTE)
_SECRET = _frame(_PAYLOAD, 2, encryptor=_ENCRYPTOR)
_SEGMENTS = (_WHOLE + _LETTER + _SECRET + _NOTE, _WHOLE, _SECRET + _frame(_PAYLOAD, 2**62), _WHOLE + bytes(200))
_WORDS = (MAGIC, _WHOLE, _LETTER, _SECRET, _WHOLE[:HEADER_LENGTH], bytes(HEADER_LENGTH))


class _Bytes:
    """Count the bytes that are read of a segment."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)
        self.read_bytes = 0

    def read(self, length: int, offset: int) -> bytes:
        self.read_bytes += length
        return self._data[offset : offset + length]


def _sealed(data: bytes) -> bytes:
    """Return frames with right checksums, as somebody who can write to the disk would forge them."""
    found = bytearray(data)
    at = found.find(MAGIC)
    while 0 <= at <= len(found) - HEADER_LENGTH:
        found[at + 56 : at + 60] = google_crc32c.value(bytes(found[at : at + 56])).to_bytes(4, "little")
        length = int.from_bytes(found[at + 48 : at + 56], "little")
        end = min(len(found), at + HEADER_LENGTH + length)
        crc = google_crc32c.extend(
            google_crc32c.value(bytes(found[at : at + 60])), bytes(found[at + HEADER_LENGTH : end])
        )
        found[at + 60 : at + 64] = crc.to_bytes(4, "little")
        at = found.find(MAGIC, end)
    return bytes(found)


def _check_header(header: FrameHeader) -> None:
    """Check that only headers that this code could have written are read: the driver log refuses others."""
    assert header.payload_length > 0
    assert header.records >= 1
    assert min(header.receiver_id, header.epoch, header.sequence, header.registered_through) >= 0
    assert (header.kind is FrameKind.DEAD_LETTER) == (header.reason is not None)


def _check_segment(data: bytes) -> None:
    source = _Bytes(data)
    items = list(scan_source(source))
    assert source.read_bytes <= 20 * len(data) + HEADER_LENGTH
    end = 0
    segment = OpenSegment(1, 1, 3, "receiver-1/3-1.segment", "not_sent_again")
    found = FoundFrames(3, 0)
    for item in items:
        assert item.offset == end
        assert item.length > 0
        end = item.offset + item.length
        assert end <= len(data)
        if isinstance(item, TornTail):
            assert item is items[-1]
            continue
        if item.header is not None:
            _check_header(item.header)
        if isinstance(item, IntactFrame):
            _read(data[item.offset : end], item)
        found.add(segment, item)
    assert end == len(data) or not items
    assert len(found.blocks) + len(found.letters) + len(found.damaged) <= len(items)
    # However large a forged number is, these only count.
    for rule in SourceRule:
        assert found.count_unread(rule) >= 0
    assert found.unreadable_bytes <= len(data)
    assert sum(isinstance(item, DamagedFrame) for item in items) <= len(data) // HEADER_LENGTH + 1


def _read(data: bytes, item: IntactFrame) -> None:
    frame = checked_frame(data, "a.segment", item.offset, item.length, item.crc32c)
    for keys in (BlockKeys(), BlockKeys([_Reference()])):
        try:
            for batch in batches_of(frame, "a.segment", item.offset, keys):
                batch.validate(full=True)
        except (BlockCorruptError, BlockKeyError, BlockAlteredError):
            continue


@fuzzed("segment", valid=_SEGMENTS, words=_WORDS, attacks=[MAGIC * 20_000, _WHOLE[:-1] + _WHOLE * 50, _LETTER[1:] * 40])
def test_a_segment_is_frames_damage_and_a_torn_tail(data: bytes) -> None:
    _check_segment(data)


@fuzzed("segment_with_right_checksums", valid=_SEGMENTS, words=_WORDS, attacks=[_frame(_PAYLOAD, 2**62) * 3])
def test_frames_that_are_forged_with_right_checksums_are_read_or_refused(data: bytes) -> None:
    _check_segment(_sealed(data))


@fuzzed("frame_header", valid=[_WHOLE[:HEADER_LENGTH], _LETTER[:HEADER_LENGTH], _SECRET[:HEADER_LENGTH]])
def test_a_header_is_one_that_was_written_or_is_refused(data: bytes) -> None:
    for raw in (data, _sealed(data)):
        try:
            header, _ = decode_header(raw)
        except InvalidFrameError:
            continue
        _check_header(header)


@fuzzed("frame_by_handle", valid=[_WHOLE, _LETTER, _SECRET, _NOTE], words=_WORDS)
def test_a_frame_is_what_its_handle_says_or_is_refused(data: bytes) -> None:
    for expected in (_WHOLE, _SECRET):
        crc = int.from_bytes(expected[60:64], "little")
        try:
            frame = checked_frame(data, "a.segment", 0, len(expected), crc)
        except (BlockCorruptError, BlockMissingError):
            continue
        assert frame.data[: len(expected)] == expected

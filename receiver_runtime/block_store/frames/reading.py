"""Check a frame's stored bytes, for every kind of store, so that the frame can be trusted.

Owns the comparison with the handle in the driver log: length, both checksums, the kind; and what comes out of an
encrypted frame. It reads nothing itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from receiver_runtime.block_store.frames.errors import BlockCorruptError, BlockMissingError, InvalidFrameError
from receiver_runtime.block_store.frames.frame import (
    HEADER_LENGTH,
    FrameHeader,
    FrameKind,
    authenticated_header,
    decode_header,
    frame_checksum,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from receiver_runtime.block_store.frames.encryption import BlockKeys

# A quarter of what processors can address: no payload decompresses to this.
_IMPOSSIBLE_BYTES = 2**46


@dataclass(frozen=True, slots=True)
class StoredFrame:
    """Hold a frame that was read and whose checksum is right; ``data`` is all of it, as it is in the segment.

    ``payload`` is as it is stored too; ``content_of`` decrypts it.
    """

    header: FrameHeader
    payload: pa.Buffer
    data: bytes


class FrameAt(NamedTuple):
    """Name a frame in a segment, by its handle."""

    offset: int
    length: int
    crc32c: int


def lost_by_reading(
    read_frame: Callable[[str, int, int, int], StoredFrame], path: str, frames: Sequence[FrameAt]
) -> set[FrameAt]:
    """Return the frames that are missing or have other bytes. For stores where a crash may spoil a frame."""
    lost = set()
    for at in frames:
        try:
            read_frame(path, *at)
        except (BlockMissingError, BlockCorruptError):
            lost.add(at)
    return lost


def checked_frame(data: bytes, where: str, offset: int, length: int, crc32c: int) -> StoredFrame:
    """Return the frame in ``data`` after comparing it with its handle.

    Raises:
        BlockMissingError: there are fewer bytes than the handle says.
        BlockCorruptError: the bytes are not the frame that was registered.
    """
    import pyarrow as pa  # noqa: PLC0415  see `frame`

    if len(data) < length:
        raise BlockMissingError(where, offset, length, f"the file ends after {len(data)} of them")
    raw = data[:HEADER_LENGTH]
    try:
        header, carried = decode_header(raw)
    except InvalidFrameError as error:
        raise BlockCorruptError(where, offset, "a frame", "none", str(error)) from error
    if header.frame_length != length:
        raise BlockCorruptError(
            where, offset, f"{length} bytes", f"{header.frame_length} bytes", "another frame's length"
        )
    payload = pa.py_buffer(data).slice(HEADER_LENGTH)
    found = frame_checksum(raw, payload)
    if found != crc32c or carried != crc32c:
        raise BlockCorruptError(
            where, offset, f"crc32c {crc32c:08x}", f"crc32c {found:08x}", f"the frame carries {carried:08x}"
        )
    return StoredFrame(header, payload, data)


def content_of(frame: StoredFrame, where: str, offset: int, keys: BlockKeys) -> pa.Buffer:
    """Return the payload, decrypted if the frame is encrypted.

    Raises:
        BlockKeyError: its key is missing here.
        BlockAlteredError: the frame is not as it was encrypted, although its checksums are right.
    """
    if not frame.header.encrypted:
        return frame.payload
    return keys.decrypt(frame.payload, authenticated_header(frame.data), where, offset)


def batches_of(frame: StoredFrame, where: str, offset: int, keys: BlockKeys) -> Iterator[pa.RecordBatch]:
    """Return the record batches of a block's frame, decompressed one at a time.

    Raises BlockCorruptError if it is no block or no valid one, and as ``content_of``.
    """
    if frame.header.kind is not FrameKind.BLOCK:
        raise BlockCorruptError(where, offset, "a block", frame.header.kind.name, "frame kind")
    return _validated(content_of(frame, where, offset, keys), where, offset)


def letters_of(frame: StoredFrame, where: str, offset: int, keys: BlockKeys) -> list[bytes]:
    """Return the dead letters of a frame, in order: those of a group, or the only one.

    Raises BlockCorruptError if it is no frame of dead letters or no valid one, and as ``content_of``.
    """
    if frame.header.kind not in (FrameKind.DEAD_LETTER, FrameKind.LETTER_GROUP):
        raise BlockCorruptError(where, offset, "dead letters", frame.header.kind.name, "frame kind")
    from receiver_runtime.block_store.frames.letter_group import decode_letters  # noqa: PLC0415  loads numpy

    content = content_of(frame, where, offset, keys).to_pybytes()
    if frame.header.kind is FrameKind.DEAD_LETTER:
        return [content]
    try:
        return decode_letters(content)
    except InvalidFrameError as error:
        raise BlockCorruptError(where, offset, "a group of dead letters", "another content", str(error)) from error


def _validated(payload: pa.Buffer, where: str, offset: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa  # noqa: PLC0415  see `frame`

    from receiver_runtime.block_store.frames.payload import decode_batches  # noqa: PLC0415  loads pyarrow

    try:
        yield from decode_batches(payload)
    except MemoryError as error:
        # Arrow's is an ArrowException too, and says nothing about the bytes, unless they ask for the impossible.
        asked = re.search(r"of size (\d+)", str(error))
        if asked is None or int(asked[1]) < _IMPOSSIBLE_BYTES:
            raise
        raise BlockCorruptError(where, offset, "a valid Arrow stream", "another", str(error)) from error
    except (pa.ArrowException, OSError) as error:
        raise BlockCorruptError(where, offset, "a valid Arrow stream", "another", str(error)) from error

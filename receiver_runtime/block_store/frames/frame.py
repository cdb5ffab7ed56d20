"""Encode frames and check their headers: a frame is one block, or dead letters, as they lie in a segment file.

This module owns the bytes of a frame and their validation; it never opens a file. Frames are explained in
docs/explanation/path-of-a-record.md, step 3.

A frame is a header of 64 bytes, little-endian, and a payload of ``payload_length`` bytes right behind it:

====== ==== ===================== ==========================================================================
offset size field                 meaning
====== ==== ===================== ==========================================================================
0      4    magic                 ``FBAY``
4      1    header version        1; 2 if the payload is encrypted
5      1    kind                  1 block, 2 dead letter, 3 note, 4 group of dead letters
6      1    source rule           whether the sender sends these records again, for salvage
7      1    reason                0, or the reason of a dead letter, or of all letters of a group
8      4    part                  of a dead letter: which part of a record that was too large to hold, or 0;
                                  of a group: how many letters it has; of a block: the mark
12     4    records               records in the block; of all other kinds: the mark
16     8    receiver id
24     8    epoch                 of the process that wrote it
32     8    sequence              the block's; of all other kinds, that of the newest block before it
40     8    registered_through    the newest sequence known to be registered when this was written
48     8    payload_length        as it is stored; never 0
56     4    header checksum       crc32c of bytes 0 to 55: the length can be trusted before the payload is read
60     4    frame checksum        crc32c of bytes 0 to 59 and the payload; the handle in the driver log holds it
====== ==== ===================== ==========================================================================

The mark is a random number that the process chose when it began, never 0. A sender can put the bytes of a whole frame
into a record, and may know receiver and epoch, but not the mark: where a scan has lost its place, only frames with the
segment's mark count.

A header of zeros never validates: it has no magic, no version and no length. The header's own checksum tells an
incomplete last frame (its length is true and points past the end) from a damaged one.

The payload of a block is one self-contained Arrow IPC stream; the payload of a dead letter is the record's raw bytes,
and that of a group is in ``letter_group``. A note holds its ``registered_through``, for a process that stores no block
after its last acknowledgement, or the moves of channels that go with the block behind it; it is never encrypted.
``encryption`` has the layout of an encrypted payload. A header is never encrypted: salvage and scans need no key.

A note stands before each write of dead letters: it tells a scan the segment's mark. Without it, a scan of a segment
whose first letter has a damaged header would accept a frame that a sender has put into a letter.

Arrow is imported where a frame is made or read: the agent and the tracker open stores and never do that, and would hold
15 MB for it.
"""

from __future__ import annotations

import secrets
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import google_crc32c

from receiver_runtime.block_store.frames.encryption import OVERHEAD_BYTES
from receiver_runtime.block_store.frames.errors import InvalidFrameError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from receiver_runtime.block_store.frames.encryption import FrameEncryptor

MAGIC = b"FBAY"
HEADER_VERSION = 1
ENCRYPTED_VERSION = 2
_HEADER = struct.Struct("<4sBBBBIIqqqqQII")
HEADER_LENGTH = _HEADER.size
_CHECKED_BY_HEADER = HEADER_LENGTH - 8
_CHECKED_BY_FRAME = HEADER_LENGTH - 4
# One frame is one write: the most bytes that Linux takes in a single call, rounded down.
MAX_PAYLOAD_LENGTH = 0x7FFF_0000 - HEADER_LENGTH


class FrameKind(IntEnum):
    """Name the kind of a frame's content."""

    BLOCK = 1
    DEAD_LETTER = 2
    NOTE = 3
    LETTER_GROUP = 4


class SourceRule(IntEnum):
    """Say whether the sender sends the records again, which decides how a dead process's segments are salvaged.

    It has the names of ``receiver_runtime.sources.source.SourceRule``, which declarations use.
    """

    NOT_SENT_AGAIN = 1  # sockets: the successor registers what was stored and never registered
    SENT_AGAIN = 2  # HTTP, AMQP, MQTT: the sender got no acknowledgement and sends again
    OFFSETS = 3  # Kafka: the chain of offsets decides

    @property
    def label(self) -> str:
        """Return the rule as the table of segments spells it."""
        return self.name.lower()


class DeadLetterReason(IntEnum):
    """Name the reason why a record is a dead letter. The driver log has the name in lower case (``label``)."""

    INVALID_ENCODING = 1
    RECORD_TOO_LARGE = 2
    TRUNCATED = 3
    INVALID_LENGTH = 4
    UNPARSABLE = 5
    INVALID_TEXT = 6
    REPEATED_KEY = 7
    DOES_NOT_FIT = 8

    @property
    def label(self) -> str:
        """Return the reason as the table of dead letters spells it."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class FrameFields:
    """Hold what a writer says of a frame. ``reason`` and ``part`` are for dead letters; a group's ``part`` is 0."""

    kind: FrameKind
    source_rule: SourceRule
    receiver_id: int
    epoch: int
    sequence: int
    registered_through: int
    records: int
    mark: int
    reason: DeadLetterReason | None = None
    part: int = 0
    #: How many dead letters a group has; 0 for all other kinds.
    letters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameHeader(FrameFields):
    """Hold the fields of a frame's header."""

    payload_length: int
    encrypted: bool = False

    @property
    def frame_length(self) -> int:
        """Return the length of header and payload, in bytes."""
        return HEADER_LENGTH + self.payload_length

    @property
    def content_length(self) -> int:
        """Return the length of the payload before it was encrypted, in bytes."""
        return self.payload_length - (OVERHEAD_BYTES if self.encrypted else 0)


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """Hold a frame ready to be written: its header and the parts of its payload, none of which is copied."""

    header: bytes
    parts: Sequence[pa.Buffer]
    crc32c: int

    @property
    def length(self) -> int:
        """Return the length of header and payload, in bytes."""
        return sum(map(len, self.buffers))

    @property
    def payload(self) -> pa.Buffer:
        """Return the payload in one piece, copied if it has several parts."""
        import pyarrow as pa  # noqa: PLC0415  see the module

        return self.parts[0] if len(self.parts) == 1 else pa.py_buffer(b"".join(self.parts))

    @property
    def buffers(self) -> Sequence[pa.Buffer | bytes]:
        """Return the whole frame in parts, in order."""
        return (self.header, *self.parts)


def encode_frame(
    payload: pa.Buffer | bytes | Sequence[pa.Buffer], fields: FrameFields, *, encryptor: FrameEncryptor | None = None
) -> EncodedFrame:
    """Frame a payload, which may come in parts; with an ``encryptor``, encrypted.

    Raises:
        InvalidFrameError: the payload is empty or larger than ``MAX_PAYLOAD_LENGTH``, a block has no records, a dead
            letter no reason, or the frame no mark.
    """
    import pyarrow as pa  # noqa: PLC0415  see the module

    parts: Sequence[pa.Buffer]
    if isinstance(payload, bytes):
        parts = (pa.py_buffer(payload),)
    else:
        parts = (payload,) if isinstance(payload, pa.Buffer) else payload
    size = sum(map(len, parts))
    if encryptor is not None and size:
        size += OVERHEAD_BYTES
    if not 0 < size <= MAX_PAYLOAD_LENGTH:
        raise InvalidFrameError(
            f"a payload of {size} bytes can't be framed: it must have 1 to {MAX_PAYLOAD_LENGTH}; "
            "make smaller blocks (max_block_bytes)"
        )
    if fields.records < 1:
        raise InvalidFrameError(
            f"a frame with {fields.records} records: store at least one (an empty block is not stored)"
        )
    if (fields.kind in (FrameKind.DEAD_LETTER, FrameKind.LETTER_GROUP)) != (fields.reason is not None):
        raise InvalidFrameError("a dead letter has a reason, and a block has none")
    if not fields.mark:
        raise InvalidFrameError("a frame with mark 0: give the mark that its process chose (random_mark)")
    is_block = fields.kind is FrameKind.BLOCK
    header = (
        MAGIC,
        HEADER_VERSION if encryptor is None else ENCRYPTED_VERSION,
        fields.kind,
        fields.source_rule,
        0 if fields.reason is None else fields.reason,
        fields.mark if is_block else fields.letters if fields.kind is FrameKind.LETTER_GROUP else fields.part,
        fields.records if is_block else fields.mark,
        fields.receiver_id,
        fields.epoch,
        fields.sequence,
        fields.registered_through,
        size,
    )
    bare = _HEADER.pack(*header, 0, 0)
    if encryptor is not None:
        parts = encryptor.encrypt(parts, bare[:_CHECKED_BY_HEADER])
    header_crc = google_crc32c.value(bare[:_CHECKED_BY_HEADER])
    checked = _HEADER.pack(*header, header_crc, 0)[:_CHECKED_BY_FRAME]
    crc = google_crc32c.value(checked)
    for piece in parts:
        crc = google_crc32c.extend(crc, piece)
    return EncodedFrame(header=checked + crc.to_bytes(4, "little"), parts=parts, crc32c=crc)


def random_mark() -> int:
    """Return a mark for the frames of one process."""
    return 1 + secrets.randbelow(2**32 - 1)


def decode_header(data: bytes) -> tuple[FrameHeader, int]:
    """Read and validate a header, including its own checksum; return it and the frame's checksum that it carries.

    Args:
        data: at least ``HEADER_LENGTH`` bytes, of which the first are the header.

    Raises:
        InvalidFrameError: this is no valid header of a known version.
    """
    if len(data) < HEADER_LENGTH:
        raise InvalidFrameError(f"{len(data)} bytes are no header, which has {HEADER_LENGTH}: the file ends here")
    (
        magic,
        version,
        kind,
        rule,
        reason,
        part,
        records,
        receiver,
        epoch,
        sequence,
        through,
        length,
        header_crc,
        crc,
    ) = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise InvalidFrameError(f"no frame begins here: found {magic!r} where {MAGIC!r} should stand")
    if version not in (HEADER_VERSION, ENCRYPTED_VERSION):
        raise InvalidFrameError(
            f"header version {version} is not known here (known: {HEADER_VERSION}, {ENCRYPTED_VERSION}): "
            "read it with the release that wrote it"
        )
    found = google_crc32c.value(bytes(data[:_CHECKED_BY_HEADER]))
    if found != header_crc:
        raise InvalidFrameError(f"the header is damaged: its checksum is {header_crc:08x}, its bytes give {found:08x}")
    encrypted = version == ENCRYPTED_VERSION
    if not (OVERHEAD_BYTES if encrypted else 0) < length <= MAX_PAYLOAD_LENGTH:
        raise InvalidFrameError(f"a payload length of {length} is impossible")
    is_block, is_group = kind == FrameKind.BLOCK, kind == FrameKind.LETTER_GROUP
    mark = part if is_block else records
    if min(receiver, epoch, sequence, through) < 0 or not mark or (is_block and not records):
        raise InvalidFrameError(
            f"no process writes such a header: receiver {receiver}, epoch {epoch}, sequence {sequence}, registered "
            f"through {through}, {records} records, mark {mark}"
        )
    if (is_group or kind == FrameKind.DEAD_LETTER) != bool(reason):
        raise InvalidFrameError(f"a frame of kind {kind} with reason {reason}: a dead letter has a reason, others none")
    try:
        header = FrameHeader(
            kind=FrameKind(kind),
            source_rule=SourceRule(rule),
            receiver_id=receiver,
            epoch=epoch,
            sequence=sequence,
            registered_through=through,
            records=records if is_block else 1,
            payload_length=length,
            mark=mark,
            reason=DeadLetterReason(reason) if reason else None,
            part=0 if is_block or is_group else part,
            encrypted=encrypted,
            letters=part if is_group else 0,
        )
    except ValueError as error:
        raise InvalidFrameError(f"{error}: read it with the release that wrote it") from error
    return header, crc


def authenticated_header(header: bytes) -> bytes:
    """Return the bytes of a header that the tag of an encrypted payload covers."""
    return bytes(header[:_CHECKED_BY_HEADER])


def header_checksum_seed(header: bytes) -> int:
    """Return the checksum of the header; extend it over the payload to get the frame's checksum."""
    return int(google_crc32c.value(bytes(header[:_CHECKED_BY_FRAME])))


def frame_checksum(header: bytes, payload: pa.Buffer | bytes) -> int:
    """Return the frame checksum of these bytes; it equals the carried one if the frame is intact."""
    return int(google_crc32c.extend(header_checksum_seed(header), payload))

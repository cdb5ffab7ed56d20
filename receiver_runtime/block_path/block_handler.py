"""Turn blocks and dead letters into frames, and store them in the write-ahead log (the original's H02).

There is one handler; *durable* and *ephemeral* differ only in the log's sync. It keeps no block after storing it, and
registers nothing: a stored block counts only once the driver log has it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from receiver_runtime.block_path.channel_moves import encode_moves
from receiver_runtime.block_path.load.codec_choice import CodecChoice
from receiver_runtime.block_store.frames.columns import fitted, stamped
from receiver_runtime.block_store.frames.frame import (
    DeadLetterReason,
    FrameFields,
    FrameKind,
    SourceRule,
    encode_frame,
    random_mark,
)
from receiver_runtime.block_store.frames.letter_group import encode_letters
from receiver_runtime.block_store.frames.payload import DEFAULT_COMPRESSION, encode_parts
from tracker_store.blocks.blocks import NewBlock
from tracker_store.blocks.dead_letters import StoredDeadLetter

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from receiver_runtime.block_path.load.codec_choice import CompressionSetting
    from receiver_runtime.block_path.write_ahead_log import WriteAheadLog
    from receiver_runtime.block_store.frames.encryption import FrameEncryptor
    from receiver_runtime.block_store.frames.frame import EncodedFrame
    from receiver_runtime.block_store.frames.payload import Compression
    from tracker_store.blocks.blocks import BlockHandle, ChannelMove


# A frame must have a payload, though a note needs none.
_NOTE_PAYLOAD = b"\0"
# Bytes: a larger letter, or one that continues another, has a frame and a row of its own. So all parts of a record that
# was too large to hold have one.
_SMALL_LETTER = 2**16
# Threads that encode one block. More would only help a source that is faster than any known here.
_MOST_ENCODERS = 4
# Bytes of memory that a letter takes beside its data.
_LETTER_BYTES = 400


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Hold a record that can't be stored as intended: raw bytes, and the reason.

    ``left_out``: how many bytes more the record had, of one that is too large to be kept whole. ``peer`` names the
    sender of a connection that anyone may open: its letters have a budget (``dead_letter_budget``). Empty: all of them
    are kept. ``why`` tells people more than the reason does; it is reported, and not stored.
    """

    reason: DeadLetterReason
    data: bytes
    peer: str = ""
    left_out: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """Hold a block as it will be stored, without its frame: so it can be encoded before it has a sequence.

    ``letters`` are the rows that it leaves out. If it leaves out all, it has no records, and is not stored.
    """

    payload: Sequence[pa.Buffer]
    records: int
    codec: Compression = DEFAULT_COMPRESSION
    letters: Sequence[DeadLetter] = ()

    @property
    def nbytes(self) -> int:
        """Return the size of the payload and of the letters in memory."""
        letters = [_LETTER_BYTES + len(letter.data) for letter in self.letters]
        return sum([buffer.size for buffer in self.payload] + letters)


class BlockHandler:
    """Store one epoch's blocks. Safe from any thread; the caller assigns sequences in order.

    With an ``encryptor``, blocks and dead letters are encrypted; notes are not, because they hold no record. ``codec``
    says how blocks are compressed.
    """

    def __init__(
        self,
        log: WriteAheadLog,
        schema: pa.Schema,
        *,
        compression: CompressionSetting = DEFAULT_COMPRESSION,
        encryptor: FrameEncryptor | None = None,
    ) -> None:
        self._log = log
        self._letters_log = log.for_dead_letters()
        self._schema = stamped(schema)
        self._claim = log.claim
        self.registered_through = log.registered_through
        self.codec = CodecChoice(compression)
        self._encoders = min(_processors(), _MOST_ENCODERS)
        self._encryptor = encryptor
        # Senders never learn it: it tells frames of this process from bytes in a record that look like one.
        self._mark = random_mark()
        # The newest block, and the newest block of a sender that sends again until it gets an acknowledgement.
        self._newest = 0
        self._newest_sent_again = 0
        # The newest sequence that a frame records as registered, and the newest block at the last idle moment.
        self._recorded_through = 0
        self._newest_when_idle = 0

    def encode(self, batches: Sequence[pa.RecordBatch], *, queued: bool = False) -> EncodedBlock:
        """Encode a block ahead of its turn, while the block before it is written. Holds no lock.

        ``queued``: the block comes from a queue, so it takes the codec that fits the moment.
        """
        codec = self.codec.codec if queued else self.codec.base
        # Columns are only added: the widest schema is the newest.
        if len(widest := max((batch.schema for batch in batches), key=len)) > len(self._schema):
            self._schema = stamped(widest)
        schema = self._schema
        if any(len(batch.schema) < len(schema) for batch in batches):
            batches = list(map(fitted(schema.remove_metadata()), batches))
        payload = encode_parts(schema, batches, compression=codec, threads=self._encoders)
        return EncodedBlock(payload, sum(batch.num_rows for batch in batches), codec)

    def store_block(
        self,
        block: EncodedBlock | Sequence[pa.RecordBatch],
        *,
        sequence: int,
        source_rule: SourceRule | None = None,
        moves: Sequence[ChannelMove] = (),
    ) -> NewBlock:
        """Store one block; on return it survives a crash and waits to be registered.

        ``source_rule`` is this block's own rule, if it differs from the other blocks' rule. ``moves`` of channels are
        stored in a note before it, so that a salvage that registers the block moves them too.

        Raises: as ``WriteAheadLog.write``, and InvalidFrameError for a block without records.
        """
        encoded = block if isinstance(block, EncodedBlock) else self.encode(block)
        rule = self._log.source_rule if source_rule is None else source_rule
        through = self.registered_through.sequence
        frame = encode_frame(
            encoded.payload,
            FrameFields(
                kind=FrameKind.BLOCK,
                source_rule=rule,
                receiver_id=self._claim.receiver_id,
                epoch=self._claim.epoch,
                sequence=sequence,
                registered_through=through,
                records=encoded.records,
                mark=self._mark,
            ),
            encryptor=self._encryptor,
        )
        before = [self._note_frame(sequence, through, payload=encode_moves(moves))] if moves else []
        handle = self._log.write([*before, frame], sequence=sequence, codec=encoded.codec)[-1]
        self._newest = sequence
        self._recorded_through = max(self._recorded_through, through)
        if rule is SourceRule.SENT_AGAIN:
            self._newest_sent_again = sequence
        return NewBlock(self._claim.receiver_id, self._claim.epoch, sequence, encoded.records, handle.length, handle)

    def note_moves(self, moves: Sequence[ChannelMove], *, sequence: int) -> Sequence[BlockHandle]:
        """Store a note of moves that no block goes with; ``sequence`` is the next block's.

        Raises: as ``WriteAheadLog.write``. Call ``moves_recorded`` when they are made; no note is sealed before.
        """
        through = self.registered_through.sequence
        note = self._note_frame(sequence, through, payload=encode_moves(moves, alone=True))
        handles = self._log.write([note], until_recorded=True)
        self._recorded_through = max(self._recorded_through, through)
        return handles

    def moves_recorded(self, handles: Sequence[BlockHandle]) -> None:
        """Say that the driver log has made the moves of a note, or refused them."""
        self._log.recorded(handles)

    def store_dead_letters(
        self, letters: Sequence[DeadLetter], *, sequence: int, empty: Sequence[DeadLetterReason] = ()
    ) -> list[StoredDeadLetter]:
        """Store dead letters by one sync; return the rows to record: a group for each reason, large letters one by one.

        ``empty`` are reasons to store a group without letters for: its row counts letters that are not kept.
        Raises as ``WriteAheadLog.write``. Call ``dead_letters_recorded`` afterwards.
        """
        groups: dict[DeadLetterReason, list[bytes]] = {reason: [] for reason in empty}
        left_out: dict[DeadLetterReason, int] = {}
        large = []
        for letter in letters:
            # One that was cut is told from the whole ones, which can be sent again.
            is_cut = letter.left_out and letter.reason is not DeadLetterReason.RECORD_TOO_LARGE
            if is_cut or len(letter.data) > _SMALL_LETTER:
                large.append(letter)
            else:
                groups.setdefault(letter.reason, []).append(letter.data)
                left_out[letter.reason] = left_out.get(letter.reason, 0) + letter.left_out
        frames = [self._letter_frame(reason, of_reason, sequence=sequence) for reason, of_reason in groups.items()]
        frames += [self._letter_frame(one.reason, one, sequence=sequence) for one in large]
        # A note first, so that a scan knows the segment's mark: see ``frame``.
        handles = self._letters_log.write([self._note_frame(sequence), *frames], until_recorded=True)
        self._letters_log.recorded(handles[:1])
        stored = iter(handles[1:])
        return [
            StoredDeadLetter(
                reason.label,
                0,
                sum(map(len, of_reason)),
                next(stored),
                letters=len(of_reason),
                dropped_bytes=left_out.get(reason, 0),
            )
            for reason, of_reason in groups.items()
        ] + [
            StoredDeadLetter(one.reason.label, 0, len(one.data), next(stored), dropped_bytes=one.left_out)
            for one in large
        ]

    def dead_letters_recorded(self, letters: Sequence[StoredDeadLetter]) -> None:
        """Say that these dead letters have their rows: until then their segment is not sealed."""
        self._letters_log.recorded([letter.handle for letter in letters])

    def close_aged_segments(self) -> None:
        """Close a segment that has reached its age. Called while nothing is being stored.

        If no block was stored since the last idle moment, or the file is about to be closed, write a note of what is
        registered first. A segment stays open while it holds blocks that still need such a note.
        """
        newest = self._newest
        before, self._newest_when_idle = self._newest_when_idle, newest
        if before == newest or self._log.is_due:
            self._note()
        noted = self._newest_sent_again <= self._recorded_through
        self._log.roll_if_due(unless_after=newest if noted else self._recorded_through)
        self._letters_log.roll_if_due()

    def close(self) -> None:
        """Write a note of what is registered, and close the logs. A last segment is sealed if all is registered."""
        self._note()
        self._log.close()
        self._letters_log.close()

    def _note(self) -> None:
        """Record which blocks were acknowledged, if no frame says so and their senders will not send them again.

        A driver log that lost its last commits no longer knows it. The segment file then tells a block that was
        acknowledged from one that its sender sends again. A note that can't be written is not needed yet.
        """
        through = self.registered_through.sequence
        if min(self._newest_sent_again, through) <= self._recorded_through:
            return
        if self._log.note(self._note_frame(self._newest, through)):
            self._recorded_through = through

    def _note_frame(self, sequence: int, through: int | None = None, *, payload: bytes = _NOTE_PAYLOAD) -> EncodedFrame:
        return encode_frame(
            payload,
            FrameFields(
                kind=FrameKind.NOTE,
                source_rule=self._log.source_rule,
                receiver_id=self._claim.receiver_id,
                epoch=self._claim.epoch,
                sequence=sequence,
                registered_through=self.registered_through.sequence if through is None else through,
                records=1,
                mark=self._mark,
            ),
        )

    def _letter_frame(
        self, reason: DeadLetterReason, content: DeadLetter | Sequence[bytes], *, sequence: int
    ) -> EncodedFrame:
        if isinstance(content, DeadLetter):
            kind, payload, letters = FrameKind.DEAD_LETTER, content.data, 0
        else:
            kind, payload, letters = FrameKind.LETTER_GROUP, encode_letters(content), len(content)
        return encode_frame(
            payload,
            FrameFields(
                kind=kind,
                source_rule=self._log.source_rule,
                receiver_id=self._claim.receiver_id,
                epoch=self._claim.epoch,
                sequence=sequence,
                registered_through=self.registered_through.sequence,
                records=1,
                reason=reason,
                mark=self._mark,
                letters=letters,
            ),
            encryptor=self._encryptor,
        )


def _processors() -> int:
    """Return how many processors this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1

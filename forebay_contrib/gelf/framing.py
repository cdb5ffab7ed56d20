"""Make rows of GELF messages: of datagrams, whole or in chunks, and of streams in which a NUL ends each message.

Memory is bounded: that of a connection by ``max_record_bytes``, that of chunks by ``max_chunk_bytes``, and that of a
read of datagrams, which may be compressed, by a part of its rows.
"""

from __future__ import annotations

import codecs
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from forebay_contrib.gelf.chunks import MAGIC, ChunkAssembler
from forebay_contrib.gelf.declaration import Gelf
from forebay_contrib.gelf.messages import BLANKS, NoMessageError, errors_in, inflated, is_compressed
from receiver_runtime.block_path.records import schema_of
from receiver_runtime.receivers.connection_places import peer_of
from receiver_runtime.receivers.framing import Cut, aside, too_large
from receiver_runtime.receivers.lines import LineFraming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from receiver_runtime.block_path.block_handler import DeadLetter
    from receiver_runtime.receivers.framing import Piece
    from receiver_runtime.receivers.lines import LineSplitter

_NUL = b"\0"
_PART_BYTES = 4 * 2**20  # decompressed bytes of one part of a read
_MAPPED = "::ffff:"  # before an IPv4 address, where a socket for both IP versions received it


def _now() -> int:
    return time.time_ns() // 1000


class GelfFraming:
    """Turn messages into the columns of ``Gelf``.

    Args:
        source: the limits.
        now: gives microseconds since 1970.
        clock: gives monotonic seconds.
    """

    schema = schema_of(Gelf.columns)

    def __init__(
        self, source: Gelf, *, now: Callable[[], int] = _now, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._max = source.max_record_bytes
        self._now = now
        self._frames = LineFraming(delimiter=_NUL, max_record_bytes=self._max)
        #: Only the thread that cuts datagrams may use it.
        self.chunks = ChunkAssembler(timeout=source.chunk_timeout, max_bytes=source.max_chunk_bytes, clock=clock)

    def open(self) -> LineSplitter:
        """Return a new connection's splitter."""
        return self._frames.open()

    def cut(self, pieces: Sequence[Piece]) -> Cut:
        """Return the messages of these pieces, in order."""
        rows = _Rows()
        for piece in pieces:
            sender = piece.peer.rpartition(":")[0].strip("[]")
            texts = [piece.data] if piece.is_last else piece.data.split(_NUL)
            for text in texts:
                if len(text) > self._max:
                    rows.letters.append(too_large(text, peer=piece.counted_as))
                else:
                    rows.add(text, sender)
        return rows.cut(self._now())

    def cut_datagrams(self, datagrams: Sequence[bytes], senders: Sequence[str]) -> Iterator[Cut]:
        """Yield the messages of these datagrams, in parts, and of earlier ones whose messages they complete."""
        rows = _Rows()
        for datagram, sender in zip(datagrams, senders, strict=True):
            message: bytes | None = datagram
            if datagram[: len(MAGIC)] == MAGIC:
                message = self.chunks.take(datagram, sender)
                rows.letters += self.chunks.letters()
            if message is not None:
                self._add(rows, message, sender)
            if rows.nbytes >= _PART_BYTES:
                yield rows.cut(self._now())
                rows = _Rows()
        yield rows.cut(self._now())

    def _add(self, rows: _Rows, message: bytes, sender: str) -> None:
        text = message
        if is_compressed(message):
            try:
                text = inflated(message, self._max)
            except NoMessageError as error:
                rows.refuse(message, sender, error)
                return
        if len(text) > self._max:
            rows.letters.append(too_large(message, peer=peer_of(sender)))
        else:
            rows.add(text, sender)


class _Rows:
    """Gather messages with their senders, and what is none."""

    def __init__(self) -> None:
        self.letters: list[DeadLetter] = []
        self.nbytes = 0
        self._texts: list[bytes] = []
        self._senders: list[str] = []

    def add(self, text: bytes, sender: str) -> None:
        """Add what may be a message. Nothing is made of blanks: some senders end a message with a newline and a NUL."""
        text = text.removeprefix(codecs.BOM_UTF8)
        if text.strip(BLANKS):
            self._texts.append(text)
            self._senders.append(sender)
            self.nbytes += len(text)

    def refuse(self, data: bytes, sender: str, error: NoMessageError) -> None:
        """Put aside what is no message."""
        self.letters.append(replace(aside(error.reason, data, peer=peer_of(sender)), why=str(error)))
        self.nbytes += len(self.letters[-1].data)

    def cut(self, now: int) -> Cut:
        """Return what was gathered."""
        errors = errors_in(self._texts)
        for place, error in errors.items():
            self.refuse(self._texts[place], self._senders[place], error)
        texts, senders = self._texts, self._senders
        if errors:
            texts = [text for place, text in enumerate(texts) if place not in errors]
            senders = [sender for place, sender in enumerate(senders) if place not in errors]
        if not texts:
            return Cut(dead_letters=self.letters)
        schema = GelfFraming.schema
        columns = [
            pa.repeat(pa.scalar(now, pa.int64()).cast(schema.field("received_at").type), len(texts)),
            pa.array([sender.removeprefix(_MAPPED) for sender in senders], pa.string()),
            pa.array(texts, pa.binary()).cast(pa.string()),
        ]
        return Cut(pa.RecordBatch.from_arrays(columns, schema=schema), self.letters)

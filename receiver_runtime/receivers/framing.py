"""Define how a stream's bytes become records: in two steps, so that many connections share the second step.

A ``Splitter`` belongs to one connection: it holds the record whose end has not arrived yet, and returns whole records
as one piece of bytes. A ``Framing`` belongs to a receiver: it turns pieces, of one connection or of hundreds, into one
Arrow array by vector code. Neither knows sockets, and neither makes a Python object per record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_store.frames.frame import DeadLetterReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

#: Bytes that are kept of a record that becomes a dead letter, which may have any length; the rest is counted.
LETTER_BYTES = 2**16


@dataclass(slots=True)
class Piece:
    """Whole records of one connection, as they arrived.

    ``ends`` is where each record ends in ``data``, if the splitter had to find that out. ``starts`` is where each one
    begins, if that is not where the one before it ended. With ``is_last`` the piece is a single record, ended by the
    end of the stream and not by a delimiter. ``peer`` is the connection's sender, if the listener records it;
    ``counted_as`` is the peer whose budget its dead letters count in (``DeadLetter.peer``).
    """

    data: bytes
    ends: npt.NDArray[np.int32] | None = None
    is_last: bool = False
    starts: npt.NDArray[np.int32] | None = None
    peer: str = ""
    counted_as: str = ""


@dataclass(slots=True)
class Taken:
    """Hold the result of one read: whole records, and the dead letters before and after them in the stream.

    ``refusal`` says why no more can be read from the connection; the rest of the stream is lost.
    """

    before: list[DeadLetter] = field(default_factory=list)
    piece: Piece | None = None
    after: list[DeadLetter] = field(default_factory=list)
    refusal: str | None = None


@dataclass(slots=True)
class Cut:
    """Records in order (None if there are none; a batch if they have several columns), and dead letters."""

    records: pa.Array | pa.RecordBatch | None = None
    dead_letters: list[DeadLetter] = field(default_factory=list)


class Splitter(Protocol):
    """Split one connection's stream. The result does not depend on how the network cut the stream up."""

    def take(self, buffer: bytearray, count: int) -> Taken:
        """Take the next ``count`` bytes of the stream, from the start of ``buffer``; they are copied."""
        ...

    def finish(self, *, clean: bool) -> Taken:
        """End the stream.

        Args:
            clean: the sender ended it, so the last text record needs no delimiter. Otherwise the rest is a partial
                record.
        """
        ...


class Framing(Protocol):
    """Apply a source's rule for cutting records. Only one thread may use it."""

    @property
    def schema(self) -> pa.Schema:
        """Return the records' schema: one column, unless ``cut`` returns batches."""
        ...

    def open(self) -> Splitter:
        """Return a new connection's splitter."""
        ...

    def cut(self, pieces: Sequence[Piece]) -> Cut:
        """Return the records of any connections, in the order of the pieces."""
        ...


class Holding(Protocol):
    """Hold back what more of the stream may add to. Only the thread that cuts may use it."""

    def end(self, peers: Sequence[str] | None = None) -> Cut:
        """Return what these peers' connections (None: all) hold open: nothing more belongs to it."""
        ...

    def overdue(self) -> Cut:
        """Return what has waited for as long as it may."""
        ...

    def until_overdue(self) -> float | None:
        """Return in how many seconds ``overdue`` has something to return; None: nothing is held."""
        ...


@runtime_checkable
class JoiningFraming(Framing, Holding, Protocol):
    """Hold records back whose connections may add to them. ``cut`` returns those that are complete."""


def aside(
    reason: DeadLetterReason,
    data: bytes | bytearray,
    nbytes: int | None = None,
    *,
    peer: str = "",
    most: int = LETTER_BYTES,
) -> DeadLetter:
    """Return the dead letter of a record that has no bound: its beginning, and how much more there was.

    A sender that is acknowledged may have no other copy: what such sources put aside is kept whole.

    Args:
        data: the record, or its first bytes. What came behind the record may follow it.
        nbytes: the record's length; None: ``data`` is the whole record.
        most: how many bytes are kept.
    """
    size = len(data) if nbytes is None else nbytes
    kept = bytes(data[: min(most, size)])
    return DeadLetter(reason, kept, peer, size - len(kept))


def too_large(
    data: bytes | bytearray, nbytes: int | None = None, *, peer: str = "", most: int = LETTER_BYTES
) -> DeadLetter:
    """Return the dead letter of a record that is too large; see ``aside``."""
    return aside(DeadLetterReason.RECORD_TOO_LARGE, data, nbytes, peer=peer, most=most)

"""How the bytes of a stream become records, in two steps, so that many connections share the second one.

A ``Splitter`` belongs to one connection: it holds the record whose end has not come, and gives away whole records as
one piece of bytes. A ``Framing`` belongs to a receiver: it turns pieces, of one connection or of hundreds, into one
Arrow array by vector code. Neither knows sockets, and neither ever makes a Python object per record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from receiver_runtime.block_handler import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from receiver_runtime.block_store.frame import DeadLetterReason

#: A record that is put aside is kept in parts of this size.
PART_BYTES = 2**20


@dataclass(slots=True)
class Piece:
    """Whole records of one connection, as they came.

    ``ends`` is where each ends in ``data``, where the splitter had to find that out, and ``starts`` where it begins,
    where that is not where the last one ended. With ``is_last`` it is the one record that the end of the stream ended,
    in place of a delimiter. ``peer`` is whose connection it was, where the listener says so.
    """

    data: bytes
    ends: npt.NDArray[np.int32] | None = None
    is_last: bool = False
    starts: npt.NDArray[np.int32] | None = None
    peer: str = ""


@dataclass(slots=True)
class Taken:
    """What a read gave: whole records between what went aside before and after them.

    ``refusal`` says why no more can be read from the connection; what follows in the stream is lost.
    """

    before: list[DeadLetter] = field(default_factory=list)
    piece: Piece | None = None
    after: list[DeadLetter] = field(default_factory=list)
    refusal: str | None = None


@dataclass(slots=True)
class Cut:
    """Records in order (None when there are none), and what went aside. A batch where they have several columns."""

    records: pa.Array | pa.RecordBatch | None = None
    dead_letters: list[DeadLetter] = field(default_factory=list)


class Splitter(Protocol):
    """One connection's stream. What it gives does not depend on how the stream was cut up on its way."""

    def take(self, buffer: bytearray, count: int) -> Taken:
        """The next ``count`` bytes of the stream are at the start of ``buffer``; they are copied."""
        ...

    def finish(self, *, clean: bool) -> Taken:
        """The stream is over.

        Args:
            clean: the sender ended it, so that a text record needs no delimiter; else what is left is a part of one.
        """
        ...


class Framing(Protocol):
    """A source's rule. One thread."""

    @property
    def schema(self) -> pa.Schema:
        """Of the records: one column, unless ``cut`` gives batches."""
        ...

    def open(self, *, max_parts: int | None = None) -> Splitter:
        """A new connection's. Of a record that goes aside while it still comes, keep ``max_parts`` parts at most."""
        ...

    def cut(self, pieces: Sequence[Piece]) -> Cut:
        """Records of any connections, in the order of the pieces."""
        ...


def aside(reason: DeadLetterReason, data: bytes, part_bytes: int = PART_BYTES) -> Iterator[DeadLetter]:
    """A record as dead letters, a part each."""
    for part, start in enumerate(range(0, len(data), part_bytes)):
        yield DeadLetter(reason, data[start : start + part_bytes], part)

"""Hold requests of channels until they are answered: their records in parts, each of which goes into one block.

This module owns which rows are left out, and how they are counted for the sender's answer. It never stores anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from tracker_store.blocks.blocks import ChannelMove

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from concurrent.futures import Future

    import numpy.typing as npt

    from receiver_runtime.block_path.block_handler import DeadLetter
    from receiver_runtime.block_path.text_check import CheckedRows
    from tracker_store.blocks.blocks import NewBlock
    from tracker_store.blocks.channels import ChannelKey


class ChannelPositionError(Exception):
    """Go on from the channel's position: the request does not begin there. ``position`` is the registered one."""

    def __init__(self, position: int, why: str) -> None:
        super().__init__(why)
        self.position = position


class ChannelOutcome(NamedTuple):
    """Count a request's records: added, known before, and why rows are dead letters, by their place in the request.

    ``position`` is the channel's behind the request's last record, or a later one.
    """

    added: int
    duplicates: int
    misfits: Mapping[int, str]
    position: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Locate rows in a batch that several requests share: a slice for each costs more than a small request."""

    batch: pa.RecordBatch
    first: int
    count: int

    @property
    def end(self) -> int:
        """Return the number of the row behind the last one."""
        return self.first + self.count

    def of(self, first: int, count: int) -> Rows:
        """Return some of these rows."""
        return Rows(self.batch, self.first + first, count)


@dataclass(slots=True, eq=False)
class ChannelRequest:
    """Hold one request of a channel. ``nbytes`` is the size of its rows.

    ``rejected`` of its records could not be parsed, and ``letters`` are those of them that are kept. Nothing says
    between which rows they were, so the request is taken as a whole or not at all.
    """

    channel: ChannelKey
    offset: int
    rows: Rows
    nbytes: int
    rejected: int = 0
    letters: Sequence[DeadLetter] = ()
    #: What was done so far, and how many parts are left to do.
    added: int = 0
    duplicates: int = 0
    misfits: dict[int, str] = field(default_factory=dict)
    parts_left: int = 1
    is_answered: bool = False

    @property
    def end(self) -> int:
        """Return the offset behind the last record."""
        return self.offset + self.rows.count + self.rejected

    def part(self) -> ChannelPart:
        """Return the whole request as a part."""
        return ChannelPart(self, self.offset, self.end, self.rows, letters=list(self.letters))


@dataclass(slots=True, eq=False)
class ChannelPart:
    """Hold records of one request that go into one block: the offsets from ``begin`` to ``end``.

    ``places`` has the offset of each row; None: they follow each other from ``begin`` on.
    """

    request: ChannelRequest
    begin: int
    end: int
    rows: Rows
    places: npt.NDArray[np.int64] | None = None
    #: Records that could not be parsed, and are still to be stored.
    letters: list[DeadLetter] = field(default_factory=list)
    #: Whether its rows were checked, and its dead letters stored and counted.
    is_checked: bool = False

    @property
    def countable(self) -> int:
        """Return how many of its records are not counted as dead letters."""
        return self.rows.count if self.is_checked else self.end - self.begin

    @property
    def nbytes(self) -> int:
        """Return about how many bytes its rows have."""
        return self.request.nbytes * self.rows.count // max(1, self.request.rows.count)

    @property
    def can_be_cut(self) -> bool:
        """Return whether the offset of each row is known."""
        return not self.request.rejected

    def _places(self) -> npt.NDArray[np.int64]:
        return np.arange(self.begin, self.begin + self.rows.count) if self.places is None else self.places

    def drop_before(self, offset: int) -> None:
        """Leave out the records before an offset, and count them as known."""
        dropped = int(np.searchsorted(self._places(), offset))
        self.places = None if self.places is None else self.places[dropped:]
        self.rows = self.rows.of(dropped, self.rows.count - dropped)
        self.request.duplicates += dropped
        self.begin = offset

    def cut(self, rows: int) -> ChannelPart:
        """Cut off the first rows, and return them as a part. Some must be left."""
        places = self.places
        middle = self.begin + rows if places is None else int(places[rows])
        head = ChannelPart(
            self.request,
            self.begin,
            middle,
            self.rows.of(0, rows),
            None if places is None else places[:rows],
            is_checked=self.is_checked,
        )
        self.rows = self.rows.of(rows, self.rows.count - rows)
        self.places = None if places is None else places[rows:]
        self.begin = middle
        self.request.parts_left += 1
        return head

    def leave_out(self, invalid: npt.NDArray[np.bool_], letters: Sequence[DeadLetter]) -> None:
        """Leave out rows that a block can't have, and note why."""
        places = self._places()
        for place, letter in zip(places[invalid].tolist(), letters, strict=True):
            self.request.misfits[place - self.request.offset] = letter.why
        left = self.rows.batch.slice(self.rows.first, self.rows.count).filter(pa.array(~invalid))
        self.rows = Rows(left, 0, left.num_rows)
        self.places = places[~invalid]


@dataclass(slots=True, eq=False)
class ChannelBlock:
    """Hold parts that are stored together."""

    parts: list[ChannelPart]
    #: The rows as a block has them, once they are checked; None: they are not.
    checked: pa.RecordBatch | None = None
    #: The registrar's future; None if the block is still to be stored, or has no rows.
    future: Future[NewBlock] | None = None
    moves: Sequence[ChannelMove] = field(default=())

    def __post_init__(self) -> None:
        """Find the moves: one for each channel, because its parts follow each other."""
        ranges: dict[ChannelKey, tuple[int, int]] = {}
        for part in self.parts:
            begin, _ = ranges.get(part.request.channel, (part.begin, part.end))
            ranges[part.request.channel] = (begin, part.end)
        self.moves = [ChannelMove(*channel, *ends) for channel, ends in ranges.items()]

    @property
    def is_settled(self) -> bool:
        """Return whether the registrar has answered."""
        return self.future is not None and self.future.done()

    def joined(self) -> pa.RecordBatch:
        """Return its rows as one batch."""
        runs: list[Rows] = []
        for part in self.parts:
            rows = part.rows
            if runs and runs[-1].batch is rows.batch and runs[-1].end == rows.first:
                runs[-1] = Rows(rows.batch, runs[-1].first, runs[-1].count + rows.count)
            elif rows.count or not runs:
                runs.append(rows)
        batches = [run.batch.slice(run.first, run.count) for run in runs]
        return batches[0] if len(batches) == 1 else pa.concat_batches(batches)

    def take_checked(self, checked: CheckedRows) -> Sequence[DeadLetter]:
        """Take the checked rows of ``joined``; return the dead letters that are to be stored before the block."""
        self.checked = checked.batch
        letters: list[DeadLetter] = []
        for part in self.parts:
            letters += part.letters
            part.letters = []
            part.is_checked = True
        if checked.invalid is not None:
            letters += checked.letters
            for part, invalid, of_part in self._divided(checked):
                part.leave_out(invalid, of_part)
        return letters

    def _divided(
        self, checked: CheckedRows
    ) -> Iterator[tuple[ChannelPart, npt.NDArray[np.bool_], Sequence[DeadLetter]]]:
        assert checked.invalid is not None
        begin = taken = 0
        for part in self.parts:
            invalid = checked.invalid[begin : begin + part.rows.count]
            begin += part.rows.count
            if count := int(invalid.sum()):
                yield part, invalid, checked.letters[taken : taken + count]
                taken += count

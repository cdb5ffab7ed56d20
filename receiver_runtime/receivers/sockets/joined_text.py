"""Cut connections' text into lines, and join the lines of each connection that belong together.

Owns the open record of each connection. It must never wait: the thread that reads asks when a record is overdue.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from receiver_runtime.receivers.framing import Cut
from receiver_runtime.record_formats.keyed_joins import KeyedJoins
from receiver_runtime.watching.clock import Clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.receivers.framing import Piece, Splitter
    from receiver_runtime.receivers.lines import LineFraming, Positions
    from receiver_runtime.sources.fields.multiline import Multiline


class JoinedTextFraming:
    """Join the lines that another framing cuts; see ``framing.JoiningFraming``. For one run of a receiver.

    Args:
        most_connections: how many of them may have an open record.

    Raises ValueError: the pattern is not RE2's.
    """

    def __init__(
        self,
        framing: LineFraming,
        multiline: Multiline,
        *,
        max_record_bytes: int,
        most_connections: int,
        clock: Clock | None = None,
    ) -> None:
        self.schema = framing.schema
        self._framing = framing
        self._clock = clock or Clock()
        [text] = framing.schema.names
        self._joins = KeyedJoins(multiline, max_record_bytes, framing.schema, text, most_open=most_connections + 1)

    def open(self) -> Splitter:
        """See ``Framing``."""
        return self._framing.open()

    def cut(self, pieces: Sequence[Piece]) -> Cut:
        """Return the records of these pieces and of those before that are complete now."""
        cut = Cut()
        arrays: list[pa.Array] = []
        owners: list[Positions] = []
        breaks: list[int] = []
        ended: set[str] = set()
        whole = [place for place, piece in enumerate(pieces) if not piece.is_last]
        if whole:
            found = [pieces[place] for place in whole]
            data = b"".join(piece.data for piece in found)
            lines, starts = self._framing.cut_placed(data, found)
            cut.dead_letters += lines.dead_letters
            borders = np.array(list(accumulate(len(piece.data) for piece in found)))
            of_lines = np.searchsorted(borders, starts, side="right")
            if lines.dead_letters:
                ends = self._framing.ends(data)
                breaks, behind = _behind_letters(ends, starts, of_lines, np.searchsorted(borders, ends, side="right"))
                ended = {found[place].peer for place in behind}
            if lines.records is not None:
                arrays.append(lines.records)
                owners.append(np.array(whole)[of_lines])
        for place, piece in enumerate(pieces):
            if piece.is_last:
                last = self._framing.cut([piece])
                cut.dead_letters += last.dead_letters
                if last.records is not None:
                    if piece.peer in ended:
                        breaks.append(sum(len(array) for array in arrays))
                    arrays.append(last.records)
                    owners.append(np.array([place]))
        if arrays:
            peers = pa.array([piece.peer for piece in pieces], pa.string())
            cut.records = self._joins.add(
                pa.RecordBatch.from_arrays([pa.concat_arrays(arrays)], schema=self.schema),
                peers.take(pa.array(np.concatenate(owners))),
                self._clock.monotonic(),
                np.array(breaks, dtype=np.intp),
            )
        return _with(cut, self.end(sorted(ended))) if ended else cut

    def end(self, peers: Sequence[str] | None = None) -> Cut:
        """See ``JoiningFraming``."""
        return Cut(self._joins.end_all() if peers is None else self._joins.end(pa.array(peers, pa.string())))

    def overdue(self) -> Cut:
        """See ``JoiningFraming``."""
        return Cut(self._joins.overdue(self._clock.monotonic()))

    def until_overdue(self) -> float | None:
        """See ``JoiningFraming``."""
        return self._joins.until_overdue(self._clock.monotonic())


def _behind_letters(
    ends: Positions, starts: Positions, owners: Positions, all_owners: Positions
) -> tuple[list[int], set[int]]:
    """Return which good lines follow one of their piece that was put aside, and the pieces that end with such a one.

    Args:
        ends: of all lines.
        starts: of the good ones.
        owners: the piece of each good one.
        all_owners: the piece of each line.
    """
    numbers = np.searchsorted(ends, starts)
    bad = np.setdiff1d(np.arange(ends.size), numbers)
    breaks, behind = [], set()
    for line, owner in zip(bad.tolist(), all_owners[bad].tolist(), strict=True):
        following = int(np.searchsorted(numbers, line))
        if following < numbers.size and owners[following] == owner:
            breaks.append(following)
        else:
            behind.add(owner)
    return breaks, behind


def _with(cut: Cut, more: Cut) -> Cut:
    if cut.records is None:
        cut.records = more.records
    elif more.records is not None:
        cut.records = pa.concat_batches([cut.records, more.records])
    return cut

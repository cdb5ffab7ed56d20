"""Gather what the connections of a turn brought, and hand it on as one Arrow batch, with its dead letters first.

This module owns what was read and is not handed on yet. It must never read from a connection.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from receiver_runtime.receivers.framing import Cut, JoiningFraming, Taken

if TYPE_CHECKING:
    from receiver_runtime.block_path.block_handler import DeadLetter
    from receiver_runtime.receivers.framing import Framing, Piece
    from receiver_runtime.supervisor.receiver import Receiver


class GatheredRecords:
    """Hold what was gathered. Only the listener's thread uses it."""

    def __init__(self, receiver: Receiver, framing: Framing) -> None:
        self._receiver = receiver
        self._framing = framing
        self._begin()

    def _begin(self) -> None:
        self._before: list[DeadLetter] = []
        self._pieces: list[Piece] = []
        self._after: list[DeadLetter] = []
        #: Peers whose open records end before and behind what was gathered.
        self._interrupted: list[str] = []
        self._ended: list[str] = []
        #: The bytes of all that.
        self.nbytes = 0

    def add(self, taken: Taken, peer: str, counted_as: str) -> None:
        """Add what came from a peer; ``counted_as`` is the peer to which it counts."""
        # Anyone may connect: the dead letters count in the sender's budget.
        if taken.before:
            self._interrupted.append(peer)
        for letters in (taken.before, taken.after):
            letters[:] = [replace(letter, peer=counted_as) for letter in letters]
        self._before += taken.before
        if taken.piece is not None:
            taken.piece.peer, taken.piece.counted_as = peer, counted_as
            self._pieces.append(taken.piece)
            self.nbytes += len(taken.piece.data)
        self._after += taken.after
        self.nbytes += sum(len(letter.data) for letter in (*taken.before, *taken.after))

    def end(self, taken: Taken, peer: str, counted_as: str) -> None:
        """Add what came at the end of a peer's connection."""
        self.add(Taken(piece=taken.piece), peer, counted_as)
        self._ended.append(peer)
        self.add(Taken(after=[*taken.before, *taken.after]), peer, counted_as)

    def until_overdue(self) -> float | None:
        """Return in how many seconds ``hand_on_overdue`` has something to do; None: nothing waits."""
        return self._framing.until_overdue() if isinstance(self._framing, JoiningFraming) else None

    def hand_on_overdue(self) -> None:
        """Store the records that have waited for more lines for as long as they may."""
        if isinstance(self._framing, JoiningFraming):
            self._store(self._framing.overdue())

    def hand_on(self) -> None:
        """Store everything that was gathered."""
        letters, pieces, after = self._before, self._pieces, self._after
        interrupted, ended = self._interrupted, self._ended
        self._begin()
        joining = self._framing if isinstance(self._framing, JoiningFraming) else None
        if joining is not None and interrupted:
            self._store(joining.end(interrupted))
        cut = self._framing.cut(pieces) if pieces else Cut()
        cut.dead_letters = [*letters, *cut.dead_letters, *after]
        self._store(cut)
        if joining is not None and ended:
            self._store(joining.end(ended))

    def _store(self, cut: Cut) -> None:
        # Dead letters first: they are durable on return; the records are not.
        if cut.dead_letters:
            self._receiver.store_dead_letters(cut.dead_letters)
        records = cut.records
        if isinstance(records, pa.Array):
            records = pa.RecordBatch.from_arrays([records], schema=self._framing.schema)
        if records is not None and records.num_rows:
            self._receiver.store_buffered(records)

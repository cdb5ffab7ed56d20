"""Gather what the connections of a turn brought, and hand it on as one Arrow batch, with its dead letters first.

This module owns what was read and is not handed on yet. It must never read from a connection.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from receiver_runtime.block_path.block_handler import DeadLetter
    from receiver_runtime.receivers.framing import Framing, Piece, Taken
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
        #: The bytes of all that.
        self.nbytes = 0

    def add(self, taken: Taken, peer: str, counted_as: str) -> None:
        """Add what came from a peer; ``counted_as`` is the peer to which it counts."""
        # Anyone may connect: the dead letters count in the sender's budget.
        for letters in (taken.before, taken.after):
            letters[:] = [replace(letter, peer=counted_as) for letter in letters]
        self._before += taken.before
        if taken.piece is not None:
            taken.piece.peer, taken.piece.counted_as = peer, counted_as
            self._pieces.append(taken.piece)
            self.nbytes += len(taken.piece.data)
        self._after += taken.after
        self.nbytes += sum(len(letter.data) for letter in (*taken.before, *taken.after))

    def hand_on(self) -> None:
        """Store everything that was gathered."""
        letters, pieces, after = self._before, self._pieces, self._after
        self._begin()
        records = None
        if pieces:
            cut = self._framing.cut(pieces)
            letters += cut.dead_letters
            records = cut.records
        letters += after
        # Dead letters first: they are durable on return; the records are not.
        if letters:
            self._receiver.store_dead_letters(letters)
        if isinstance(records, pa.RecordBatch):
            self._receiver.store_buffered(records)
        elif records is not None:
            self._receiver.store_buffered(pa.RecordBatch.from_arrays([records], schema=self._framing.schema))

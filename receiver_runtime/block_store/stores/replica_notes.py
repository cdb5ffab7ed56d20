"""Let readers without a driver log report that a replica is damaged or lags: by a note in an intact replica.

Spark's tasks read files and have no other way to the driver log. A batch run, or the leading tracker, takes the notes
and makes events of them. There is at most one for each replica and receiver until they are taken. If a note can't be
left, or is lost, only the hint is missing: the block was read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterator

    from receiver_runtime.block_store.stores.interface import BlockStore
    from receiver_runtime.block_store.stores.replicated import ReplicatedBlockStore


@dataclass(frozen=True, slots=True)
class ReplicaNote:
    """Note that a replica lacks a block of this receiver or has other bytes, while another replica has it."""

    replica: str
    receiver_id: int
    detail: str


class NotingListener:
    """Keep a reader's first note for each replica and receiver, until they are left."""

    def __init__(self) -> None:
        self._notes: dict[tuple[str, int], ReplicaNote] = {}

    def on_replica_lost(self, name: str, detail: str) -> None:
        """Do nothing: a reader writes nothing."""

    def on_replica_back(self, name: str) -> None:
        """Do nothing: a reader writes nothing."""

    def on_replica_damaged(self, name: str, receiver_id: int, detail: str) -> None:
        """Keep the note."""
        self._notes.setdefault((name, receiver_id), ReplicaNote(name, receiver_id, detail))

    def leave(self, store: BlockStore) -> None:
        """Put each note into a replica other than the one that it is about; if none takes it, it is dropped."""
        for note in self._notes.values():
            key = f"{hashlib.sha256(note.replica.encode()).hexdigest()[:16]}-{note.receiver_id}"
            cast("ReplicatedBlockStore", store).leave_note(key, json.dumps(asdict(note)).encode(), about=note.replica)
        self._notes.clear()


def take_notes(store: ReplicatedBlockStore) -> Iterator[ReplicaNote]:
    """Yield the notes that readers have left, each once. A replica that can't be asked keeps its own."""
    for text in store.take_notes():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            read = json.loads(text)
            yield ReplicaNote(str(read["replica"]), int(read["receiver_id"]), str(read["detail"]))

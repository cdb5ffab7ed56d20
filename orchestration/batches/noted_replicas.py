"""Makes events of the notes that readers of blocks leave about replicas (``block_store.replica_notes``).

A batch run calls it when its job is done; the leading tracker does for streaming queries and killed runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from orchestration.batches.attached_store import open_attached_store
from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.block_store.roots import split_roots
from tracker_store.blocks.replica_events import replica_damaged
from tracker_store.receivers.receivers import report_event
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    import sqlalchemy as sa

log = structlog.get_logger(__name__)


def report_noted_replicas(connection: sa.Connection, block_store: str) -> None:
    """Write an event for each replica and receiver that has a note; do nothing for a store with a single root.

    Raises the driver log's errors; a store that can't be reached keeps its notes. Locks: the new rows.
    """
    if len(split_roots(block_store)) == 1:
        # The usual case: don't open the store.
        return
    from receiver_runtime.block_store.stores.replica_notes import take_notes  # noqa: PLC0415  loads pyarrow
    from receiver_runtime.block_store.stores.replicated import ReplicatedBlockStore  # noqa: PLC0415  loads pyarrow

    try:
        store = open_attached_store(connection, block_store)
    except BlockStoreError as error:
        log.warning("the block store can't be opened", error=str(error))
        return
    if not isinstance(store, ReplicatedBlockStore):
        return
    for note in take_notes(store):
        log.warning("a replica is damaged or lags", replica=note.replica, detail=note.detail)
        report_event(
            connection,
            receiver_id=note.receiver_id,
            epoch=0,
            kind=ReceiverEventKind.ERROR,
            message=replica_damaged(note.replica),
            detail=f"{note.detail}; another replica has it, and `forebay blocks repair` copies it",
        )

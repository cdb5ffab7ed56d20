"""Opens the block store as the driver log knows it: another store in its place is unavailable, not empty.

For processes that use the driver log. Spark's tasks don't: their planner ships what to expect (``spark.data_source``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.block_store.roots import root_names
from tracker_store.blocks.block_stores import attached_identities

if TYPE_CHECKING:
    import sqlalchemy as sa

    from receiver_runtime.block_store.frames.encryption import BlockKeys
    from receiver_runtime.block_store.stores.interface import BlockStore
    from receiver_runtime.block_store.stores.replicated import ReplicaListener


def open_attached_store(
    connection: sa.Connection,
    block_store: str,
    *,
    listener: ReplicaListener | None = None,
    keys: BlockKeys | None = None,
) -> BlockStore:
    """Open a setting's block store, with the identities that hosts have attached. Raises like ``open_block_store``."""
    from receiver_runtime.block_store.stores.stores import open_block_store  # noqa: PLC0415  loads pyarrow

    expected = attached_identities(connection, root_names(block_store))
    return open_block_store(block_store, listener=listener, expected=expected, keys=keys)

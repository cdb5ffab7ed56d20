"""The block store as the driver log knows it: opened so that another store in its place is unavailable, and not empty.

For processes that ask the driver log. Spark's tasks do not: their planner ships what to expect (``spark.data_source``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.block_store.roots import root_names
from tracker_store.block_stores import attached_identities

if TYPE_CHECKING:
    import sqlalchemy as sa

    from receiver_runtime.block_store.interface import BlockStore
    from receiver_runtime.block_store.replicated import ReplicaListener


def open_attached_store(
    connection: sa.Connection, block_store: str, *, listener: ReplicaListener | None = None
) -> BlockStore:
    """The block store of a setting, with the identities that hosts have attached. Raises as ``open_block_store``."""
    from receiver_runtime.block_store.stores import open_block_store  # noqa: PLC0415  loads pyarrow

    expected = attached_identities(connection, root_names(block_store))
    return open_block_store(block_store, listener=listener, expected=expected)

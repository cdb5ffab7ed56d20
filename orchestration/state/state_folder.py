"""Delete the folder of a version of a state. Only clean-up calls it; it decides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from receiver_runtime.block_store.stores.interface import BlockStore


def delete_folder(store: BlockStore, folder: str) -> None:
    """Delete a version's segments, and its directory where the store has any; one that is gone is a success.

    If it is interrupted, call it again. Raises StoreUnavailableError, OSError.
    """
    for path in list(store.segment_paths(folder)):
        store.delete_segment(path)
    store.delete_directory(folder)

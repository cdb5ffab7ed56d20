"""Check that a root of this host's block store exists, and is the one that the driver log knows.

Owns this check for `forebay status` only. It creates and repairs nothing, and decides nothing for receivers and
batches, which check for themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracker_store.blocks.block_stores import list_block_stores

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    import sqlalchemy as sa

    from tracker_store.blocks.block_stores import HostStore

# Share of the remaining time to wait for the driver log, so that its delay is not reported as the store's.
_SHARE = 0.8


def store_of_host(connection: sa.Connection, host: str) -> HostStore | None:
    """Return the block store that a host has attached; None for a host without receivers."""
    return next((row for row in list_block_stores(connection) if row.host == host), None)


def scan_root(root: str, known: Future[HostStore | None], left: Callable[[], float]) -> None:
    """Check a root, as this process sees it; return if nothing is wrong. May hang as long as its file system does.

    Args:
        root: the root's name in the setting `block_store`.
        known: the store that this host has attached according to the driver log; without an answer, only the root is
            checked.
        left: returns the seconds that are left for this check.

    Raises:
        OSError: the root is not the attached one.
        OSError: the root can't be read.
    """
    # Imported here, so that this thread and not the command spends the 0.2 s to load pyarrow.
    from receiver_runtime.block_store.stores.identity import identity_of  # noqa: PLC0415
    from receiver_runtime.block_store.stores.stores import open_block_store, replicas_of  # noqa: PLC0415

    [replica] = replicas_of(open_block_store(root))
    found = identity_of(replica)
    try:
        attached = known.result(left() * _SHARE)
    except Exception:  # noqa: BLE001  the driver log's failure is reported separately
        return
    expected = frozenset[str]() if attached is None else attached.identities_of(replica.name)
    if expected and found not in expected:
        has = "no identity" if found is None else f"the identity {found}"
        raise OSError(f"it has {has}, and this host attached {' or '.join(sorted(expected))} there: not mounted?")

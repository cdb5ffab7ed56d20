"""Looks at a root of this host's block store: is it there, and is it the one that the driver log knows?

Owns the question as a person asks it (`forebay status`). It makes and repairs nothing, and decides nothing for
receivers and batches, which check for themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracker_store.block_stores import list_block_stores

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    import sqlalchemy as sa

    from tracker_store.block_stores import HostStore

# Of the time that is left: the driver log's silence must not be taken for the store's.
_SHARE = 0.8


class StoreProblemError(OSError):
    """A root of the block store is not what it should be."""


def store_of_host(connection: sa.Connection, host: str) -> HostStore | None:
    """Return what a host has attached; None for one without receivers."""
    return next((row for row in list_block_stores(connection) if row.host == host), None)


def look_at_root(root: str, known: Future[HostStore | None], left: Callable[[], float]) -> None:
    """Return if nothing is wrong with a root, as this process sees it. May hang as long as its file system does.

    Args:
        root: as the setting `block_store` names it.
        known: what the driver log says that this host has attached; without an answer only the root is looked at.
        left: the seconds in which to return.

    Raises:
        StoreProblemError: it is not what it should be.
        OSError: it can't be read.
    """
    # pyarrow's 0.2 s are this thread's, not the command's.
    from receiver_runtime.block_store.identity import identity_of  # noqa: PLC0415
    from receiver_runtime.block_store.stores import open_block_store, replicas_of  # noqa: PLC0415

    [replica] = replicas_of(open_block_store(root))
    found = identity_of(replica)
    try:
        attached = known.result(left() * _SHARE)
    except Exception:  # noqa: BLE001  it is reported by itself
        return
    expected = frozenset[str]() if attached is None else attached.identities_of(replica.name)
    if expected and found not in expected:
        has = "no identity" if found is None else f"the identity {found}"
        raise StoreProblemError(
            f"it has {has}, and this host attached {' or '.join(sorted(expected))} there: not mounted?"
        )

"""Check, before an agent starts its work, that this host sees the block store that all other hosts see.

The check runs once, before the tracker knows the agent, so that no receiver is placed on a host whose blocks other
hosts can't read. The driver log decides which hosts share a store (``functions/blocks/attach_block_store.sql``).

An empty directory may be the mount point of a store that is not mounted. So a store is created only if the driver log
knows no store at all, for this host or another: it is then the installation's first one. Any other new store must be
created by a person (`forebay blocks adopt`). A root that this host has had before stays attached under its identity,
whatever is in its place now: its receivers wait for it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.block_store.frames.errors import StoreUnavailableError
from receiver_runtime.block_store.stores.identity import identity_of, make_identity, require_identity
from receiver_runtime.block_store.stores.stores import open_block_store, replicas_of
from tracker_store.blocks.block_stores import (
    UnsharedBlockStoreError,
    attach_block_store,
    list_block_stores,
    one_attaches,
)
from tracker_store.connection.engine import connect
from tracker_store.connection.outage import SURVIVED, Outage

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    import sqlalchemy as sa

    from receiver_runtime.block_store.stores.interface import Replica
    from tracker_store.blocks.block_stores import HostStore

_RETRY_SECONDS = 0.5

_log = structlog.get_logger(__name__)


def attach(engine: sa.Engine, *, host: str, block_store: str, stop: threading.Event) -> None:
    """Record which block store this host sees; wait while the driver log is unavailable, until `stop` is set.

    Args:
        engine: the driver log.
        host: the host's name in the driver log.
        block_store: the setting; see ``block_store.roots``.
        stop: ends the waiting.

    Raises:
        UnsharedBlockStoreError: another host has another block store.
        BlockStoreError: the setting is wrong, or it names no root that this host has had, or can have now.
    """
    replicas = replicas_of(open_block_store(block_store))
    outage = Outage("the agent")
    while not stop.is_set():
        try:
            with connect(engine) as connection:
                _attach(connection, replicas, host)
        except UnsharedBlockStoreError:
            raise
        except SURVIVED as error:
            outage.failed(error)
            stop.wait(_RETRY_SECONDS)
        else:
            outage.answered()
            return


def _attach(connection: sa.Connection, replicas: Sequence[Replica], host: str) -> None:
    attached = list_block_stores(connection)
    with ExitStack() as alone:
        if not attached:
            # Only if necessary: a mount that hangs must not hold up the other hosts' agents.
            alone.enter_context(one_attaches(connection))
            attached = list_block_stores(connection)
        attach_block_store(connection, host=host, roots=_roots(replicas, attached, host))


def _roots(replicas: Sequence[Replica], attached: Sequence[HostStore], host: str) -> dict[str, str]:
    """Return the names of all roots that this host has, or can have now, by identity."""
    roots: dict[str, str] = {}
    failed: list[StoreUnavailableError] = []
    for replica in replicas:
        name = replica.name
        before = [identity for seen in attached if seen.host == host for identity in seen.identities_of(name)]
        try:
            identity = before[0] if before else _identity_of_new(replica, attached)
            roots[identity] = name
            if before:
                require_identity(name, before, identity_of(replica))
        except StoreUnavailableError as error:
            failed.append(error)
        except OSError as error:
            failed.append(StoreUnavailableError(name, str(error)))
    for away in failed:
        _log.warning("a root of the block store is not there; what is stored waits for it", error=str(away))
    if not roots:
        raise failed[0]
    return roots


def _identity_of_new(replica: Replica, attached: Sequence[HostStore]) -> str:
    """Return the identity of a root that this host has not had before. Raises StoreUnavailableError, OSError."""
    found = identity_of(replica)
    if found is not None:
        return found
    if attached:
        known = "; ".join(f"{seen.host} has {', '.join(sorted(set(seen.roots.values())))}" for seen in attached)
        raise StoreUnavailableError(
            replica.name,
            f"not mounted? There is no block store, and none is made, because the driver log knows one: {known}. "
            f"If this is to be a new, empty one: forebay blocks adopt {replica.name}",
        )
    return make_identity(replica)

"""An agent's first question: does this host see the block store that all the others see?

Asked once, before the agent is there for the tracker, so that no receiver is placed on a host whose blocks nobody could
read. It decides nothing: which hosts share one is the driver log's to say (``functions/attach_block_store.sql``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from receiver_runtime.block_store.errors import StoreUnavailableError
from receiver_runtime.block_store.identity import make_identity
from receiver_runtime.block_store.stores import open_block_store, replicas_of
from tracker_store.block_stores import UnsharedBlockStoreError, attach_block_store
from tracker_store.engine import connect
from tracker_store.outage import SURVIVED, Outage

if TYPE_CHECKING:
    import threading

    import sqlalchemy as sa

_RETRY_SECONDS = 0.5

_log = structlog.get_logger(__name__)


def attach(engine: sa.Engine, *, host: str, block_store: str, stop: threading.Event) -> None:
    """Say which block store this host sees; waits while the driver log is away, until `stop`.

    Args:
        engine: the driver log.
        host: as it shows there.
        block_store: the setting; see ``block_store.roots``.
        stop: gives the waiting up.

    Raises:
        UnsharedBlockStoreError: another host's is another one.
        BlockStoreError: the setting is wrong, or no root of it can be written.
    """
    roots = _roots(block_store)
    outage = Outage("the agent")
    while not stop.is_set():
        try:
            with connect(engine) as connection:
                attach_block_store(connection, host=host, roots=roots)
        except UnsharedBlockStoreError:
            raise
        except SURVIVED as error:
            outage.failed(error)
            stop.wait(_RETRY_SECONDS)
        else:
            outage.answered()
            return


def _roots(block_store: str) -> dict[str, str]:
    """Name by identity of every root that can be asked."""
    roots: dict[str, str] = {}
    failed: list[StoreUnavailableError] = []
    for replica in replicas_of(open_block_store(block_store)):
        try:
            roots[make_identity(replica)] = replica.name
        except OSError as error:
            failed.append(StoreUnavailableError(replica.name, str(error)))
            _log.warning("a root of the block store can't be asked which one it is", error=str(failed[-1]))
    if not roots:
        raise failed[0]
    return roots

"""Make a receiver's start wait for its block store: nothing is made, salvaged or read while it is not mounted.

Owns the waiting and what operators see of it. The write-ahead log notices if the store becomes unavailable later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.block_store.frames.errors import BlockStoreError
from receiver_runtime.watching.backoff import Backoff
from tracker_store.receivers.receivers import STORE_MISSING
from tracker_store.schema.states import ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable

    from receiver_runtime.block_store.stores.interface import BlockStore
    from receiver_runtime.reporting.driver_log import DriverLog
    from receiver_runtime.reporting.receiver_reporter import ReceiverReporter
    from receiver_runtime.watching.progress import Progress

_FIRST_DELAY = 0.2
_LONGEST_DELAY = 5.0


def wait_for_store(store: BlockStore, *, driver_log: DriverLog, reporter: ReceiverReporter, progress: Progress) -> None:
    """Return once the store is the expected one. Raises GivenUpError if the receiver is to end."""

    def report(error: Exception, _: int) -> None:
        progress.failed(f"the block store is not there: {error}")
        reporter.state(ReceiverState.ACTIVE, f"{STORE_MISSING}: {error}")
        # The reporter reports a repeated event once per interval.
        reporter.event(ReceiverEventKind.ERROR, "the block store is not there, waiting for it", str(error))

    if await_store(store, driver_log=driver_log, on_missing=report):
        reporter.event(ReceiverEventKind.CONNECTED, "the block store is there again")


def await_store(store: BlockStore, *, driver_log: DriverLog, on_missing: Callable[[Exception, int], None]) -> int:
    """Return how often the store was missing, once it is the expected one. Raises GivenUpError if the start is to end.

    `on_missing` gets each error, and how many there were before it.
    """
    backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY)
    while True:
        try:
            store.check()
        except (OSError, BlockStoreError) as error:
            on_missing(error, backoff.failures)
            driver_log.pause(backoff.next_delay())
        else:
            return backoff.failures

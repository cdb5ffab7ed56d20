"""Make a receiver's start wait for its block store: nothing is made, salvaged or read while it is not mounted.

Owns the waiting and what operators see of it. The write-ahead log notices if the store becomes unavailable later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from receiver_runtime.backoff import Backoff
from receiver_runtime.block_store.errors import BlockStoreError
from tracker_store.receivers import STORE_MISSING
from tracker_store.states import ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable

    from receiver_runtime.block_store.interface import BlockStore
    from receiver_runtime.driver_log import DriverLog
    from receiver_runtime.progress import Progress
    from receiver_runtime.status_reporter import Reporter

_FIRST_DELAY = 0.2
_LONGEST_DELAY = 5.0


def wait_for_store(store: BlockStore, *, driver_log: DriverLog, reporter: Reporter, progress: Progress) -> None:
    """Return once the store is the expected one. Raises GivenUpError if the receiver is to end."""
    backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY)
    while True:
        try:
            store.check()
        except (OSError, BlockStoreError) as error:
            progress.failed(f"the block store is not there: {error}")
            reporter.state(ReceiverState.ACTIVE, f"{STORE_MISSING}: {error}")
            # The reporter reports a repeated event once per interval.
            reporter.event(ReceiverEventKind.ERROR, "the block store is not there, waiting for it", str(error))
            driver_log.pause(backoff.next_delay())
        else:
            if backoff.failures:
                reporter.event(ReceiverEventKind.CONNECTED, "the block store is there again")
            return


def await_store(store: BlockStore, *, driver_log: DriverLog, on_missing: Callable[[str], None]) -> None:
    """Return once the store is the expected one; `on_missing` is called once if it is not there at first.

    For a receiver that still runs elsewhere: it says nothing about that. Raises GivenUpError if the start is to end.
    """
    backoff = Backoff(_FIRST_DELAY, _LONGEST_DELAY)
    while True:
        try:
            store.check()
        except (OSError, BlockStoreError) as error:
            if not backoff.failures:
                on_missing(str(error))
            driver_log.pause(backoff.next_delay())
        else:
            return

"""Restart a receiver if a thread that it has started itself ends by an exception: else it stays ACTIVE without reading.

Spark's executors end by such an exception, and the receiver is started again elsewhere. Here other receivers run in the
process, so this module must never end it. It owns which receiver a thread belongs to.
"""

from __future__ import annotations

import threading
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

from receiver_runtime.supervisor.receiver import Receiver

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def restart_at_dead_threads() -> Iterator[None]:
    """While entered, restart receivers whose threads end by an exception. It is logged as before."""
    before = threading.excepthook

    def hook(ended: threading.ExceptHookArgs) -> None:
        before(ended)
        receiver = _receiver_of(ended)
        if receiver is not None:
            receiver.restart("one of its threads ended by an exception", ended.exc_value)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before


def _receiver_of(ended: threading.ExceptHookArgs) -> Receiver | None:
    """Return the receiver whose method, function or thread object has ended; None if none is in sight."""
    values = list(vars(ended.thread).values()) if ended.thread is not None else []
    for frame, _ in traceback.walk_tb(ended.exc_traceback):
        values += frame.f_locals.values()
    return next((value for value in values if isinstance(value, Receiver)), None)

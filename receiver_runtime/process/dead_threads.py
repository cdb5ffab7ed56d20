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
    from types import TracebackType


@contextmanager
def restart_at_dead_threads() -> Iterator[None]:
    """While entered, restart receivers whose threads end by an exception. It is logged as before."""
    before = threading.excepthook

    def hook(ended: threading.ExceptHookArgs) -> None:
        before(ended)
        # `sys.exit` in a thread ends that thread, as Python has it.
        if ended.thread is None or issubclass(ended.exc_type, SystemExit):
            return
        receiver = _receiver_of(ended.thread, ended.exc_traceback)
        # A thread of the start before may die late, of what `on_stop` has closed.
        if receiver is not None and not receiver.supervisor.is_older_than_start(ended.thread):
            receiver.restart("one of its threads ended by an exception", ended.exc_value)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before


def _receiver_of(thread: threading.Thread, ended_at: TracebackType | None) -> Receiver | None:
    """Return the receiver whose method, function or thread object has ended; None if none is in sight."""
    values = list(vars(thread).values())
    for frame, _ in traceback.walk_tb(ended_at):
        values += frame.f_locals.values()
    return next((value for value in values if isinstance(value, Receiver)), None)

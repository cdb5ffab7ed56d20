"""A child of Forebay's ends when its parent is gone: its standard input is a pipe that then closes."""

from __future__ import annotations

import os
import signal
import threading

import structlog

# After this a child that was told to stop, and has no parent to kill it, ends the hard way.
HARD_EXIT_SECONDS = 20.0

log = structlog.get_logger(__name__)


def stop_event(*, parent_pipe: bool) -> threading.Event:
    """An event that SIGTERM and SIGINT set, and with `parent_pipe` the end of standard input too."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    if parent_pipe:
        threading.Thread(target=_watch, args=(stop,), name="parent pipe", daemon=True).start()
    return stop


def _watch(stop: threading.Event) -> None:
    # Not `sys.stdin`: at the interpreter's end it is locked by whoever still reads it, and that is fatal.
    while os.read(0, 4096):
        pass
    log.warning("the parent process is gone, stopping")
    stop.set()
    # A main thread that hangs must not outlive its parent for ever.
    threading.Event().wait(HARD_EXIT_SECONDS)
    os._exit(1)

"""Stop a child of Forebay when its parent is gone: the child's side of the pipe between them.

The child's standard input is a pipe that closes when the parent ends, however it ends. This module only asks for the
stop, and ends the process by force only where it has no parent and does not stop.
"""

from __future__ import annotations

import os
import signal
import threading

import structlog

# Seconds that a child has to stop after its parent's end; then it exits by force, because no parent can kill it.
HARD_EXIT_SECONDS = 20.0

log = structlog.get_logger(__name__)


def stop_event(*, parent_pipe: bool) -> threading.Event:
    """Return an event that SIGTERM and SIGINT set, and with `parent_pipe` the end of standard input too."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    if parent_pipe:
        threading.Thread(target=_watch, args=(stop,), name="parent pipe", daemon=True).start()
    return stop


def _watch(stop: threading.Event) -> None:
    # Not `sys.stdin`: a thread that still reads it at the interpreter's end holds its lock, and that is fatal.
    while os.read(0, 4096):
        pass
    log.warning("the parent process is gone, stopping")
    stop.set()
    # Where the main thread hangs, the process must still end.
    threading.Event().wait(HARD_EXIT_SECONDS)
    os._exit(1)

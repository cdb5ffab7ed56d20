"""Listen to the outside of a receiver process: signals, the end of its parent, and the agent's lines.

The watcher turns a signal, or the end of the parent's pipe, into a request to stop, and hands on the agent's lines;
``AgentLine`` carries the answers back. A second signal, or 10 s after the parent's end, ends the process at once.

This module never decides which receiver to run or to stop, and never asks the driver log.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import stat
import threading
from typing import TYPE_CHECKING, NoReturn

import structlog

from receiver_runtime.process.process_control import Lines, Message, encode
from receiver_runtime.watching.clock import Clock
from receiver_runtime.watching.exit_codes import ExitCode

if TYPE_CHECKING:
    from collections.abc import Callable

_log = structlog.get_logger(__name__)

# Seconds that the receivers have to drain after the parent is gone: no other process would end one that hangs.
_PARENT_GONE_SECONDS = 10.0


class AgentLine:
    """Send messages to the agent, where the parent's pipe is a socket; send nothing where it is not. Any thread."""

    def __init__(self, parent_pipe: int | None) -> None:
        self._lock = threading.Lock()
        self._socket = (
            socket.socket(fileno=os.dup(parent_pipe)) if parent_pipe is not None and _is_socket(parent_pipe) else None
        )

    def send(self, message: Message) -> None:
        """Send the message as a line, unless the agent is gone."""
        with self._lock, contextlib.suppress(OSError):
            if self._socket is not None:
                self._socket.sendall(encode(message))

    def close(self) -> None:
        """Close this side's copy of the descriptor."""
        if self._socket is not None:
            self._socket.close()


class ParentWatcher:
    """Turn SIGTERM, SIGINT and the end of the parent's pipe into calls of ``stop``, and hand messages to ``obey``.

    The interpreter itself writes a byte for each signal, whichever thread the kernel gives it to. A handler in Python
    would run on the main thread alone, which does not always wake up for it from its wait for a lock.

    Args:
        stop: called with the reason, on the watcher's thread.
        obey: called with each message of the agent, on the watcher's thread.
        parent_pipe: the descriptor to watch, where it is a pipe or a socket; None: the parent is not watched.
    """

    def __init__(
        self, stop: Callable[[str], None], obey: Callable[[Message], None], *, parent_pipe: int | None
    ) -> None:
        self._stop = stop
        self._obey = obey
        self._parent = parent_pipe if parent_pipe is not None and _can_end(parent_pipe) else None
        self._lines = Lines()
        self._read_end, self._write_end = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="signals and parent", daemon=True)
        self._handlers: dict[int, object] = {}
        self._wakeup_before = -1

    def start(self) -> None:
        """Take the signals and start the thread. Must be called on the main thread."""
        os.set_blocking(self._write_end, False)
        self._wakeup_before = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._handlers[number] = signal.signal(number, _do_nothing)
        self._thread.start()

    def stop(self) -> None:
        """Restore the signals' handlers and end the thread. Must be called on the main thread."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        signal.set_wakeup_fd(self._wakeup_before)
        os.write(self._write_end, b"\0")
        self._thread.join()
        os.close(self._read_end)
        os.close(self._write_end)

    def _watch(self) -> None:
        signals = 0
        watched = [self._read_end] if self._parent is None else [self._read_end, self._parent]
        deadline: float | None = None
        clock = Clock()
        while True:
            left = None if deadline is None else max(0.0, deadline - clock.monotonic())
            ready, _, _ = select.select(watched, [], [], left)
            if not ready and left is not None:
                _end_at_once("not drained in time after the parent was gone, ending at once")
            if self._parent in ready and not self._hear():
                watched = [self._read_end]
                deadline = clock.monotonic() + _PARENT_GONE_SECONDS
                self._stop("the parent process is gone")
            if self._read_end in ready:
                number = os.read(self._read_end, 1)[0]
                if number == 0:
                    return
                if number not in self._handlers:
                    continue
                signals += 1
                if signals > 1:
                    _end_at_once("a second signal, ending at once")
                self._stop(signal.Signals(number).name)

    def _hear(self) -> bool:
        """Read the parent's lines and hand on their messages; return False when the parent is gone."""
        try:
            data = os.read(self._parent or 0, 4096)
        except ConnectionResetError:
            return False
        try:
            for message in self._lines.feed(data):
                self._obey(message)
        except ValueError as error:
            _log.warning("the parent said what is not understood", error=str(error))
        return bool(data)


def _end_at_once(why: str) -> NoReturn:
    with contextlib.suppress(Exception):
        _log.error(why)
    os._exit(ExitCode.FAILED)


def _do_nothing(number: int, frame: object) -> None:
    """Do nothing on a signal: the interpreter writes its byte only for signals that have a handler."""


def _is_socket(descriptor: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _can_end(descriptor: int) -> bool:
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)

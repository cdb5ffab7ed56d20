"""Keep the log files of child processes: readable by the owner only, and rolled by size while the processes write.

A child holds its log file open, and so do programs that are not Forebay's (Postgres, Dagster). So a file is not
renamed: what it has is copied to NAME.log.1, and it is truncated. Every writer appends, so it goes on at the new end.
Lines that are written between the last read of the copy and the truncation, some microseconds, are lost. Python's own
handler moves the older files.

Owns the mode and the size of the files. It must never stop a child: a file that can't be rolled is left as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO

import structlog

_log = structlog.get_logger(__name__)

#: Bytes. A log file that is larger is rolled.
MOST_BYTES = 16 * 2**20
#: How many rolled files are kept for each log: NAME.log.1 is the newest.
MOST_KEPT = 3
_POLL_SECONDS = 2.0
_MODE = 0o600
_COPY_BYTES = 2**20


def open_log(path: Path) -> IO[bytes]:
    """Open a log file to append to; only the owner can read it, also if others could before. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
    # It may be of a version that let others read it. Another account's file keeps its mode.
    with contextlib.suppress(PermissionError):
        os.fchmod(descriptor, _MODE)
    return os.fdopen(descriptor, "ab")


def roll(path: Path, *, most_bytes: int = MOST_BYTES) -> bool:
    """Roll one log file if it is larger than that; return whether it was. Raises OSError.

    Several processes may look after one directory: a lock on the file lets one of them roll it.
    """
    if path.stat().st_size <= most_bytes:
        return False
    with path.open("r+b") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if os.fstat(log.fileno()).st_size <= most_bytes:
            return False
        roller = RotatingFileHandler(path, backupCount=MOST_KEPT, delay=True)
        roller.rotator = lambda _, newest: _move(log, Path(newest))
        try:
            roller.doRollover()
        finally:
            roller.close()
    return True


class LogRoller:
    """Roll the log files of a directory by size, on a thread of its own. ``start`` and ``stop`` once each."""

    def __init__(self, directory: Path, *, most_bytes: int = MOST_BYTES, every: float = _POLL_SECONDS) -> None:
        """Take the directory, the size in bytes, and the seconds between two looks."""
        self._directory = directory
        self._most_bytes = most_bytes
        self._every = every
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="log roller", daemon=True)

    def start(self) -> LogRoller:
        """Start the thread; return this."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._every):
            self.look()

    def look(self) -> None:
        """Roll the files that are too large now."""
        for path in self._directory.glob("*.log"):
            try:
                roll(path, most_bytes=self._most_bytes)
            except OSError as error:
                _log.warning("a log file could not be rolled", path=str(path), error=str(error))


def _move(log: IO[bytes], to: Path) -> None:
    """Copy a log, and cut it even on a full disk, where the copy fails: the log must not be what fills it."""
    try:
        _copy(log, to)
    finally:
        log.truncate(0)


def _copy(log: IO[bytes], to: Path) -> None:
    # The handler has moved a file of this name away: what is still there is a link that leads nowhere.
    to.unlink(missing_ok=True)
    with open_log(to) as copy:
        # Bounded: a process may write faster than this reads.
        left = 2 * os.fstat(log.fileno()).st_size
        while left > 0 and (data := log.read(_COPY_BYTES)):
            copy.write(data)
            left -= len(data)

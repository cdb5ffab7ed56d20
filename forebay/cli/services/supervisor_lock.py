"""Lock a FOREBAY_HOME, so that one supervisor runs in it at a time, and tell which process holds the lock.

A supervisor holds FOREBAY_HOME/supervisor.lock for its whole life; the kernel releases it if the process is killed.
"""

from __future__ import annotations

import fcntl
import os
from typing import IO, TYPE_CHECKING

from forebay.cli.services.child import SupervisorError
from forebay.cli.services.private_home import OTHER_HOME

if TYPE_CHECKING:
    from pathlib import Path

_LOCK_FILE = "supervisor.lock"


def take_lock(home: Path) -> IO[str]:
    """Take the lock and return its open file, which names the holder."""
    try:
        file = (home / _LOCK_FILE).open("a+")
    except OSError as error:
        raise SupervisorError(f"{home} can't be used: {error.strerror}", OTHER_HOME) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        message = f"another Forebay (process {holder}) runs in {home}"
        raise SupervisorError(message, "Stop the other one, or choose another folder by FOREBAY_HOME.") from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def lock_holder(home: Path) -> int | None:
    """Return the pid of the supervisor that runs in a home, or None. Keeps no lock and creates no file."""
    try:
        with (home / _LOCK_FILE).open() as file:
            # Shared, and released at once: two callers of this function do not take each other for a supervisor.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return None
    except BlockingIOError:
        told = (home / _LOCK_FILE).read_text().strip()
        return int(told) if told.isdigit() else None
    return None

"""Give each process that runs Spark locally a directory for shuffles, spilled data and sockets, inside the home.

Spark's default is the machine's temporary directory. A process that was killed leaves its directory behind: the next
one that starts removes it. This module never removes the directory of a process that lives; the kernel's lock says.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCAL_DIRECTORY = "spark.local.dir"
SOCKET_DIRECTORY = "spark.python.unix.domain.socket.dir"
# The directory of this process: its JVM keeps the value for its later sessions.
PROCESS_DIRECTORY = "spark.forebay.local.dir"
# Spark's own variable, which takes precedence over the setting.
_VARIABLE = "SPARK_LOCAL_DIRS"
# What a socket's path may have on Linux; macOS has 103.
_MOST_SOCKET_PATH_BYTES = 103
# As long as the names that Spark gives its sockets: ".", a UUID, ".sock".
_SOCKET_NAME_BYTES = 42

log = structlog.get_logger(__name__)


def local_directory_configuration(directory: Path, kept: str | None = None) -> dict[str, str]:
    """Return the settings by which Spark uses a new directory in `directory` as long as this process lives.

    kept: PROCESS_DIRECTORY of the running JVM. It is used instead, in whichever home it is, and made again if it is
    gone: the JVM makes sockets in the directory of its first session that needed them, whatever later ones name.

    Only its sockets are there if the environment names directories for Spark, or if Spark can't take this one.
    """
    made = directory / secrets.token_hex(4) if kept is None else Path(kept)
    _make(made)
    configuration = {PROCESS_DIRECTORY: str(made)}
    is_elsewhere = bool(os.environ.get(_VARIABLE))
    if not is_elsewhere and "," in str(made):
        log.warning(
            "Spark's temporary files are not in the home: Spark takes no directory whose path has a comma",
            path=str(made.parent),
        )
    elif not is_elsewhere:
        configuration[LOCAL_DIRECTORY] = str(made)
    if len(os.fsencode(made)) + 1 + _SOCKET_NAME_BYTES <= _MOST_SOCKET_PATH_BYTES:
        configuration[SOCKET_DIRECTORY] = str(made)
    return configuration


def _make(directory: Path) -> None:
    """Remove those beside it whose processes have ended; make it, locked until this process ends, if it is missing."""
    parent = directory.parent
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _held(parent):
        # Among them this one, if it was removed and Spark has made it again: without the lock, open to other accounts.
        for other in parent.iterdir():
            _remove_if_left(other)
        if directory.exists():
            return
        directory.mkdir(mode=0o700)
        # The descriptor stays open on purpose, and is not inherited: it is closed when this process ends.
        fcntl.flock(os.open(directory, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_EX)


def _remove_if_left(directory: Path) -> None:
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
    except BlockingIOError:
        return
    finally:
        os.close(descriptor)


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

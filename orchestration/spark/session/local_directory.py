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
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCAL_DIRECTORY = "spark.local.dir"
SOCKET_DIRECTORY = "spark.python.unix.domain.socket.dir"
# Spark's own variable, which takes precedence over the setting.
_VARIABLE = "SPARK_LOCAL_DIRS"
# What a socket's path may have on Linux; macOS has 103.
_MOST_SOCKET_PATH_BYTES = 103
# As long as the names that Spark gives its sockets: ".", a UUID, ".sock".
_SOCKET_NAME_BYTES = 42

log = structlog.get_logger(__name__)


def local_directory_configuration(directory: Path) -> dict[str, str]:
    """Return the settings by which Spark uses a new directory in `directory` as long as this process lives.

    Only its sockets are there if the environment names directories for Spark, or if Spark can't take this one.
    """
    made = _new_directory(directory)
    configuration = {}
    is_elsewhere = bool(os.environ.get(_VARIABLE))
    if not is_elsewhere and "," in str(directory):
        log.warning(
            "Spark's temporary files are not in the home: Spark takes no directory whose path has a comma",
            path=str(directory),
        )
    elif not is_elsewhere:
        configuration[LOCAL_DIRECTORY] = str(made)
    if len(os.fsencode(made)) + 1 + _SOCKET_NAME_BYTES <= _MOST_SOCKET_PATH_BYTES:
        configuration[SOCKET_DIRECTORY] = str(made)
    return configuration


def _new_directory(parent: Path) -> Path:
    """Make a directory, lock it until this process ends, and remove those whose processes have ended."""
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _held(parent):
        for other in parent.iterdir():
            _remove_if_left(other)
        made = parent / secrets.token_hex(4)
        made.mkdir(mode=0o700)
        # The descriptor stays open on purpose, and is not inherited: it is closed when this process ends.
        fcntl.flock(os.open(made, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_EX)
    return made


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

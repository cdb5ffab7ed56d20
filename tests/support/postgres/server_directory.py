"""The directory of the server that a test run shares: in memory where there is room, which takes load off the disk.

A database of hundreds of files is made for each of more than eight hundred tests. On a disk's file system that took up
to eight times the processor time that it takes in memory. The server of the run doesn't sync in any case; servers and
block stores of tests that kill or fill something are made elsewhere, on the disk.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.support.machine.state_directory import state_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

_MEMORY = Path("/dev/shm")
_PREFIX = "forebay-test-server-"
# Bytes. The server of each process of the tests takes 80 MiB most of the time, and 221 were seen. The rest of the suite
# takes 4 GiB.
_ROOM_BYTES = 2 * 2**30
_FREE_MEMORY_BYTES = 8 * 2**30
# Seconds after which a directory without an owner was left by a killed run, and is not one that is just being made.
_LEFT_SECONDS = 60.0


@contextlib.contextmanager
def server_directory() -> Iterator[Path]:
    """Make a new directory, its owner's alone; remove it at the end."""
    if not _has_room():
        with state_directory() as path:
            yield path
        return
    _remove_left()
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_MEMORY))
    # Its owner holds the lock for as long as it lives.
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _has_room() -> bool:
    try:
        system = os.statvfs(_MEMORY)
    except OSError:
        return False
    room = system.f_bavail * system.f_frsize
    return (
        room >= _ROOM_BYTES
        and psutil.virtual_memory().available >= _FREE_MEMORY_BYTES
        and os.access(_MEMORY, os.W_OK | os.X_OK)
    )


def _remove_left() -> None:
    """Remove what killed runs have left: memory is not given back by itself."""
    for path in _MEMORY.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - path.stat().st_mtime > _LEFT_SECONDS:
                    shutil.rmtree(path)
            finally:
                os.close(descriptor)

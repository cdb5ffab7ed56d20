"""A file system whose server never answers, like a network mount whose server is gone."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NOSUID_NODEV = 0x2 | 0x4
_DETACH = 0x2


class HangingMountRefusedError(Exception):
    """It takes /dev/fuse and the right to mount: run this test where you have both."""


@contextlib.contextmanager
def hanging_mount(path: Path) -> Iterator[Path]:
    """Mount it at `path`, which is created; at the end, processes that wait there get an error.

    Raises HangingMountRefusedError.
    """
    path.mkdir(parents=True)
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        raise HangingMountRefusedError(f"{error}. {HangingMountRefusedError.__doc__}") from error
    try:
        options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}".encode()
        if libc.mount(b"hanging", bytes(path), b"fuse", _NOSUID_NODEV, options) != 0:
            said = os.strerror(ctypes.get_errno())
            raise HangingMountRefusedError(f"mount: {said}. {HangingMountRefusedError.__doc__}")
        try:
            yield path
        finally:
            libc.umount2(bytes(path), _DETACH)
    finally:
        # Closing the last descriptor releases the processes that wait for an answer.
        os.close(device)

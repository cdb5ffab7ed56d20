"""Decide how clients name the embedded server's Unix socket, which is in its data directory.

A socket's path may have at most 107 bytes, and a URL's host can't hold every character. A data directory with another
path gets a symbolic link with a short name, in a directory that only the caller's account can enter. This module never
makes a socket, and never follows a link that another account could have made.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
import sys
from pathlib import Path

from tracker_store.connection.errors import DriverLogError

SOCKET_PORT = 5432
"""Only names the socket: the server has no TCP port."""

_SOCKET_NAME = f".s.PGSQL.{SOCKET_PORT}"

MOST_PATH_BYTES = 107 if sys.platform == "linux" else 103
"""What the kernel's address of a Unix socket holds, without its terminating zero."""

_PLAIN_PATH = re.compile(rb"[A-Za-z0-9/._-]+")

_LINKS = Path("/tmp")  # noqa: S108  short, and everywhere; what lies there is checked
"""The parent of the directory of links. It does not depend on TMPDIR: all of an account's processes must find them."""


_SHORTER = "Choose a FOREBAY_HOME with a shorter path of letters, digits, dots, dashes and underscores."


def socket_path_is_usable(directory: Path) -> bool:
    """Return whether clients can name a socket in `directory` by its own path."""
    encoded = os.fsencode(directory / _SOCKET_NAME)
    return len(encoded) <= MOST_PATH_BYTES and _PLAIN_PATH.fullmatch(encoded) is not None


def client_directory(directory: Path) -> Path:
    """Return the directory that clients name to connect to the socket in `directory`; make the link if it needs one.

    Raises DriverLogError.
    """
    if socket_path_is_usable(directory):
        return directory
    try:
        return _link_to(directory, _own_directory())
    except OSError as error:
        raise DriverLogError(
            f"{directory} needs a short name for its socket, which failed: {error}", _SHORTER
        ) from error


def _own_directory() -> Path:
    own = _LINKS / f"forebay-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):
        own.mkdir(mode=0o700)
    status = own.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise DriverLogError(f"{own} is not a directory that belongs to this account alone (mode 0700)", _SHORTER)
    return own


def _link_to(directory: Path, parent: Path) -> Path:
    link = parent / hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]
    with contextlib.suppress(OSError):
        if link.readlink() == directory:
            return link
    new = parent / secrets.token_hex(8)
    new.symlink_to(directory)
    new.replace(link)
    return link

"""Keep the files of a FOREBAY_HOME to the account that runs Forebay: the home's mode, and the mask of new files.

It changes the home alone, and never a directory above it.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import structlog

from forebay.cli.services.child import SupervisorError

if TYPE_CHECKING:
    from pathlib import Path

PRIVATE_UMASK = 0o077
_OTHERS = 0o077  # the permissions of group and others

#: How to name a home that can be used.
OTHER_HOME = "Name a directory of this account in FOREBAY_HOME, or as the demo's --home."

_log = structlog.get_logger(__name__)


def mask_new_files() -> None:
    """Let the files that this process and its children create be readable by their owner only."""
    os.umask(PRIVATE_UMASK)


def make_home_private(home: Path) -> None:
    """Make the home if it is missing, and close it to other accounts (mode 0700) if it belongs to this one.

    Raises SupervisorError if it can't be made or used. A home of another account, or one that is everybody's (with the
    sticky bit, as /tmp), is left as it is; `others_may_enter` says so.
    """
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = home.stat()
        opened = status.st_uid == os.geteuid() and status.st_mode & _OTHERS and not status.st_mode & stat.S_ISVTX
        if opened:
            home.chmod(stat.S_IMODE(status.st_mode) & ~_OTHERS)
    except OSError as error:
        raise SupervisorError(f"{home} can't be made or used: {error.strerror}", OTHER_HOME) from error
    if opened:
        _log.warning("closed the home to other accounts", path=str(home), was=f"{stat.S_IMODE(status.st_mode):04o}")


def others_may_enter(home: Path) -> str | None:
    """Return why other accounts may have access to an existing home, or None."""
    status = home.stat()
    if status.st_mode & _OTHERS:
        return f"its mode is {stat.S_IMODE(status.st_mode):04o}"
    if status.st_uid != os.geteuid():
        return f"it belongs to uid {status.st_uid}"
    return None

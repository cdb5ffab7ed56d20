"""Raise this process's limit of file descriptors, and name the limit in the error of a process that has reached it.

A receiver process needs a descriptor for each connection and each open segment of each of its receivers, and some more.
Many systems limit a process to 1,024 until it asks for more. This module opens nothing.
"""

from __future__ import annotations

import errno
import resource

from tracker_store.long_texts import shortened

#: Asked for where the system sets no limit: Linux's own limit for a process, by default.
_MOST = 2**20


def raise_descriptor_limit() -> int:
    """Raise the soft limit as far as the system allows; return the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MOST if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        # Some systems allow less than their hard limit.
        return soft
    return wanted


def explain(error: BaseException) -> str:
    """Return an error's message; where descriptors have run out, with the limit and how to raise it."""
    match getattr(error, "errno", None):
        case errno.EMFILE:
            soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            return (
                f"{error}: this process may have {soft:,} open files: raise the hard limit (`ulimit -Hn`; LimitNOFILE= "
                "in systemd), or let fewer receivers share a process"
            )
        case errno.ENFILE:
            return f"{error}: this machine may have no more open files: raise fs.file-max"
        case _:
            # Some clients put what happened only into an error within theirs.
            return str(error) or ", ".join(shortened(repr(one), 200) for one in error.args if one not in ("", None))

"""How a receiver process ends, as a number for its agent."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """The exit status of ``forebay receiver``."""

    STOPPED = 0  # as it was told to, drained
    FAILED = 1  # restart it, with backoff
    STUCK = 74  # it held data and got nothing done: start another process at once, which salvages
    FENCED = 75  # another process holds the receiver: only a newer assignment starts it again

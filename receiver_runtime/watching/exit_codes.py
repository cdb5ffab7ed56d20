"""Tell the agent by a number how a receiver process ended."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Name the exit statuses of ``forebay receiver``."""

    STOPPED = 0  # stopped as requested, drained
    FAILED = 1  # restart it, with backoff
    HANGING = 74  # it held data and made no progress: start another process at once, which salvages
    FENCED = 75  # another process holds the receiver: only a newer assignment starts it again

"""Log the driver log's outages for a loop that survives them: a line at the start, one at the end.

It neither waits nor retries: the loop goes on at its own pace.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog
from sqlalchemy.exc import SQLAlchemyError

from tracker_store.connection.errors import DriverLogError

if TYPE_CHECKING:
    from collections.abc import Callable

_log = structlog.get_logger(__name__)

#: Errors that a loop survives: the named ones, and the database's own (a damaged page, a bug in a function).
SURVIVED = (DriverLogError, SQLAlchemyError)

# How many different messages are logged per outage: a message may contain something that differs each time.
_MOST_MESSAGES = 20
# Seconds in which an outage has several causes that are one to a person: a server ends, refuses, and starts.
_SETTLED_AFTER = 30.0


class Outage:
    """Log the outages of one loop; `who` is its name for people. For one thread."""

    def __init__(
        self, who: str, clock: Callable[[], float] = time.monotonic, tell: Callable[[str], None] | None = None
    ) -> None:
        """Take the loop's name for people; `clock` is monotonic, in seconds.

        tell: called with a line at an outage's start and at its end, and for another cause when it lasts, for a
        terminal; messages are then debug messages.
        """
        self._who = who
        self._clock = clock
        self._tell = tell
        self._since: float | None = None
        self._said: set[str] = set()
        self._told: set[str] = set()

    def failed(self, error: Exception) -> None:
        """Record that a call failed and the loop will try again. Each message is logged once per outage."""
        said = str(error)
        is_new = self._since is None
        if self._since is None:
            self._since = self._clock()
        if self._tell is not None and (is_new or self._clock() - self._since >= _SETTLED_AFTER):
            cause = (error.detail if isinstance(error, DriverLogError) else None) or said
            cause = cause.partition("\n")[0]
            if cause not in self._told and len(self._told) < _MOST_MESSAGES:
                self._told.add(cause)
                self._tell(f"{self._who} can't work with the driver log, and tries again: {cause}")
        if said in self._said or len(self._said) >= _MOST_MESSAGES:
            return
        self._said.add(said)
        if self._tell is not None:
            _log.debug(f"{self._who} can't work with the driver log", exc_info=error)
        else:
            _log.warning(
                f"{self._who} can't work with the driver log, trying again",
                error=said,
                exc_info=not isinstance(error, DriverLogError),
            )

    def answered(self) -> None:
        """Record that a call succeeded, which ends the outage."""
        if self._since is not None:
            away = round(self._clock() - self._since, 1)
            if self._tell is None:
                _log.info(f"{self._who} works with the driver log again", away_seconds=away)
            else:
                self._tell(f"{self._who} works with the driver log again, after {away:g} s")
            self._since = None
            self._said.clear()
            self._told.clear()

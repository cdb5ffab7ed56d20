"""What a loop that outlives the driver log's outages writes to its log: a line at the start, one at the end.

Owns no waiting and no retrying: the loop goes on at its own pace.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import structlog
from sqlalchemy.exc import SQLAlchemyError

from tracker_store.errors import DriverLogError

if TYPE_CHECKING:
    from collections.abc import Callable

_log = structlog.get_logger(__name__)

#: What a loop survives: what has a name, and what only the database knows (a damaged page, a bug in a function).
SURVIVED = (DriverLogError, SQLAlchemyError)

# A message may hold what differs each time.
_MOST_MESSAGES = 20


class Outage:
    """One loop's; `who` is its name for people. One thread."""

    def __init__(self, who: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is monotonic, in seconds."""
        self._who = who
        self._clock = clock
        self._since: float | None = None
        self._said: set[str] = set()

    def failed(self, error: Exception) -> None:
        """The driver log did not do what was asked: the loop tries again. Each message is logged once an outage."""
        if self._since is None:
            self._since = self._clock()
        said = str(error)
        if said not in self._said and len(self._said) < _MOST_MESSAGES:
            self._said.add(said)
            _log.warning(
                f"{self._who} can't work with the driver log, trying again",
                error=said,
                exc_info=not isinstance(error, DriverLogError),
            )

    def answered(self) -> None:
        """All was done."""
        if self._since is not None:
            _log.info(
                f"{self._who} works with the driver log again", away_seconds=round(self._clock() - self._since, 1)
            )
            self._since = None
            self._said.clear()

"""Retries an idempotent statement while the driver log is unavailable: what was computed is worth a wait.

Only for idempotent statements (a commit under an attempt's number, an attempt's end).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

import structlog

from tracker_store.connection.engine import connect
from tracker_store.connection.until_answered import until_answered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import sqlalchemy as sa

# How long to retry: long enough for a restart of the server or a failover. Giving up costs only another attempt.
RETRY_SECONDS = 120.0
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0

Result = TypeVar("Result")

log = structlog.get_logger(__name__)


def retry_statement(
    engine: sa.Engine,
    statement: Callable[[sa.Connection], Result],
    what: str,
    *,
    seconds: float = RETRY_SECONDS,
    pause: Callable[[float], None] = time.sleep,
) -> Result:
    """Return the answer of `statement`; retry with backoff for `seconds` while the driver log is unavailable.

    Raises DriverLogUnavailableError or OutcomeUnknownError after that, and anything else at once.
    """
    give_up_at = time.monotonic() + seconds
    delays = _delays()

    def ask() -> Result:
        with connect(engine) as connection:
            return statement(connection)

    def on_failure(error: Exception, delay: float) -> None:
        if time.monotonic() + delay > give_up_at:
            raise error
        log.warning("the driver log is unavailable, trying again", what=what, pause_seconds=delay, error=str(error))

    return until_answered(ask, delay=lambda: next(delays), on_failure=on_failure, pause=pause)


def _delays() -> Iterator[float]:
    delay = FIRST_PAUSE_SECONDS
    while True:
        yield delay
        delay = min(delay * 2, LONGEST_PAUSE_SECONDS)

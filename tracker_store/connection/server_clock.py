"""Read the database's clock, to compare another one with it. No decision depends on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures

if TYPE_CHECKING:
    from datetime import datetime


def server_time(connection: sa.Connection) -> datetime:
    """Return the time on the database's clock. No locks."""
    with named_failures():
        time: datetime = connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
    return time

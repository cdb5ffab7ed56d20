"""Test what a loop says of an outage on a terminal: a line at its start, one at its end, and few between."""

from __future__ import annotations

import psycopg2
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from tracker_store.connection.errors import DriverLogUnavailableError
from tracker_store.connection.outage import Outage


def test_an_outage_on_a_terminal_is_a_line_at_its_start_and_one_at_its_end() -> None:
    said: list[str] = []
    now = 0.0
    outage = Outage("forebay up", lambda: now, said.append)
    killed = psycopg2.OperationalError("server closed the connection\n\tThis probably means that it ended\n")
    with capture_logs() as logged:
        outage.failed(OperationalError("SELECT 1", {}, killed))
        for _ in range(3):
            outage.failed(DriverLogUnavailableError("connection refused"))
        now = 6.5
        outage.answered()
        outage.answered()
        outage.failed(DriverLogUnavailableError("connection refused"))
    away = "forebay up can't work with the driver log, and tries again:"
    assert said == [
        f"{away} (psycopg2.OperationalError) server closed the connection",
        "forebay up works with the driver log again, after 6.5 s",
        f"{away} connection refused",
    ]
    # Stacks are for `forebay --verbose up`: one for each message of an outage.
    assert [one["log_level"] for one in logged] == ["debug"] * 3


def test_another_cause_is_told_once_when_the_outage_lasts() -> None:
    said: list[str] = []
    now = 0.0
    outage = Outage("forebay up", lambda: now, said.append)
    for now in (0.0, 10.0, 40.0, 50.0):  # noqa: B007  the clock reads it
        outage.failed(DriverLogUnavailableError("connection refused"))
        outage.failed(DriverLogUnavailableError("password authentication failed"))
    causes = [line.rpartition(": ")[2] for line in said]
    assert causes == ["connection refused", "password authentication failed"]
    assert now == 50.0

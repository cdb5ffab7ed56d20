"""Test what `forebay batches` says of batches that failed: each cause once, and the whole of it for one batch."""

from __future__ import annotations

from datetime import timedelta

import sqlalchemy as sa

from tests.integration.cli.commands.batches.test_batch_times import add_batches, forebay, log  # noqa: F401  a fixture
from tests.support.driver_log.log import NOON, Log


def test_a_cause_is_said_once_and_counted_and_show_has_all_of_it(log: Log) -> None:  # noqa: F811  the fixture
    times = [NOON + number * timedelta(seconds=10) for number in range(4)]
    add_batches(log, *times)
    for number, time in enumerate(times[:3]):
        log.connection.execute(
            sa.text("UPDATE forebay.batches SET state = 'QUARANTINED', reason = :reason WHERE batch_time = :time"),
            {"reason": f"PythonException: ValueError: no number: 'line {number}'\nTraceback\n  File", "time": time},
        )
    listed = forebay("batches", "list", "--pipeline", "words")
    assert [line for line in listed.stdout.splitlines() if "ValueError" in line] == [
        f"{times[2]:%Y-%m-%dT%H:%M:%SZ} and 2 more: PythonException: ValueError: no number: 'line 2'"
    ]
    assert f"`forebay batches show words {times[2]:%Y-%m-%dT%H:%M:%SZ}`" in listed.stdout
    shown = forebay("batches", "show", "words", f"{times[0]:%Y-%m-%dT%H:%M:%SZ}").stdout.splitlines()
    at = shown.index("The whole reason:")
    assert shown[at + 1 : at + 4] == ["  PythonException: ValueError: no number: 'line 0'", "  Traceback", "    File"]
    assert shown[-1].startswith("0 block(s) can be read, 0 records; 1 have no records")

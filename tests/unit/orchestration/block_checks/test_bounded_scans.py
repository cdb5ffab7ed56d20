"""Check looks that share one deadline: answers that came are used, and what hangs or fails is named."""

from __future__ import annotations

import threading
from time import monotonic

import psycopg2
from sqlalchemy.exc import DBAPIError

from orchestration.block_checks.bounded_scans import BoundedScans, Unreachable, answer
from tests.support.polling import eventually
from tracker_store.connection.errors import DriverLogUnavailableError


def raising(error: Exception) -> None:
    raise error


def test_a_look_that_hangs_does_not_delay_the_others() -> None:
    never = threading.Event()
    began = monotonic()
    looks = BoundedScans(1.0)
    hangs = looks.start("mount", never.wait)
    has = looks.start("leader", lambda: "one")
    assert looks.unreachable() == [Unreachable("mount", "no answer within 1.0 s")]
    assert monotonic() - began < 20, "the deadline is one second"
    assert (answer(hangs), answer(has)) == (None, "one")
    never.set()


def test_a_failed_look_is_named_with_its_reason_on_one_line() -> None:
    looks = BoundedScans(60.0)
    statement = DBAPIError("SELECT secrets", None, psycopg2.OperationalError("canceled\ndue to lock timeout\n"))
    for part, error in {
        "driver log": DriverLogUnavailableError("connection refused"),
        "receivers": statement,
        "store": FileNotFoundError(2, "No such file or directory", "/blocks"),
        "bug": KeyError("states"),
    }.items():
        looks.start(part, lambda error=error: raising(error))  # type: ignore[misc]
    assert {missing.part: missing.reason for missing in looks.unreachable()} == {
        "driver log": "connection refused",
        "receivers": "canceled due to lock timeout",
        "store": "[Errno 2] No such file or directory: '/blocks'",
        "bug": "KeyError: 'states'",
    }


def test_failed_prerequisite_is_named_once_without_its_dependents() -> None:
    looks = BoundedScans(60.0)
    log = looks.start("driver log", lambda: raising(DriverLogUnavailableError("away")))
    looks.start("receivers", log.result, needs=log)
    assert [missing.part for missing in looks.unreachable()] == ["driver log"]


def test_an_answer_after_the_deadline_is_not_used() -> None:
    late = threading.Event()
    looks = BoundedScans(0.0)
    found = looks.start("mount", lambda: late.wait(60))
    assert looks.left() == 0
    assert [missing.part for missing in looks.unreachable()] == ["mount"]
    late.set()
    eventually(found.done, "the look has ended")

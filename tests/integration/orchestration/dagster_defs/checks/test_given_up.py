"""Test `is_given_up` on a run whose process died: the driver log may not have noticed yet."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from dagster._core.storage.tags import PARENT_RUN_ID_TAG

from forebay.dagster import is_given_up
from tests.support.driver_log.attempts import claim_batch, fail_batch
from tests.support.driver_log.log import NOON, make_log

if TYPE_CHECKING:
    from tests.support.driver_log.log import Log
    from tracker_store.schema.states import BatchState

TAGS = {"forebay/pipeline": "words", "forebay/batch_time": NOON.isoformat(), "forebay/attempt": "1"}


@pytest.fixture
def log(connection: sa.Connection, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Log:
    """Yield a log with a batch whose first attempt runs."""
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    made = make_log(connection)
    connection.execute(
        sa.text(
            "INSERT INTO forebay.batches (pipeline_id, batch_time, oldest_time, state, records, bytes, blocks) "
            "VALUES (:p, :t, :t, 'ALLOCATED', 0, 0, 0)"
        ),
        {"p": made.pipeline_id, "t": NOON},
    )
    claim_batch(connection, made.pipeline_id, NOON, run_id="run")
    return made


def bury(log: Log, *, max_attempts: int) -> BatchState | None:
    return fail_batch(log.connection, log.pipeline_id, NOON, run_id="run", error="killed", max_attempts=max_attempts)


@pytest.mark.parametrize(("max_attempts", "given_up"), [(1, True), (2, False)])
def test_is_given_up_waits_until_the_driver_log_has_noticed(log: Log, max_attempts: int, *, given_up: bool) -> None:
    answers: list[bool] = []
    asking = threading.Thread(target=lambda: answers.append(is_given_up(TAGS)), daemon=True)
    asking.start()
    asking.join(0.5)
    assert asking.is_alive(), "the attempt runs, as far as is known"
    bury(log, max_attempts=max_attempts)
    asking.join(20)
    assert answers == [given_up]


def test_is_given_up_does_not_wait_forever(log: Log) -> None:
    assert not is_given_up(TAGS, wait_seconds=0)
    assert not is_given_up(TAGS | {"forebay/attempt": "2"}), "attempt 2 has not begun"


def test_a_run_that_is_executed_again_is_not_given_up_again(log: Log) -> None:
    bury(log, max_attempts=1)
    assert is_given_up(TAGS)
    assert not is_given_up(TAGS | {PARENT_RUN_ID_TAG: "run"})

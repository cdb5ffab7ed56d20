"""Test which launcher launches a batch's run: one at a time, and none forever."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import sqlalchemy as sa

from tests.support.driver_log.attempts import claim_batch, fail_batch
from tests.support.driver_log.log import NOON, Log, make_log, wait_until_blocked
from tests.support.polling import joined
from tracker_store.batches import batches
from tracker_store.batches.launches import LaunchAnswer, LaunchOutcome, release_launch, take_launch
from tracker_store.connection.engine import connect
from tracker_store.receivers.leadership import DeposedError, read_leadership, take_leadership

TIME = NOON + timedelta(seconds=10)


@pytest.fixture
def log(connection: sa.Connection) -> Log:
    """Return a log with one batch, at TIME, allocated."""
    made = make_log(connection)
    made.add_at(made.receiver_ids[0], NOON)
    made.tracker.allocate_blocks_to_batch(TIME)
    return made


def take(log: Log, launcher: str, *, attempt: int = 1, term: int | None = None) -> LaunchAnswer:
    return take_launch(
        log.connection, pipeline_id=log.pipeline_id, batch_time=TIME, attempt=attempt, launcher=launcher, term=term
    )


def age(log: Log, by: str) -> None:
    log.connection.execute(sa.text(f"UPDATE forebay.batches SET launched_at = launched_at - interval '{by}'"))


def test_the_first_launcher_has_it_and_the_other_gets_its_name(log: Log) -> None:
    assert take(log, "a").outcome is LaunchOutcome.FIRST
    assert take(log, "b") == LaunchAnswer(LaunchOutcome.HELD, "a")
    assert take(log, "a").outcome is LaunchOutcome.AGAIN


def test_one_of_many_concurrent_launchers_has_it(log: Log, engine: sa.Engine) -> None:
    begin = threading.Barrier(6)
    outcomes: list[LaunchOutcome] = []

    def racing(name: str) -> None:
        with connect(engine) as connection:
            begin.wait(60)
            answer = take_launch(connection, pipeline_id=log.pipeline_id, batch_time=TIME, attempt=1, launcher=name)
        outcomes.append(answer.outcome)

    threads = [threading.Thread(target=racing, args=(f"launcher {n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        joined(thread)
    assert sorted(outcomes) == [LaunchOutcome.FIRST, *[LaunchOutcome.HELD] * 5]


@pytest.mark.parametrize(
    ("change", "outcome"),
    [
        ("batches SET launch_attempt = 1, launched_by = 'b', launched_at = clock_timestamp()", LaunchOutcome.HELD),
        ("batches SET launch_attempt = NULL, launched_by = NULL, launched_at = NULL", LaunchOutcome.FIRST),
        ("batches SET state = 'RUNNING', attempt = 1", LaunchOutcome.NOT_DUE),
        # The lease of the launcher before is over.
        ("leadership SET counter = counter + 1", LaunchOutcome.AGAIN),
        ("leadership SET term = term + 1", None),
    ],
)
def test_a_launcher_that_waits_for_a_row_decides_by_what_is_there_then(
    log: Log, engine: sa.Engine, change: str, outcome: LaunchOutcome | None
) -> None:
    """Check the one statement, whose snapshot is from before the wait."""
    take(log, "a")
    term = take_leadership(log.connection, seen=read_leadership(log.connection), holder="a")

    def late() -> LaunchOutcome | None:
        with connect(engine) as connection:
            try:
                return take_launch(
                    connection, pipeline_id=log.pipeline_id, batch_time=TIME, attempt=1, launcher="late", term=term
                ).outcome
            except DeposedError:
                return None

    age(log, "1 h")
    with connect(engine) as other, ThreadPoolExecutor(1) as pool:
        other.execute(sa.text("BEGIN"))
        other.execute(sa.text(f"UPDATE forebay.{change}"))
        launching = pool.submit(late)
        wait_until_blocked(log.connection)
        other.execute(sa.text("COMMIT"))
        assert launching.result(20) is outcome
    taken = log.connection.execute(sa.text("SELECT launched_by = 'late' FROM forebay.batches")).scalar_one()
    assert bool(taken) is (outcome in {LaunchOutcome.FIRST, LaunchOutcome.AGAIN})


# The lease is 15 s. A time in the future comes nearer while the test runs, so that one is far ahead.
@pytest.mark.parametrize("step", ["16 s", "-1 h"])
def test_no_launcher_has_it_forever_whatever_the_clock_does(log: Log, step: str) -> None:
    take(log, "a")
    age(log, step)
    assert take(log, "b").outcome is LaunchOutcome.AGAIN


def test_only_the_launcher_that_has_it_gives_back_a_launch_without_a_run(log: Log) -> None:
    take(log, "a")

    def give_back(launcher: str, attempt: int = 1) -> bool:
        return release_launch(
            log.connection, pipeline_id=log.pipeline_id, batch_time=TIME, attempt=attempt, launcher=launcher
        )

    assert not give_back("b")
    assert not give_back("a", attempt=2)
    assert give_back("a")
    assert take(log, "b").outcome is LaunchOutcome.FIRST


def test_an_attempt_that_is_not_the_next_is_not_launched(log: Log) -> None:
    assert take(log, "a", attempt=2).outcome is LaunchOutcome.NOT_DUE
    claim_batch(log.connection, log.pipeline_id, TIME, run_id="r", process_id=1)
    assert take(log, "a").outcome is LaunchOutcome.NOT_DUE
    batches.complete_batch(log.connection, pipeline_id=log.pipeline_id, batch_time=TIME, attempt=1, outputs=[])
    assert take(log, "a", attempt=2).outcome is LaunchOutcome.NOT_DUE


def test_the_next_attempt_is_a_separate_launch(log: Log) -> None:
    take(log, "a")
    fail_batch(log.connection, log.pipeline_id, TIME, run_id="r", error="x")
    assert take(log, "b", attempt=2).outcome is LaunchOutcome.FIRST


def test_a_past_term_takes_nothing(log: Log) -> None:
    old = take_leadership(log.connection, seen=read_leadership(log.connection), holder="a")
    new = take_leadership(log.connection, seen=read_leadership(log.connection), holder="b")
    with pytest.raises(DeposedError):
        take(log, "a", term=old)
    assert take(log, "b", term=new).outcome is LaunchOutcome.FIRST

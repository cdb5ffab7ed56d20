"""Check that a commit waits while the driver log is unavailable, and raises a refusal, and an outage that lasts."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import pytest

from orchestration.spark import statement_retry
from orchestration.spark.statement_retry import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, retry_statement
from tracker_store.connection.errors import AttemptSupersededError, DriverLogUnavailableError, OutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa


@pytest.fixture(autouse=True)
def _no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def connect(engine: object) -> Iterator[object]:
        yield engine

    monkeypatch.setattr(statement_retry, "connect", connect)


class Statement:
    """Raises each of `errors` in turn, then returns."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def __call__(self, connection: sa.Connection) -> str:
        del connection
        if self.errors:
            raise self.errors.pop(0)
        return "done"


NO_ENGINE = cast("sa.Engine", None)


def test_an_outage_is_waited_out_with_growing_bounded_pauses() -> None:
    pauses: list[float] = []
    away = [DriverLogUnavailableError(), OutcomeUnknownError(), *[DriverLogUnavailableError()] * 6]
    assert retry_statement(NO_ENGINE, Statement(*away), "commit", pause=pauses.append) == "done"
    assert pauses[:2] == [FIRST_PAUSE_SECONDS, 2 * FIRST_PAUSE_SECONDS]
    assert pauses[-1] == LONGEST_PAUSE_SECONDS == max(pauses)
    assert len(pauses) == len(away)


def test_a_refusal_is_raised_at_once() -> None:
    statement = Statement(AttemptSupersededError(), DriverLogUnavailableError())
    with pytest.raises(AttemptSupersededError):
        retry_statement(NO_ENGINE, statement, "commit", pause=lambda _: None)
    assert len(statement.errors) == 1


def test_a_lasting_outage_is_raised() -> None:
    with pytest.raises(DriverLogUnavailableError):
        retry_statement(NO_ENGINE, Statement(DriverLogUnavailableError()), "commit", seconds=0.0, pause=lambda _: None)

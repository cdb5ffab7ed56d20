"""Test the drain of `forebay up` on a real driver log: what it waits for, its bound, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Self, cast

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from forebay.cli.commands.drain import DrainResult, drain_pipelines
from forebay.cli.commands.up import Services
from forebay.cli.main import app
from forebay.cli.services.child import Child, RestartPolicy
from forebay.cli.services.supervisor import StopReason
from orchestration.declarations.settings import Settings
from tests.support.driver_log.log import INTERVAL, NOON, Log
from tests.support.machine.held_ports import held_port
from tracker_store.batches.pipeline_states import advance_stops, all_ended, start_pipelines, stop_pipelines
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.engine import create_engine
from tracker_store.receivers.leadership import read_leadership, take_leadership
from tracker_store.schema.states import PipelineState

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forebay.cli.commands.up import _Running
    from forebay.cli.terminal.console import Console

# Longer than any of these tests may take.
LONG = 250.0


@pytest.fixture
def term(log: Log) -> int:
    taken = take_leadership(log.connection, seen=read_leadership(log.connection), holder="me")
    assert taken is not None
    return taken


def state(log: Log) -> PipelineState:
    return get_pipeline(log.connection, "words").state


def step_by_step(*steps: Callable[[], object]) -> Callable[[], bool]:
    """Return a check for a second signal that takes one more of `steps` at each look, and never sees a signal."""
    left = list(steps)

    def look() -> bool:
        if left:
            left.pop(0)()
        return False

    return look


def test_o05_it_returns_when_all_is_processed_and_the_next_start_runs_the_pipeline(
    engine: sa.Engine, log: Log, term: int
) -> None:
    [receiver] = log.receiver_ids
    log.add_at(receiver, NOON)
    log.connection.execute(sa.text("UPDATE forebay.receivers SET state = 'ACTIVE'"))
    said: list[str] = []
    result = drain_pipelines(
        engine,
        ["words"],
        seconds=LONG,
        interrupted=step_by_step(
            lambda: None,
            lambda: advance_stops(log.connection, term=term),
            lambda: log.connection.execute(sa.text("UPDATE forebay.receivers SET state = 'INACTIVE'")),
            lambda: log.tracker.allocate_blocks_to_batch(NOON + INTERVAL),
            lambda: advance_stops(log.connection, term=term),
            lambda: log.connection.execute(
                sa.text("UPDATE forebay.batches SET state = 'COMPLETED', completed_at = clock_timestamp()")
            ),
            lambda: advance_stops(log.connection, term=term),
        ),
        tell=said.append,
    )
    assert result is DrainResult.DRAINED
    assert state(log) is PipelineState.STOPPED
    assert said[0].startswith("words: stopping; receivers: lines/1 ACTIVE; waiting: 10 records in 2 blocks; at most ")
    waits = [line.split("; ")[1] for line in said[:-1]]
    assert waits == [
        "receivers: lines/1 ACTIVE",
        "waiting: 10 records in 2 blocks",
        f"batch {NOON + INTERVAL:%Y-%m-%d %H:%M:%S}Z ALLOCATED, attempt 0",
        "the tracker's next look",
    ]
    assert said[-1] == "words: stopped"
    assert not all_ended(log.connection), "no person asked the system to end"
    assert start_pipelines(log.connection, names=["words"], lift_halts=False) == ["words"]


def test_o05_its_bound_holds_while_a_batch_fails_again_and_again(engine: sa.Engine, log: Log, term: int) -> None:
    log.add_at(log.receiver_ids[0], NOON)
    log.tracker.allocate_blocks_to_batch(NOON + INTERVAL)
    log.connection.execute(sa.text("UPDATE forebay.batches SET state = 'FAILED', attempt = 7, reason = 'no table'"))
    said: list[str] = []
    began = time.monotonic()
    result = drain_pipelines(
        engine,
        ["words"],
        seconds=1.5,
        interrupted=step_by_step(*[lambda: advance_stops(log.connection, term=term)] * 1000),
        tell=said.append,
    )
    assert result is DrainResult.TIMED_OUT
    assert 1.5 <= time.monotonic() - began < LONG / 2
    assert state(log) is PipelineState.STOPPING
    assert len(said) == 1, "the same is not said again"
    assert "FAILED, attempt 7 (no table); at most " in said[0]


def test_o05_a_second_signal_ends_it_at_once(engine: sa.Engine, log: Log) -> None:
    log.add_at(log.receiver_ids[0], NOON)
    looks = iter([False, False, True])
    began = time.monotonic()
    result = drain_pipelines(engine, ["words"], seconds=LONG, interrupted=lambda: next(looks), tell=lambda _: None)
    assert result is DrainResult.INTERRUPTED
    assert time.monotonic() - began < LONG / 2


def test_it_does_not_wait_for_what_a_person_decides(engine: sa.Engine, log: Log) -> None:
    """Check a pipeline that is halted, one that a person starts again, and one that is removed."""
    log.add_at(log.receiver_ids[0], NOON)
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET halted_by = :noon"), {"noon": NOON})
    said: list[str] = []

    def drain(interrupted: Callable[[], bool]) -> DrainResult:
        return drain_pipelines(engine, ["words", "removed"], seconds=LONG, interrupted=interrupted, tell=said.append)

    assert drain(lambda: False) is DrainResult.DRAINED
    assert said == ["words: halted by a quarantined batch, which waits for a person; waiting: 10 records in 2 blocks"]
    log.connection.execute(sa.text("UPDATE forebay.pipelines SET halted_by = NULL"))
    assert drain(step_by_step(lambda: None, lambda: start_pipelines(log.connection))) is DrainResult.DRAINED
    assert said[-1] == "words: running"


def test_a_persons_stop_stays_one(engine: sa.Engine, log: Log, term: int) -> None:
    stop_pipelines(log.connection)
    result = drain_pipelines(
        engine,
        ["words"],
        seconds=LONG,
        interrupted=step_by_step(lambda: None, lambda: advance_stops(log.connection, term=term)),
        tell=lambda _: None,
    )
    assert result is DrainResult.DRAINED
    assert all_ended(log.connection)


def test_its_bound_holds_without_a_driver_log() -> None:
    with held_port() as port:
        engine = create_engine(f"postgresql://nobody@127.0.0.1:{port}/none", application_name="tests", pool_size=1)
        result = drain_pipelines(engine, ["words"], seconds=1.0, interrupted=lambda: False, tell=lambda _: None)
        engine.dispose()
    assert result is DrainResult.TIMED_OUT


def test_it_ends_when_a_service_is_given_up_after_the_signal(
    log: Log, database_url: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check this because no process would be left to complete the stop, and the drain would wait for its bound."""
    log.add_at(log.receiver_ids[0], NOON)
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    monkeypatch.setenv("FOREBAY_GRACEFUL_STOP_TIMEOUT", "60s")
    services = Services(Settings(home=home))
    services._pipelines = [cast("_Running", SimpleNamespace(name="words"))]
    ends = Child("agent", [sys.executable, "-c", "input()"], guarded=False, restart=RestartPolicy(attempts=0))
    with services._supervisor as supervisor:
        supervisor.start([ends])
        supervisor.request_stop(StopReason(signal=signal.SIGTERM))
        assert services.given_up() is None
        pid = supervisor.pid("agent")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert services.drain(lambda _: None) is DrainResult.INTERRUPTED
        assert services.given_up() == "agent"
        assert supervisor.wait(60) == StopReason(signal=signal.SIGTERM)
    assert state(log) is PipelineState.STOPPING


@pytest.mark.parametrize(("given_up", "exit_code"), [("agent", 1), (None, 0)])
def test_forebay_up_says_why_a_drain_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, given_up: str | None, exit_code: int
) -> None:
    class Drained:
        """Stands for services that got a signal and whose drain was interrupted."""

        changes = ()
        receivers = slots = 1

        def ui_link(self, _console: Console) -> str:
            return "http://127.0.0.1:3000"

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def intervals_beyond_the_drain(self) -> list[str]:
            return []

        def wait_for_stop(self) -> StopReason:
            return StopReason(signal=signal.SIGTERM)

        def drain(self, _tell: object) -> DrainResult:
            return DrainResult.INTERRUPTED

        def given_up(self) -> str | None:
            return given_up

    monkeypatch.setattr("forebay.cli.commands.up.Services", lambda *_, **__: Drained())
    result = CliRunner().invoke(app, ["up", "forebay.demo.pipeline", "--drain"], env={"COLUMNS": "200"})
    assert result.exit_code == exit_code
    why = "agent was given up" if given_up else "of a second signal"
    assert f"Not drained, because {why}: the rest is processed after the next start." in result.output
    assert ("agent failed too often and was given up." in result.output) is (given_up is not None)

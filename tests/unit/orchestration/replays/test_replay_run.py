"""Check how a replay is launched while the code server restarts: rarely, for as long as it was told to, and why not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from orchestration.dagster_instance.dagster_client import (
    BatchSensor,
    CodeNotLoadedError,
    DagsterClient,
    DagsterError,
    RunNotStartedError,
)
from orchestration.replays import replay_run
from orchestration.replays.replay_choice import ReplayChoice
from orchestration.replays.replay_run import ReplayLaunch, ReplayRequest, launch_replay

if TYPE_CHECKING:
    from collections.abc import Mapping

SENSOR = BatchSensor("words_batches", "forebay", "__repository__", is_running=True, declaration="abc")
UNSTARTED = RunNotStartedError("DagsterUserCodeUnreachableError", "r0")


class Restarting:
    """A Dagster whose code server is gone until `back_at`, and lists its pipelines from `listed_at` on."""

    def __init__(self, error: DagsterError, *, back_at: float, listed_at: float = 0.0) -> None:
        self.now = 0.0
        self.launched_at: list[float] = []
        self.waits = 0
        self._error = error
        self._back_at = back_at
        self._listed_at = listed_at

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def batch_sensors(self) -> dict[str, BatchSensor]:
        return {} if self.now < self._listed_at else {SENSOR.name: SENSOR}

    def launch_job(self, _sensor: BatchSensor, _job: str, _config: object, _tags: Mapping[str, str]) -> str:
        self.launched_at.append(self.now)
        if self.now < self._back_at:
            raise self._error
        return "r1"

    def launch(self, monkeypatch: pytest.MonkeyPatch, code_seconds: float) -> str:
        monkeypatch.setattr(replay_run, "time", SimpleNamespace(monotonic=self.monotonic, sleep=self.sleep))
        request = ReplayRequest("words", ReplayChoice())
        launch = ReplayLaunch(cast("DagsterClient", self), request, url="http://d", code_seconds=code_seconds)
        return launch_replay(launch, self.report_wait)

    def report_wait(self) -> None:
        self.waits += 1


@pytest.mark.parametrize(("code_seconds", "launched_at"), [(0, [0]), (30, [0, 5, 15, 30]), (60, [0, 5, 15, 35, 60])])
def test_few_runs_are_made_that_never_start(
    monkeypatch: pytest.MonkeyPatch, code_seconds: float, launched_at: list[float]
) -> None:
    gone = Restarting(UNSTARTED, back_at=1000)
    with pytest.raises(CodeNotLoadedError, match=f"lists pipeline 'words', .* also after {code_seconds} s") as raised:
        gone.launch(monkeypatch, code_seconds)
    assert (gone.launched_at, raised.value.__cause__) == (launched_at, UNSTARTED)


def test_it_is_launched_as_soon_as_the_code_server_can_be_back(monkeypatch: pytest.MonkeyPatch) -> None:
    after_a_run = Restarting(UNSTARTED, back_at=7)
    assert after_a_run.launch(monkeypatch, 30) == "r1"
    assert (after_a_run.launched_at, after_a_run.waits) == ([0, 5, 15], 1)
    without_a_run = Restarting(CodeNotLoadedError("there is no run"), back_at=7)
    assert without_a_run.launch(monkeypatch, 30) == "r1"
    assert (without_a_run.now, without_a_run.waits) == (7, 1)


def test_a_pipeline_that_is_not_listed_is_not_launched_and_the_message_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    late = Restarting(UNSTARTED, back_at=0, listed_at=7)
    assert late.launch(monkeypatch, 30) == "r1"
    assert late.launched_at == [7]
    never = Restarting(UNSTARTED, back_at=0, listed_at=1000)
    with pytest.raises(CodeNotLoadedError, match="has no pipeline 'words', also after 30 s"):
        never.launch(monkeypatch, 30)
    assert never.launched_at == []

"""Test the jobs that stop and start streams, on a real driver log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forebay import ParquetSink, Pipeline, Stream
from forebay.dagster import build_definitions
from forebay.sources import SocketText
from orchestration.declarations.apply import apply
from tracker_store.connection.engine import connect
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import DesiredState

if TYPE_CHECKING:
    from collections.abc import Iterator

    import dagster as dg
    import sqlalchemy as sa

RUNNING, STOPPED = DesiredState.RUNNING, DesiredState.STOPPED


@pytest.fixture
def connection(engine: sa.Engine, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[sa.Connection]:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    with connect(engine) as made:
        yield made


@pytest.fixture
def pipeline(connection: sa.Connection) -> Pipeline:
    lines = Stream("lines", SocketText(host="127.0.0.1", port=9999), receivers=2)
    made = Pipeline("words", interval="10s")
    made.output(inputs=[lines], sink=ParquetSink("/out"), name="counts")(lambda frame: frame)
    other = Pipeline("others", interval="10s")
    clicks = Stream("clicks", SocketText(host="127.0.0.1", port=9998))
    other.output(inputs=[clicks], sink=ParquetSink("/other"), name="counts")(lambda frame: frame)
    apply(connection, [made, other])
    return made


def run(pipeline: Pipeline, what: str, **config: Any) -> dg.ExecuteInProcessResult:  # noqa: ANN401  of the step
    job = build_definitions(pipeline).get_job_def(f"words_{what}_streams")
    given = {"ops": {f"words__{what}_streams": {"config": config}}} if config else {}
    return job.execute_in_process(run_config=given, raise_on_error=False)


def wanted(connection: sa.Connection) -> dict[str, DesiredState]:
    return {f"{one.stream_name}/{one.ordinal}": one.desired_state for one in placements(connection)}


def test_by_default_they_stop_and_start_all_streams_of_the_pipeline(
    connection: sa.Connection, pipeline: Pipeline
) -> None:
    assert run(pipeline, "stop").success
    assert wanted(connection) == {"lines/1": STOPPED, "lines/2": STOPPED, "clicks/1": RUNNING}
    assert run(pipeline, "start").success
    assert wanted(connection) == {"lines/1": RUNNING, "lines/2": RUNNING, "clicks/1": RUNNING}


def test_a_single_receiver_by_its_name(connection: sa.Connection, pipeline: Pipeline) -> None:
    assert run(pipeline, "stop", receivers=["lines/2"]).success
    assert wanted(connection) == {"lines/1": RUNNING, "lines/2": STOPPED, "clicks/1": RUNNING}


@pytest.mark.parametrize(("name", "why"), [("clicks", "'clicks' is none of this job's"), ("lines/3", "'lines/3'")])
def test_an_unknown_receiver_fails_the_run_and_changes_nothing(
    connection: sa.Connection, pipeline: Pipeline, name: str, why: str
) -> None:
    result = run(pipeline, "stop", receivers=["lines/1", name])
    [failure] = [event for event in result.all_events if event.is_step_failure]
    assert why in str(failure.step_failure_data.error)
    assert set(wanted(connection).values()) == {RUNNING}

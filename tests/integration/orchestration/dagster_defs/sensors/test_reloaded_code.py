"""Test what a batch sensor of an instance of one's own makes of code that was loaded again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

import dagster as dg
import pytest

from forebay import ConsoleSink, Pipeline, Stream
from forebay.sources import SocketText
from orchestration.dagster_defs.assets.replay_job import replay_job
from orchestration.dagster_defs.build_definitions import batch_job
from orchestration.dagster_defs.sensors.batch_sensor import batch_sensor
from orchestration.dagster_defs.shared.sensor_connections import SensorConnections
from orchestration.declarations.apply import apply, is_applied
from orchestration.declarations.asked_targets import PAUSED
from orchestration.declarations.sink import TargetUnavailableError
from tracker_store.batches.pipeline_states import stop_pipelines
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import SharedPlaceError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa


def code(
    interval: str = "10s", *, port: int = 9999, output: str = "counts", name: str = "words", rows: int = 20
) -> Pipeline:
    """Return a pipeline of one stream as one version of the code declares it."""
    pipeline = Pipeline(name, interval=interval)

    @pipeline.output(
        inputs=[Stream("lines", SocketText(host="h", port=port))], sink=ConsoleSink(rows=rows), name=output
    )
    def made(lines: object) -> object:
        return lines

    return pipeline


class Location:
    """A code location with the sensor of one pipeline, whose cursor Dagster keeps."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.cursor: str | None = None
        self.reload(pipeline)

    def reload(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.sensor = batch_sensor(pipeline, batch_job(pipeline), replay_job(pipeline), SensorConnections())

    def tick(self, sensor: dg.SensorDefinition | None = None) -> str:
        """Tick once, and return what the skip says."""
        with dg.DagsterInstance.ephemeral() as instance:
            context = dg.build_sensor_context(instance=instance, cursor=self.cursor)
            data = (sensor or self.sensor).evaluate_tick(context)
            self.cursor = data.cursor
        return data.skip_message or ""


@pytest.fixture
def connection(engine: sa.Engine, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[sa.Connection]:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    with connect(engine) as connection:
        yield connection


NOT_APPLIED = "not applied: code and driver log differ, run `forebay apply`"


@pytest.mark.parametrize("after", [code("5s"), code(port=9998)])
def test_a_reload_applies_what_the_code_declares(connection: sa.Connection, after: Pipeline) -> None:
    location = Location(code())
    assert location.tick() == NOT_APPLIED, "a person applies a pipeline first"
    apply(connection, [location.pipeline])
    location.tick()
    location.reload(after)
    assert NOT_APPLIED not in location.tick()
    assert is_applied(connection, after)


def test_what_needs_a_person_waits(connection: sa.Connection) -> None:
    location = Location(code())
    apply(connection, [location.pipeline])
    location.tick()
    location.reload(code(output="others"))
    said = location.tick()
    assert said == f"{NOT_APPLIED} What waits for it: output 'counts' of words is gone (renamed? new is others)."
    apply(connection, [location.pipeline])
    assert NOT_APPLIED not in location.tick()


def test_what_waits_says_also_why_apply_would_refuse_it(
    connection: sa.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> Never:
        raise SharedPlaceError("both write to /data")

    location = Location(code())
    apply(connection, [location.pipeline])
    location.tick()
    monkeypatch.setattr("orchestration.dagster_defs.sensors.reloaded_code.refuse", refuses)
    location.reload(code(output="others"))
    assert "(renamed? new is others). both write to /data. Each would" in location.tick()


def test_what_needs_a_step_in_a_target_waits(connection: sa.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    location = Location(code())
    apply(connection, [location.pipeline])
    location.tick()
    monkeypatch.setattr(ConsoleSink, "step_after", lambda *_: "drop its key")
    location.reload(code(rows=1))
    step = f"output 'counts' of pipeline 'words': drop its key. {PAUSED}"
    assert location.tick() == f"{NOT_APPLIED} What waits for it: {step}"
    stop_pipelines(connection, name="words")
    assert location.tick().startswith(NOT_APPLIED), "a stop gets no last batch, and does not end"


def test_a_target_that_is_away_is_looked_at_again(connection: sa.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_away(*_: object) -> Never:
        raise TargetUnavailableError("refused")

    location = Location(code())
    apply(connection, [location.pipeline])
    location.tick()
    with monkeypatch.context() as patch:
        patch.setattr(ConsoleSink, "step_after", is_away)
        location.reload(code(rows=1))
        said = location.tick()
    assert said == f"{NOT_APPLIED} The next tick tries again: output 'counts' of pipeline 'words': refused."
    assert NOT_APPLIED not in location.tick()


def test_code_that_is_only_loaded_again_takes_back_nothing(connection: sa.Connection) -> None:
    location = Location(code())
    apply(connection, [location.pipeline])
    location.tick()
    apply(connection, [code("5s")])
    location.reload(code())
    assert location.tick() == NOT_APPLIED
    assert is_applied(connection, code("5s"))


def test_a_code_server_of_an_earlier_version_takes_back_nothing(connection: sa.Connection) -> None:
    location = Location(code())
    earlier = location.sensor
    apply(connection, [location.pipeline])
    location.tick()
    location.reload(code("5s"))
    location.tick()
    assert location.tick(earlier) == NOT_APPLIED
    assert NOT_APPLIED not in location.tick()
    assert is_applied(connection, code("5s"))


def test_pipelines_that_share_a_changed_stream_are_both_applied(connection: sa.Connection) -> None:
    locations = [Location(code(name="words")), Location(code(name="terms"))]
    apply(connection, [location.pipeline for location in locations])
    for location in locations:
        location.tick()
    for location in locations:
        location.reload(code("5s", port=9998, name=location.pipeline.name))
    assert all(NOT_APPLIED not in location.tick() for location in locations)


def test_in_an_instance_of_forebay_up_the_sensor_applies_nothing(
    connection: sa.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestration.dagster_defs.sensors.batch_sensor.loaded_copy", object)
    location = Location(code())
    apply(connection, [location.pipeline])
    location.tick()
    location.reload(code("5s"))
    assert location.tick() == NOT_APPLIED
    assert is_applied(connection, code())

"""Test the parts of the event sensor that need no driver log."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import dagster as dg
import pytest

from forebay.dagster import EventKind, ListenerEvent, event_sensor
from orchestration.dagster_defs.sensors.event_sensor import EventConfig, run_key

AT = datetime(2026, 1, 1, 12, 0, 0, 5, tzinfo=UTC)
EVENT = ListenerEvent(
    event_id="812-7",
    at=AT,
    kind="batch_quarantined",
    stream=None,
    ordinal=None,
    receiver_id=None,
    pipeline="words",
    pipeline_id=1,
    batch_time=AT,
    attempt=3,
    output=None,
    term=None,
    records=10,
    message="it broke",
)


def on_event(event: ListenerEvent) -> None:
    """Do something."""


def test_an_event_survives_json() -> None:
    assert ListenerEvent.from_json(json.loads(json.dumps(EVENT.as_json()))) == EVENT


def test_the_run_of_an_event_calls_the_function_with_it() -> None:
    seen: list[ListenerEvent] = []

    def handle(event: ListenerEvent) -> None:
        seen.append(event)

    sensor = event_sensor(handle, kinds=[EventKind.BATCH_QUARANTINED])
    job = dg.Definitions(sensors=[sensor]).resolve_job_def("handle")
    config = dg.RunConfig({"handle__call": EventConfig.of(EVENT)})
    assert job.execute_in_process(run_config=config).success
    assert seen == [EVENT]


def test_a_run_key_is_the_events_whatever_transaction_it_is_moved_to() -> None:
    assert run_key(EVENT) == "7:2026-01-01T12:00:00.000005+00:00"


@pytest.mark.parametrize(
    ("kinds", "most", "said"),
    [([], 1, "needs kinds"), ([EventKind.LEADER_CHANGED], 0, "runs per tick"), (["batch_exploded"], 1, "exploded")],
)
def test_a_sensor_that_could_do_nothing_is_refused(kinds: list[str], most: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        event_sensor(on_event, kinds=kinds, most_runs_per_tick=most)


def test_the_sensor_brings_its_job_and_merges_with_other_definitions() -> None:
    @dg.asset
    def theirs() -> None: ...

    ours = dg.Definitions(
        sensors=[
            event_sensor(on_event, kinds=["batch_quarantined"]),
            event_sensor(on_event, kinds=[EventKind.RECEIVER_FAILED], name="receivers_that_failed"),
        ]
    )
    repository = dg.Definitions.merge(dg.Definitions(assets=[theirs]), ours).get_repository_def()
    assert {sensor.name for sensor in repository.sensor_defs} == {"on_event", "receivers_that_failed"}
    assert {"on_event", "receivers_that_failed"} <= {job.name for job in repository.get_all_jobs()}


def test_without_a_driver_log_it_skips_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    sensor = event_sensor(on_event, kinds=["batch_quarantined"])
    monkeypatch.delenv("FOREBAY_DATABASE_URL", raising=False)
    skipped = sensor(dg.build_sensor_context())
    assert isinstance(skipped, dg.SkipReason)
    assert "FOREBAY_DATABASE_URL" in (skipped.skip_message or "")
    monkeypatch.setenv("FOREBAY_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    skipped = sensor(dg.build_sensor_context())
    assert isinstance(skipped, dg.SkipReason)
    assert "trying again" in (skipped.skip_message or "")

"""Test the event sensor on a real driver log: which events become runs, once each, and where it continues (M08)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg
import pytest

from forebay.dagster import EventKind, ListenerEvent, event_sensor
from orchestration.dagster_defs.sensors import event_sensor as module
from orchestration.dagster_defs.sensors.event_sensor import EventCursor
from tests.support.driver_log.log import Log, make_log, wait_until_told
from tracker_store.receivers.receivers import report_event
from tracker_store.schema.states import ReceiverEventKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sqlalchemy as sa

ERRORS = [EventKind.RECEIVER_ERROR]


@pytest.fixture
def log(connection: sa.Connection, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setenv("FOREBAY_DATABASE_URL", database_url)
    return make_log(connection)


def report(log: Log, *messages: str, kind: ReceiverEventKind = ReceiverEventKind.ERROR) -> None:
    for message in messages:
        report_event(log.connection, receiver_id=log.receiver_ids[0], epoch=1, kind=kind, message=message)
    wait_until_told(log.connection)


def ignore(_event: ListenerEvent) -> None:
    """Do nothing."""


def tick(sensor: dg.SensorDefinition, cursor: str | None) -> tuple[Sequence[dg.RunRequest], str]:
    result = sensor(dg.build_sensor_context(cursor=cursor))
    assert isinstance(result, dg.SensorResult)
    assert result.cursor
    return result.run_requests or [], result.cursor


def messages(requests: Sequence[dg.RunRequest]) -> list[str]:
    found: list[str] = []
    for request in requests:
        [op] = request.run_config["ops"].values()
        found.append(op["config"]["event"]["message"])
    return found


def test_m08_each_event_of_a_wanted_kind_is_one_run_with_its_own_key(log: Log) -> None:
    sensor = event_sensor(ignore, kinds=ERRORS)
    report(log, "before the sensor")
    requests, cursor = tick(sensor, None)
    assert requests == []
    report(log, "1")
    report(log, "not wanted", kind=ReceiverEventKind.CONNECTED)
    report(log, "2", "3")
    requests, after = tick(sensor, cursor)
    assert messages(requests) == ["1", "2", "3"]
    # Killed before the cursor was stored, a tick asks for the same runs again: Dagster makes one run per key.
    again, _ = tick(sensor, cursor)
    keys = [request.run_key for request in requests]
    assert keys == [request.run_key for request in again]
    assert len(set(keys)) == len(keys)
    assert [request.tags["forebay/event_kind"] for request in requests] == ["receiver_error"] * 3
    assert tick(sensor, after) == ([], after)


def test_a_sensor_may_begin_with_the_oldest_event_that_is_kept(log: Log) -> None:
    report(log, "1", "2")
    requests, _ = tick(event_sensor(ignore, kinds=ERRORS, start="earliest"), None)
    assert messages(requests) == ["1", "2"]


def test_a_sensor_in_an_empty_log_misses_nothing_of_what_comes(log: Log) -> None:
    log.connection.exec_driver_sql("DELETE FROM forebay.events")
    sensor = event_sensor(ignore, kinds=ERRORS)
    requests, cursor = tick(sensor, None)
    assert requests == []
    report(log, "1")
    requests, _ = tick(sensor, cursor)
    assert messages(requests) == ["1"]


def test_a_tick_requests_a_bounded_number_of_runs_and_the_next_ones_the_rest(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE", 2)
    sensor = event_sensor(ignore, kinds=ERRORS, start="earliest", most_runs_per_tick=3)
    report(log, *map(str, range(8)))
    found: list[str] = []
    cursor = None
    for requested in (3, 3, 2, 0):
        requests, cursor = tick(sensor, cursor)
        assert len(requests) == requested
        found += messages(requests)
    assert found == [str(number) for number in range(8)]


def test_a_tick_looks_at_a_bounded_number_of_events_and_the_next_goes_on(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PAGE", 2)
    monkeypatch.setattr(module, "_MOST_PAGES", 2)
    sensor = event_sensor(ignore, kinds=ERRORS, where=lambda event: event.message == "7", start="earliest")
    report(log, *map(str, range(8)))
    cursor = None
    found: list[str] = []
    for _ in range(3):
        requests, cursor = tick(sensor, cursor)
        found += messages(requests)
    assert found == ["7"]
    assert EventCursor.model_validate_json(cursor or "").position.id > 0


def test_the_run_calls_the_function_with_the_event_and_fails_with_it(log: Log) -> None:
    seen: list[ListenerEvent] = []

    def handle(event: ListenerEvent) -> None:
        seen.append(event)
        if event.message == "bad":
            message = "can't handle it"
            raise ValueError(message)

    sensor = event_sensor(handle, kinds=ERRORS, start="earliest")
    report(log, "good", "bad")
    good, bad = tick(sensor, None)[0]
    job = dg.Definitions(sensors=[sensor]).resolve_job_def("handle")
    assert job.execute_in_process(run_config=good.run_config).success
    with pytest.raises(ValueError, match="can't handle it"):
        job.execute_in_process(run_config=bad.run_config)
    assert [(event.stream, event.ordinal, event.kind, event.message) for event in seen] == [
        ("lines", 1, "receiver_error", "good"),
        ("lines", 1, "receiver_error", "bad"),
    ]


def test_a_retry_policy_calls_the_function_again(log: Log) -> None:
    calls: list[str] = []

    def handle(event: ListenerEvent) -> None:
        calls.append(event.message)
        if len(calls) == 1:
            message = "not yet"
            raise OSError(message)

    sensor = event_sensor(handle, kinds=ERRORS, start="earliest", retry_policy=dg.RetryPolicy(max_retries=1))
    report(log, "once")
    [request] = tick(sensor, None)[0]
    job = dg.Definitions(sensors=[sensor]).resolve_job_def("handle")
    assert job.execute_in_process(run_config=request.run_config).success
    assert calls == ["once", "once"]

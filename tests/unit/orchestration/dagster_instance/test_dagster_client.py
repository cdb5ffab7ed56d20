"""Check the tracker's client of Dagster: which requests it sends, and what it concludes without an answer."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import create_server
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import dagster as dg
import pytest
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.storage.tags import RUN_KEY_TAG, SENSOR_NAME_TAG
from dagster._daemon.sensor import fetch_existing_runs
from dagster_graphql.schema import create_schema
from graphql import parse, validate

from orchestration.batches.batch_schedule import Launch
from orchestration.dagster_instance import dagster_client
from orchestration.dagster_instance.dagster_client import (
    BatchSensor,
    DagsterClient,
    DagsterUnansweredError,
    DagsterUnreachableError,
    LaunchFailedError,
    LaunchRefusedError,
    RunNotStartedError,
)
from tests.support.machine.held_ports import held_port
from tests.support.polling import joined

if TYPE_CHECKING:
    from collections.abc import Iterator

LAUNCH = Launch("2026-01-01T12:00:10+00:00", 2)
SENSOR = BatchSensor("words_batches", "forebay", "__repository__", is_running=True, declaration="abc")


class Answering(BaseHTTPRequestHandler):
    """Answer each request with `answer`, and keep the request."""

    answer: ClassVar[Any] = None
    status: ClassVar[int] = 200
    asked: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        self.asked.append(
            {
                "path": self.path,
                "token": self.headers["Authorization"],
                **json.loads(self.rfile.read(int(self.headers["Content-Length"]))),
            }
        )
        answer = self.answer
        if isinstance(answer, tuple):
            # Several answers: one per request, in order.
            answer = answer[len(self.asked) - 1]
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def webserver(
    answer: object, *, status: int = 200, token: str | None = None
) -> Iterator[tuple[DagsterClient, list[dict[str, Any]]]]:
    asked: list[dict[str, Any]] = []
    handler = type("Handler", (Answering,), {"answer": answer, "asked": asked, "status": status})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield DagsterClient(f"http://127.0.0.1:{server.server_port}/prefix/", token=token), asked
    finally:
        server.shutdown()
        joined(thread)
        server.server_close()


def test_queries_fit_dagsters_schema() -> None:
    """Check the queries: Dagster's version is pinned, and a release that changes the schema fails here."""
    schema = create_schema().graphql_schema
    for query in (
        dagster_client._SENSORS,
        dagster_client._LAUNCH,
        dagster_client._STATUS,
        dagster_client._RUNS,
        dagster_client._UNFINISHED,
        dagster_client._END,
    ):
        assert validate(schema, parse(query)) == []
    assert dagster_client._NOT_STARTED in dagster_client._UNFINISHED_STATUSES
    assert set(dagster_client._UNFINISHED_STATUSES) == {status.value for status in NOT_FINISHED_STATUSES}


def test_a_run_is_launched_as_the_sensor_would() -> None:
    with webserver({"data": {"launchRun": {"__typename": "LaunchRunSuccess", "run": {"runId": "r1"}}}}) as (
        client,
        asked,
    ):
        assert client.launch(SENSOR, "words", LAUNCH) == "r1"
    [request] = asked
    assert request["path"] == "/prefix/graphql"
    params = request["variables"]["params"]
    assert params["selector"] == {
        "repositoryLocationName": "forebay",
        "repositoryName": "__repository__",
        "jobName": "words_batch",
    }
    assert params["runConfigData"] == {
        "ops": {"words__outputs": {"config": {"batch_time": LAUNCH.batch_time, "attempt": 2}}}
    }


def test_an_attempt_at_what_is_left_names_its_assets() -> None:
    with webserver({"data": {"launchRun": {"__typename": "LaunchRunSuccess", "run": {"runId": "r1"}}}}) as (
        client,
        asked,
    ):
        client.launch(SENSOR, "words", replace(LAUNCH, outputs=("more",)))
    selector = asked[0]["variables"]["params"]["selector"]
    assert selector["assetSelection"] == [{"path": ["words", "more"]}]
    assert selector["assetCheckSelection"] == []
    fields = create_schema().graphql_schema.type_map["JobOrPipelineSelector"].fields
    assert selector.keys() <= fields.keys()


def test_any_job_beside_the_sensor_can_be_launched_and_its_run_followed() -> None:
    with webserver({"data": {"launchRun": {"__typename": "LaunchRunSuccess", "run": {"runId": "r1"}}}}) as (
        client,
        asked,
    ):
        assert client.launch_job(SENSOR, "words_replay", {"ops": {}}, {"forebay/kind": "replay"}) == "r1"
    params = asked[0]["variables"]["params"]
    assert params["selector"]["jobName"] == "words_replay"
    assert params["executionMetadata"]["tags"] == [{"key": "forebay/kind", "value": "replay"}]
    with webserver({"data": {"runOrError": {"__typename": "Run", "status": "STARTED"}}}) as (client, _):
        assert client.run_status("r1") == "STARTED"
    gone = {"data": {"runOrError": {"__typename": "RunNotFoundError", "message": "no r1"}}}
    with webserver(gone) as (client, _), pytest.raises(LaunchRefusedError, match="no r1"):
        client.run_status("r1")


def test_dagsters_sensor_recognizes_a_pushed_run_by_its_key() -> None:
    """Check that it sends the tags that `fetch_existing_runs` reads, so the sensor's request makes no second run."""
    with webserver({"data": {"launchRun": {"__typename": "LaunchRunSuccess", "run": {"runId": "r1"}}}}) as (
        client,
        asked,
    ):
        client.launch(SENSOR, "words", LAUNCH)
    tags = {tag["key"]: tag["value"] for tag in asked[0]["variables"]["params"]["executionMetadata"]["tags"]}
    assert {RUN_KEY_TAG, SENSOR_NAME_TAG} <= tags.keys()
    with dg.DagsterInstance.ephemeral() as instance:
        pushed = instance.add_run(dg.DagsterRun(job_name="words_batch", tags=tags))
        request = dg.RunRequest(run_key=LAUNCH.run_key)
        found = fetch_existing_runs(instance, SimpleNamespace(name="words_batches"), [request])  # type: ignore[arg-type]
    assert {key: run.run_id for key, run in found.items()} == {LAUNCH.run_key: pushed.run_id}


def sensors(*names: str, status: str = "RUNNING", tag: str = "forebay/declaration") -> dict[str, Any]:
    return {
        "name": "__repository__",
        "location": {"name": "forebay"},
        "sensors": [
            {"name": name, "tags": [{"key": tag, "value": "abc"}], "sensorState": {"status": status}} for name in names
        ],
    }


def repositories(*nodes: dict[str, Any]) -> dict[str, Any]:
    return {"data": {"repositoriesOrError": {"__typename": "RepositoryConnection", "nodes": list(nodes)}}}


def test_only_our_sensors_with_unique_names_are_known() -> None:
    answer = repositories(
        sensors("words_batches", "twice_batches"),
        sensors("twice_batches"),
        sensors("stopped_batches", status="STOPPED"),
        sensors("others", tag="theirs"),
    )
    with webserver(answer) as (client, _):
        found = client.batch_sensors()
    assert found == {
        "words_batches": SENSOR,
        "stopped_batches": BatchSensor(
            "stopped_batches", "forebay", "__repository__", is_running=False, declaration="abc"
        ),
    }


def test_unreachable_webserver_has_certainly_launched_nothing() -> None:
    with held_port() as port, pytest.raises(DagsterUnreachableError):
        DagsterClient(f"http://127.0.0.1:{port}").launch(SENSOR, "words", LAUNCH)


def test_outcome_is_unknown_without_an_answer_in_time() -> None:
    with create_server(("127.0.0.1", 0)) as silent:
        client = DagsterClient(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_seconds=0.2)
        with pytest.raises(DagsterUnansweredError, match="timed out"):
            client.launch(SENSOR, "words", LAUNCH)


LOST = {"data": {"launchRun": {"__typename": "PythonError", "message": "lost"}}}


def run(status: str, run_id: str = "r1", **stats: float | None) -> dict[str, Any]:
    return {"runId": run_id, "status": status, "stats": stats}


def found(*runs: dict[str, Any]) -> object:
    return {"data": {"runsOrError": {"__typename": "Runs", "results": list(runs)}}}


@pytest.mark.parametrize(
    "ended", [{"data": {"terminateRun": {"__typename": "TerminateRunSuccess"}}}, b"<html>502</html>"]
)
def test_a_run_that_was_made_and_not_started_is_ended(ended: object) -> None:
    with (
        webserver((LOST, found(run("NOT_STARTED")), ended)) as (client, asked),
        pytest.raises(RunNotStartedError) as raised,
    ):
        client.launch(SENSOR, "words", LAUNCH)
    assert raised.value.run_id == "r1"
    assert asked[2]["variables"] == {"runId": "r1"}


@pytest.mark.parametrize(
    ("runs", "error"),
    [
        (found(), LaunchRefusedError),
        (found(run("STARTING")), DagsterUnansweredError),
        ({"data": {"runsOrError": {"__typename": "PythonError", "message": "too"}}}, DagsterUnansweredError),
        (b"<html>502</html>", DagsterUnansweredError),
    ],
)
def test_after_a_failed_launch_its_run_is_looked_for(runs: object, error: type[Exception]) -> None:
    """Check an unavailable code server, say: if no run exists, the launch need not wait until its lease ends."""
    with webserver((LOST, runs)) as (client, asked), pytest.raises(error) as raised:
        client.launch(SENSOR, "words", LAUNCH)
    assert isinstance(raised.value, DagsterUnansweredError) == (error is DagsterUnansweredError)
    tags = {tag["key"]: tag["value"] for tag in asked[1]["variables"]["tags"]}
    assert tags["dagster/run_key"] == LAUNCH.run_key
    assert tags["forebay/pipeline"] == "words"


@pytest.mark.parametrize(
    ("ended", "error"),
    [
        (run("FAILURE", startTime=None), RunNotStartedError),
        (run("CANCELED", startTime=None), RunNotStartedError),
        (run("FAILURE", startTime=3.0), LaunchFailedError),
        (run("FAILURE"), LaunchFailedError),
    ],
)
def test_a_run_that_failed_with_the_code_server_was_not_started_only_if_it_has_no_start(
    ended: dict[str, Any], error: type[Exception]
) -> None:
    gone = {"data": {"launchRun": {"__typename": "PythonError", "message": "DagsterUserCodeUnreachableError"}}}
    with webserver((gone, found(ended))) as (client, _), pytest.raises(error):
        client.launch(SENSOR, "words", LAUNCH)


@pytest.mark.parametrize("status", ["FAILURE", "CANCELED"])
def test_a_run_that_ended_without_a_start_is_not_found_by_its_tags(status: str) -> None:
    unstarted, started = run(status, "r2", startTime=None), run(status, startTime=3.0)
    for runs, wanted in (((unstarted,), None), ((unstarted, started), "r1"), ((run(status),), "r1")):
        with webserver(found(*runs)) as (client, _):
            assert client.run_with({"forebay/replay_request": "k"}) == wanted
    with webserver(found(run("STARTING", startTime=None))) as (client, _):
        assert client.run_with({"forebay/replay_request": "k"}) == "r1"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"data": {"launchRun": {"__typename": "PipelineNotFoundError", "message": "no job"}}}, LaunchRefusedError),
        ({"data": {"launchRun": {"__typename": "RunConfigValidationInvalid"}}}, LaunchRefusedError),
        ({"errors": [{"message": "no such field"}]}, DagsterUnansweredError),
        ({"data": None, "errors": []}, DagsterUnansweredError),
        (b"<html>502</html>", DagsterUnansweredError),
        ([], DagsterUnansweredError),
    ],
)
def test_refused_and_unknown_outcomes_are_distinguished(answer: object, error: type[Exception]) -> None:
    with webserver(answer) as (client, _), pytest.raises(error):
        client.launch(SENSOR, "words", LAUNCH)


def test_the_token_is_sent_and_a_refusal_means_that_there_is_no_run() -> None:
    done = {"data": {"runOrError": {"__typename": "Run", "status": "STARTED"}}}
    for token, sent in ((None, None), ("secret", "Bearer secret")):
        with webserver(done, token=token) as (client, asked):
            assert client.run_status("r1") == "STARTED"
        assert asked[0]["token"] == sent
    for status in (401, 403):
        with (
            webserver(b"open the link", status=status) as (client, _),
            pytest.raises(LaunchRefusedError, match=rf"HTTP {status}: open the link; .*FOREBAY_DAGSTER_TOKEN"),
        ):
            client.launch(SENSOR, "words", LAUNCH)

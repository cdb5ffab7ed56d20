"""Ask Dagster's webserver, by GraphQL over HTTP, which batch sensors run, and to launch runs.

Loads no Dagster. Each request has a timeout and a connection of its own: if the connection could not be made, it is
certain that nothing changed.
"""

from __future__ import annotations

import http
import http.client
import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from orchestration.batches.batch_schedule import DECLARATION_TAG, job_name, sensor_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestration.batches.batch_schedule import Launch

TIMEOUT_SECONDS = 5.0
# Dagster's tags: from them its daemon knows that a run key was launched (dagster/_daemon/sensor.py,
# fetch_existing_runs).
_RUN_KEY_TAG = "dagster/run_key"
_SENSOR_NAME_TAG = "dagster/sensor_name"
# Statuses of requests that did not get as far as Dagster.
_REFUSED = frozenset({http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN})

_SENSORS = """
query BatchSensors {
  repositoriesOrError {
    __typename
    ... on RepositoryConnection {
      nodes { name location { name } sensors { name tags { key value } sensorState { status } } }
    }
  }
}
"""
_STATUS = """
query RunStatus($runId: ID!) {
  runOrError(runId: $runId) { __typename ... on Run { status } ... on Error { message } }
}
"""
# What an error of Dagster contains if its code server went away or is going away. The first is an exception's name.
_CODE_UNREACHABLE = ("DagsterUserCodeUnreachableError", "start a run on a server after telling it to shut down")
# A run's own `startTime` is its end if it never started; that of its statistics is not.
_RUNS = """
query RunsWithTags($tags: [ExecutionTag!]!) {
  runsOrError(filter: {tags: $tags}, limit: 20) {
    __typename
    ... on Runs { results { runId status stats { ... on RunStatsSnapshot { startTime } } } }
    ... on Error { message }
  }
}
"""
_UNFINISHED = """
query UnfinishedRuns($tags: [ExecutionTag!]!, $statuses: [RunStatus!]!) {
  runsOrError(filter: {tags: $tags, statuses: $statuses}, limit: 1) {
    __typename
    ... on Runs { results { runId } }
    ... on Error { message }
  }
}
"""
# What a launch answers for a job that the code location does not have, or while that could not be loaded.
_NO_JOB = "PipelineNotFoundError"
_UNFINISHED_STATUSES = ("QUEUED", "NOT_STARTED", "STARTING", "STARTED", "CANCELING", "SUSPENDED")
_LAUNCH = """
mutation LaunchBatch($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on Error { message }
  }
}
"""
# At once, because nothing of the run has begun that could end in good order.
_END = """
mutation EndRun($runId: String!) {
  terminateRun(runId: $runId, terminatePolicy: MARK_AS_CANCELED_IMMEDIATELY) {
    __typename
    ... on Error { message }
  }
}
"""
_NOT_STARTED = "NOT_STARTED"
# The ends of a run that Dagster could not start; runs that did start have them too.
_ENDED_BADLY = ("FAILURE", "CANCELED")


class DagsterError(Exception):
    """Dagster's webserver did not do what it was asked."""


class DagsterUnreachableError(DagsterError):
    """There was no connection: nothing has happened. Is the webserver running at FOREBAY_DAGSTER_URL?"""


class DagsterUnansweredError(DagsterError):
    """There was no answer that says what happened: there may be a run, or not."""


class LaunchFailedError(DagsterUnansweredError):
    """Dagster ended the launch with an error, and may have made a run before."""


class LaunchRefusedError(DagsterError):
    """Dagster refused: there is no run."""


class CodeNotLoadedError(LaunchRefusedError):
    """Dagster's code server does not have the pipeline, as while it restarts: nothing was run."""


class RunNotStartedError(DagsterError):
    """Dagster made a run and could not start it: it was ended, and nothing ran."""

    def __init__(self, said: str, run_id: str) -> None:
        """Take what Dagster said, and the run that it had made."""
        super().__init__(f"{said}; its run {run_id} was not started")
        self.run_id = run_id
        self.lost_its_code = _is_code_unreachable(said)


def _is_code_unreachable(said: str) -> bool:
    return any(words in said for words in _CODE_UNREACHABLE)


def _never_started(run: Mapping[str, Any]) -> bool:
    """Return whether a run ended before its process began with it; False if Dagster can't say."""
    return run["status"] in _ENDED_BADLY and run["stats"].get("startTime", "unknown") is None


@dataclass(frozen=True, slots=True)
class BatchSensor:
    """Name a sensor that Forebay made, and its place; `declaration`: the fingerprint of the declaration in its code."""

    name: str
    location: str
    repository: str
    is_running: bool
    declaration: str


class DagsterClient:
    """Client of one Dagster webserver. Thread-safe."""

    def __init__(self, url: str, *, token: str | None = None, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """Prepare for the webserver at `url`, which includes its path prefix if it has one, and demands the token."""
        parts = urlsplit(url)
        self._https = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port
        self._path = parts.path.rstrip("/") + "/graphql"
        self._timeout = timeout_seconds
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def batch_sensors(self) -> dict[str, BatchSensor]:
        """Return every batch sensor by name, except names in several repositories. Raises DagsterError."""
        answer = self._ask(_SENSORS, {})["repositoriesOrError"]
        found: dict[str, BatchSensor] = {}
        several: set[str] = set()
        for repository in answer.get("nodes", ()):
            for sensor in repository["sensors"]:
                tags = {tag["key"]: tag["value"] for tag in sensor["tags"]}
                if DECLARATION_TAG not in tags:
                    continue
                name = sensor["name"]
                if name in found:
                    several.add(name)
                found[name] = BatchSensor(
                    name=name,
                    location=repository["location"]["name"],
                    repository=repository["name"],
                    is_running=sensor["sensorState"]["status"] == "RUNNING",
                    declaration=tags[DECLARATION_TAG],
                )
        return {name: sensor for name, sensor in found.items() if name not in several}

    def launch(self, sensor: BatchSensor, pipeline: str, launch: Launch) -> str:
        """Launch a batch's run as its sensor would, and return the run's id.

        Raises what ``launch_job`` raises.
        """
        tags = {
            **launch.tags(pipeline),
            _RUN_KEY_TAG: launch.run_key,
            _SENSOR_NAME_TAG: sensor_name(pipeline),
        }
        assets = [[pipeline, output] for output in launch.outputs]
        return self.launch_job(sensor, job_name(pipeline), launch.run_config(pipeline), tags, assets=assets)

    def run_with(self, tags: Mapping[str, str]) -> str | None:
        """Return the newest run with all of these tags, or None. Raises DagsterUnansweredError.

        It may have ended, but not without ever having started: of such a run nothing was done.
        """
        return next((run["runId"] for run in self._runs(tags) if not _never_started(run)), None)

    def _runs(self, tags: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return the newest runs with these tags, from the newest on. Raises DagsterUnansweredError."""
        wanted = [{"key": key, "value": value} for key, value in tags.items()]
        try:
            answer = self._ask(_RUNS, {"tags": wanted})["runsOrError"]
        except DagsterUnreachableError as error:
            raise DagsterUnansweredError(str(error)) from error
        if "results" not in answer:
            raise DagsterUnansweredError(f"{answer['__typename']}: {answer.get('message', '')}")
        runs: list[dict[str, Any]] = answer["results"]
        return runs

    def unfinished_run(self, tags: Mapping[str, str]) -> str | None:
        """Return the id of a run with all of these tags that is queued or runs, or None. Raises DagsterError."""
        wanted = [{"key": key, "value": value} for key, value in tags.items()]
        answer = self._ask(_UNFINISHED, {"tags": wanted, "statuses": _UNFINISHED_STATUSES})["runsOrError"]
        if "results" not in answer:
            raise LaunchRefusedError(f"{answer['__typename']}: {answer.get('message', '')}")
        return next((run["runId"] for run in answer["results"]), None)

    def run_status(self, run_id: str) -> str:
        """Return a run's status in Dagster, such as STARTED or SUCCESS. Raises DagsterError."""
        answer = self._ask(_STATUS, {"runId": run_id})["runOrError"]
        if "status" not in answer:
            raise LaunchRefusedError(f"{answer['__typename']}: {answer.get('message', '')}")
        status: str = answer["status"]
        return status

    def launch_job(
        self,
        sensor: BatchSensor,
        job: str,
        run_config: Mapping[str, Any],
        tags: Mapping[str, str],
        *,
        assets: Sequence[Sequence[str]] = (),
    ) -> str:
        """Launch a run of a job in the repository of `sensor`, and return its id; of all its assets if none is named.

        Raises DagsterUnreachableError and LaunchRefusedError if there is no run, RunNotStartedError if there is one
        that will never start, DagsterUnansweredError if there may be one.
        """
        params = {
            "selector": {
                "repositoryLocationName": sensor.location,
                "repositoryName": sensor.repository,
                "jobName": job,
                **({"assetSelection": [{"path": list(path)} for path in assets]} if assets else {}),
                # Assets that are named bring all their checks, whatever the job leaves out.
                **({"assetCheckSelection": []} if assets else {}),
            },
            "runConfigData": run_config,
            "executionMetadata": {"tags": [{"key": key, "value": value} for key, value in tags.items()]},
        }
        answer = self._ask(_LAUNCH, {"params": params})["launchRun"]
        if answer["__typename"] == "LaunchRunSuccess":
            run_id: str = answer["run"]["runId"]
            return run_id
        said = f"{answer['__typename']}: {answer.get('message', '')}"
        if answer["__typename"] == "PythonError":
            raise self._failed_launch(said, tags)
        raise (CodeNotLoadedError if answer["__typename"] == _NO_JOB else LaunchRefusedError)(said)

    def _failed_launch(self, said: str, tags: Mapping[str, str]) -> DagsterError:
        """Return what is left of a launch that ended with an error; end a run that it made and did not start.

        Dagster had finished with the launch when it answered: a run that does not exist now will not appear, and one
        that is not started now will not start. Raises DagsterUnansweredError.
        """
        run = next(iter(self._runs(tags)), None)
        if run is None:
            kind = CodeNotLoadedError if _is_code_unreachable(said) else LaunchRefusedError
            return kind(f"{said}; there is no run")
        run_id: str = run["runId"]
        if _is_code_unreachable(said) and _never_started(run):
            return RunNotStartedError(said, run_id)
        if run["status"] != _NOT_STARTED:
            return LaunchFailedError(said)
        # Nothing waits for it, whether Dagster shows its end now or the batch sensor's next look does.
        with suppress(DagsterError):
            self._ask(_END, {"runId": run_id})
        return RunNotStartedError(said, run_id)

    def _ask(self, query: str, variables: Mapping[str, Any]) -> dict[str, Any]:
        kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout)
        try:
            try:
                connection.connect()
            except OSError as error:
                raise DagsterUnreachableError(f"{self._host}:{self._port}: {error}") from error
            try:
                connection.request(
                    "POST",
                    self._path,
                    json.dumps({"query": query, "variables": variables}),
                    self._headers,
                )
                answer = connection.getresponse()
                body = answer.read()
                if answer.status in _REFUSED:
                    raise LaunchRefusedError(
                        f"HTTP {answer.status}: {body[:300].decode(errors='replace').strip()}; is "
                        "FOREBAY_DAGSTER_TOKEN the webserver's token?"
                    )
                said = json.loads(body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise DagsterUnansweredError(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        data = said.get("data") if isinstance(said, dict) else None
        if not isinstance(data, dict) or any(value is None for value in data.values()):
            raise DagsterUnansweredError(
                f"HTTP {answer.status}: {said.get('errors') if isinstance(said, dict) else said}"
            )
        return data

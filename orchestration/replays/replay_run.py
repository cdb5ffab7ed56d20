"""Ask Dagster for a run of a pipeline's replay job: `forebay batches replay` and the tracker's HTTP API do.

Owns the run's configuration and the tag by which it is found again. Which batches can be replayed is decided by
``replay`` and the driver log. Loads no Dagster.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestration.batches.batch_schedule import sensor_name
from orchestration.dagster_instance.dagster_client import CodeNotLoadedError, RunNotStartedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from orchestration.dagster_instance.dagster_client import DagsterClient
    from orchestration.replays.replay_choice import ReplayChoice

POLL_SECONDS = 0.5  # between two looks at a code server that restarts, or at a run

REPLAY_TAG = "forebay/replay"
# The tag of one request alone, by which its run is found if Dagster's answer is lost: its own id, or its sender's key.
REQUEST_TAG = "forebay/replay_request"


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Ask for a replay of a pipeline's batches; without `outputs`: of all outputs."""

    pipeline: str
    choice: ReplayChoice
    outputs: tuple[str, ...] = ()

    def config(self) -> dict[str, object]:
        """Return the configuration of the replay job's op."""
        times = {"from_time": self.choice.from_time, "to_time": self.choice.to_time}
        return {
            **{name: "" if time is None else time.isoformat() for name, time in times.items()},
            "outputs": list(self.outputs),
            "failed_outputs_only": self.choice.failed_outputs_only,
            "quarantined": self.choice.quarantined,
        }

    def tags(self) -> dict[str, str]:
        """Return the tags of its run: requests for the same have the same."""
        said = json.dumps([self.pipeline, self.config()], sort_keys=True)
        return {REPLAY_TAG: hashlib.sha256(said.encode()).hexdigest()}


def launch_replay(
    client: DagsterClient,
    request: ReplayRequest,
    *,
    url: str,
    tags: Mapping[str, str] | None = None,
    code_seconds: float,
    on_wait: Callable[[], None] = lambda: None,
) -> str:
    """Launch a run, and return its id. `url` is Dagster's, for people; the run gets `tags` too.

    `code_seconds`: how long to wait for a code server that restarts, as after `forebay apply`. `on_wait` is called once
    when the wait begins. While it waits, nothing of the request has run, so no launch of it is a second one.

    Raises:
        CodeNotLoadedError: Dagster has no such pipeline, also after the wait.
        DagsterError: see ``DagsterClient.launch_job``.
    """
    deadline: float | None = None
    while True:
        try:
            return _launch(client, request, {**request.tags(), **(tags or {})})
        except (CodeNotLoadedError, RunNotStartedError) as error:
            if isinstance(error, RunNotStartedError) and not error.lost_its_code:
                raise
            if deadline is None:
                deadline = time.monotonic() + code_seconds
                on_wait()
            if time.monotonic() >= deadline:
                seconds = f"also after {code_seconds:g} s"
                message = (
                    f"Dagster at {url} has no pipeline {request.pipeline!r}, {seconds}: its code server's log says why"
                )
                raise CodeNotLoadedError(message) from error
        time.sleep(POLL_SECONDS)


def _launch(client: DagsterClient, request: ReplayRequest, tags: Mapping[str, str]) -> str:
    name = request.pipeline
    sensor = client.batch_sensors().get(sensor_name(name))
    if sensor is None:
        raise CodeNotLoadedError
    return client.launch_job(sensor, f"{name}_replay", {"ops": {f"{name}__replay": {"config": request.config()}}}, tags)


class OtherReplayError(Exception):
    """Take a new key for each replay that you want: this request's key was sent with another replay."""


def replay_with_key(client: DagsterClient, request: ReplayRequest, key: str) -> str | None:
    """Return the run that was launched for this request's key, also if it has ended; None: there is none.

    Raises OtherReplayError if the key came with another request, and DagsterError.
    """
    tags = {REQUEST_TAG: key}
    run_id = client.run_with({**request.tags(), **tags})
    if run_id is None and (other := client.run_with(tags)) is not None:
        raise OtherReplayError(f"run {other}")
    return run_id


def unfinished_replay(client: DagsterClient, request: ReplayRequest) -> str | None:
    """Return the run of the same request that waits or runs; None: there is none. Raises DagsterError."""
    return client.unfinished_run(request.tags())

"""Ask Dagster for a run of a pipeline's replay job: `forebay batches replay` and the tracker's HTTP API do.

Owns the run's configuration and the tag by which it is found again. Which batches can be replayed is decided by
``replay`` and the driver log. Loads no Dagster.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestration.batches.batch_schedule import sensor_name
from orchestration.replays.replay_choice import ReplayChoice, ReplayError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestration.dagster_instance.dagster_client import DagsterClient

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


class PipelineNotLoadedError(ReplayError):
    """Dagster has loaded no such pipeline, at least not yet: its code server may be restarting."""


def launch_replay(
    client: DagsterClient, request: ReplayRequest, *, url: str, tags: Mapping[str, str] | None = None
) -> str:
    """Launch a run, and return its id. `url` is Dagster's, for people; the run gets `tags` too.

    Raises:
        PipelineNotLoadedError: Dagster has no such pipeline.
        DagsterError: see ``DagsterClient.launch_job``.
    """
    sensor = client.batch_sensors().get(sensor_name(request.pipeline))
    if sensor is None:
        message = f"Dagster at {url} has no pipeline {request.pipeline!r}: is its code loaded?"
        raise PipelineNotLoadedError(message)
    name = request.pipeline
    return client.launch_job(
        sensor,
        f"{name}_replay",
        {"ops": {f"{name}__replay": {"config": request.config()}}},
        {**request.tags(), **(tags or {})},
    )


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

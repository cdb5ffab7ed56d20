"""Ask Dagster for a run of a pipeline's replay job: `forebay batches replay` and the tracker's HTTP API do.

Owns the run's configuration, the tag by which it is found again, and how often its launch is tried while the code
server restarts. Which batches can be replayed is decided by ``replay`` and the driver log. Loads no Dagster.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestration.batches.batch_schedule import replay_job_name, sensor_name
from orchestration.dagster_instance.dagster_client import CodeNotLoadedError, RunNotStartedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from orchestration.dagster_instance.dagster_client import DagsterClient, DagsterError
    from orchestration.replays.replay_choice import ReplayChoice

POLL_SECONDS = 0.5  # between two looks at a code server that restarts, or at a run
# The pause after a launch that left a run that never starts, doubled each time: people see those runs in Dagster.
RESTART_SECONDS = 5.0

REPLAY_TAG = "forebay/replay"
# The tag of one request alone, by which its run is found if Dagster's answer is lost: its own id, or its sender's key.
REQUEST_TAG = "forebay/replay_request"
# The tag of a run that is launched again once if its process is lost: nothing but the batch sensor follows it.
AGAIN_TAG = "forebay/replay_again"
# The tag of a run of a replay forward, with the replay's id.
STATE_REPLAY_TAG = "forebay/state_replay"
# The tag of the run that follows a lost one, with that one's id.
FOLLOWS_TAG = "forebay/replay_follows"


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """Ask for a replay of a pipeline's batches; without `outputs`: of all outputs.

    `forward`: of one output with a state, begin at the choice's `from_time` and run every later batch too.
    `state_replay`: carry on this replay forward, which has begun; nothing else is said then.
    """

    pipeline: str
    choice: ReplayChoice
    outputs: tuple[str, ...] = ()
    forward: bool = False
    state_replay: int | None = None

    def config(self) -> dict[str, object]:
        """Return the configuration of the replay job's op."""
        if self.state_replay is not None:
            return {"state_replay": self.state_replay}
        times = {"from_time": self.choice.from_time, "to_time": self.choice.to_time}
        return {
            **{name: "" if time is None else time.isoformat() for name, time in times.items()},
            "outputs": list(self.outputs),
            "failed_outputs_only": self.choice.failed_outputs_only,
            "quarantined": self.choice.quarantined,
            # Not said otherwise: a code server of the version before knows no such field.
            **({"forward": True} if self.forward else {}),
        }

    def tags(self) -> dict[str, str]:
        """Return the tags of its run: requests for the same have the same."""
        said = json.dumps([self.pipeline, self.config()], sort_keys=True)
        return {REPLAY_TAG: hashlib.sha256(said.encode()).hexdigest()}


class ReplayLaunch:
    """Launch a run in turns, until the code server, which restarts as after `forebay apply`, has the pipeline.

    Between two turns nothing of the request has run, so no launch of it is a second one.
    """

    def __init__(
        self,
        client: DagsterClient,
        request: ReplayRequest,
        *,
        url: str,
        tags: Mapping[str, str] | None = None,
        code_seconds: float,
    ) -> None:
        """Prepare. `url` is Dagster's, for people; the run gets `tags` too; the turns end after `code_seconds`."""
        self.pause = 0.0
        self._client = client
        self._request = request
        self._url = url
        self._tags = {**request.tags(), **(tags or {})}
        self._code_seconds = code_seconds
        self._deadline: float | None = None
        self._restart_seconds = RESTART_SECONDS

    def turn(self) -> str | None:
        """Return the run's id; None: the next turn is due after `pause` seconds.

        Raises:
            CodeNotLoadedError: the code server does not have the pipeline, also after the last turn.
            DagsterError: see ``DagsterClient.launch_job``.
        """
        name = self._request.pipeline
        sensor = self._client.batch_sensors().get(sensor_name(name))
        if sensor is None:
            self._wait(POLL_SECONDS, f"has no pipeline {name!r}")
            return None
        config = {"ops": {f"{name}__replay": {"config": self._request.config()}}}
        seconds = POLL_SECONDS
        try:
            return self._client.launch_job(sensor, replay_job_name(name), config, self._tags)
        except RunNotStartedError as error:
            if not error.lost_its_code:
                raise
            seconds = self._restart_seconds
            self._restart_seconds *= 2
            cause: DagsterError = error
        except CodeNotLoadedError as error:
            cause = error
        self._wait(seconds, f"lists pipeline {name!r}, but could not start a run of it", cause)
        return None

    def _wait(self, seconds: float, why: str, cause: DagsterError | None = None) -> None:
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._code_seconds
        if now >= self._deadline:
            message = (
                f"Dagster at {self._url} {why}, also after {self._code_seconds:g} s: its code server's log says why"
            )
            raise CodeNotLoadedError(message) from cause
        self.pause = min(seconds, self._deadline - now)


def launch_replay(launch: ReplayLaunch, on_wait: Callable[[], None]) -> str:
    """Take all turns, and return the run's id; `on_wait` is called once when the wait begins.

    Raises what ``ReplayLaunch.turn`` raises.
    """
    run_id = launch.turn()
    if run_id is None:
        on_wait()
    while run_id is None:
        time.sleep(launch.pause)
        run_id = launch.turn()
    return run_id


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

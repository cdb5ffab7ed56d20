"""Follow a replay forward in Dagster, for `forebay batches replay --forward` and `forebay state`.

Dagster is asked whether the run is over, and the driver log for what became of each batch, and of the replay.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from forebay.cli.commands.batches.replay_following import FINISHED, SILENT_SECONDS, ReplayedRow
from forebay.cli.commands.batches.replay_launching import ReplayLauncher
from orchestration.dagster_instance.dagster_client import DagsterClient, DagsterError
from orchestration.replays.replay_choice import ReplayChoice
from orchestration.replays.replay_run import POLL_SECONDS, ReplayRequest
from tracker_store.batches.state_replays import ended_attempts, state_replay
from tracker_store.schema.states import UNFINISHED_STATE_REPLAYS, AttemptState, StateReplayState

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from datetime import datetime

    import sqlalchemy as sa

    from forebay.cli.terminal.console import Console


class ForwardRun:
    """Run what is left of a replay forward as one run in Dagster."""

    def __init__(
        self, console: Console, connection: sa.Connection, *, url: str, token: str | None, pipeline: str, replay_id: int
    ) -> None:
        """Prepare; `rows` launches it. `url` is the webserver's, and `token` what it demands."""
        self._console = console
        self._connection = connection
        self._url = url
        self._token = token
        self._pipeline = pipeline
        self._replay_id = replay_id
        self._after: datetime | None = None
        # A run that is lost with the code server, whose process is its parent, is launched again, but only once.
        self._may_launch_again = True
        self._is_lost = False

    def rows(self) -> Generator[ReplayedRow]:
        """Launch a run; yield each batch when its attempt has ended. Raises ReplayError if there is no run."""
        launcher = ReplayLauncher(self._console, self._url, self._token)
        request = ReplayRequest(self._pipeline, ReplayChoice(), state_replay=self._replay_id)
        yield from self._follow(launcher.launch(request))
        # One that was cancelled is STOPPED.
        if self._is_lost and self._state() in (StateReplayState.RUNNING, StateReplayState.UNDOING):
            self._is_lost = self._may_launch_again = False
            self._console.print("The run's process ended, and its attempt is LOST: launching another run …")
            yield from self._follow(launcher.launch(request))

    def _state(self) -> StateReplayState:
        return state_replay(self._connection, self._replay_id).state

    def _follow(self, run_id: str) -> Iterator[ReplayedRow]:
        client = DagsterClient(self._url, token=self._token)
        answered = time.monotonic()
        while True:
            finished, silence = False, ""
            try:
                finished = client.run_status(run_id) in FINISHED
                answered = time.monotonic()
            except DagsterError as error:
                silence = str(error)
            yield from self._ended(run_id)
            if finished or self._is_lost or (silence and self._state() not in UNFINISHED_STATE_REPLAYS):
                return
            if silence and time.monotonic() - answered > SILENT_SECONDS:
                where = f"{self._url}/runs/{run_id}"
                self._console.print(
                    f"Dagster does not say how the run is ({silence}); see `forebay status`, and {where}", markup=False
                )
                return
            time.sleep(POLL_SECONDS)

    def _ended(self, run_id: str) -> Iterator[ReplayedRow]:
        """Yield the batches whose attempt in this run has ended since the last look, by the driver log."""
        replay = state_replay(self._connection, self._replay_id)
        for found in ended_attempts(self._connection, replay, run_id, after=self._after):
            if found.state is AttemptState.LOST and self._may_launch_again:
                self._is_lost = True
                return
            self._after = found.batch_time
            done = found.state is AttemptState.SUCCEEDED
            detail = found.error or f"attempt {found.attempt}"
            yield ReplayedRow(found.batch_time, "replayed" if done else "failed", detail)

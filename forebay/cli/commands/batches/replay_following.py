"""Follow a replay in Dagster, for `forebay batches replay`.

Dagster is asked for the run, and the driver log for what became of each batch. So a webserver that is busy or gone does
not hide what was done. It launches another run of one request only if Dagster
could not start the one before, or, once, if the driver log says that its process has ended, as with the code server.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from forebay.cli.commands.batches.replay_launching import ReplayLauncher
from orchestration.dagster_instance.dagster_client import DagsterClient, DagsterError
from orchestration.replays.replay_run import POLL_SECONDS
from tracker_store.batches import batches
from tracker_store.schema.states import AttemptState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    import sqlalchemy as sa

    from forebay.cli.terminal.console import Console
    from orchestration.replays.replay_run import ReplayRequest

# How long to follow a run by the driver log alone while Dagster does not say how it is.
SILENT_SECONDS = 120.0
FINISHED = ("SUCCESS", "FAILURE", "CANCELED")


@dataclass(frozen=True, slots=True)
class ReplayedRow:
    """One batch of the result: `outcome` is replayed, failed, refused or unknown."""

    batch_time: datetime
    outcome: str
    detail: str = ""


class ReplayRun:
    """Run a replay of `times` as one run in Dagster."""

    def __init__(
        self,
        console: Console,
        connection: sa.Connection,
        *,
        url: str,
        token: str | None,
        pipeline_id: int,
        request: ReplayRequest,
        times: Sequence[datetime],
    ) -> None:
        """Prepare; `rows` launches it. `url` is the webserver's, and `token` what it demands."""
        self._console = console
        self._connection = connection
        self._url = url
        self._token = token
        self._pipeline_id = pipeline_id
        self._request = request
        self._launcher = ReplayLauncher(console, url, token)
        self._left = list(times)
        # A run that is lost with the code server, whose process is its parent, is launched again, but only once.
        self._may_launch_again = True

    def rows(self) -> Iterator[ReplayedRow]:
        """Launch a run; yield each batch when its attempt has ended, and the rest when the run has.

        Raises ReplayError if there is no run.
        """
        yield from self._run()
        if self._left:
            first = self._left[0]
            self._request = replace(self._request, choice=replace(self._request.choice, from_time=first))
            self._console.print(
                f"The run's process ended in the middle of batch {first.isoformat()}, and that attempt is LOST: "
                "launching another run …",
                markup=False,
            )
            yield from self._run()

    def _run(self) -> Iterator[ReplayedRow]:
        run_id = self._launcher.launch(self._request)
        yield from self._follow(run_id)

    def _follow(self, run_id: str) -> Iterator[ReplayedRow]:
        client = DagsterClient(self._url, token=self._token)
        answered = time.monotonic()
        where = f"{self._url}/runs/{run_id}"
        while self._left:
            finished, silence = False, ""
            try:
                finished = client.run_status(run_id) in FINISHED
                answered = time.monotonic()
            except DagsterError as error:
                silence = str(error)
            yield from self._ended(run_id)
            if self._may_launch_again and self._is_lost(run_id):
                self._may_launch_again = False
                return
            if silence and time.monotonic() - answered > SILENT_SECONDS:
                why = f"Dagster does not say how the run is ({silence}); see forebay batches show, and {where}"
                yield from (ReplayedRow(left, "unknown", why) for left in self._left)
                self._left = []
                return
            if finished:
                break
            time.sleep(POLL_SECONDS)
        for left in self._left:
            yield ReplayedRow(left, "refused", f"the run's log says why: {where}")
        self._left = []

    def _is_lost(self, run_id: str) -> bool:
        """Return whether the process of the run ended during the first batch that is left, by the driver log."""
        attempts = batches.attempts_of_batch(self._connection, self._pipeline_id, self._left[0]) if self._left else []
        return any(attempt.run_id == run_id and attempt.state is AttemptState.LOST for attempt in attempts)

    def _ended(self, run_id: str) -> Iterator[ReplayedRow]:
        """Yield, and cross off, the batches whose attempt in this run has ended, by the driver log."""
        for batch_time in list(self._left):
            for attempt in batches.attempts_of_batch(self._connection, self._pipeline_id, batch_time):
                if attempt.state is AttemptState.LOST and self._may_launch_again:
                    continue
                if attempt.run_id == run_id and attempt.state is not AttemptState.RUNNING:
                    self._left.remove(batch_time)
                    done = attempt.state is AttemptState.SUCCEEDED
                    detail = attempt.error or f"attempt {attempt.attempt}"
                    yield ReplayedRow(batch_time, "replayed" if done else "failed", detail)
                    break

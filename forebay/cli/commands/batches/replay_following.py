"""Launch a replay in Dagster and follow it, for `forebay batches replay`.

Dagster is asked for the run, and the driver log for what became of each batch. So an answer of Dagster's that is lost,
or a webserver that is busy or gone, does not hide what was done. It launches another run of one request only if Dagster
could not start the one before, or, once, if the driver log says that its process has ended, as with the code server.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestration.dagster_instance.dagster_client import (
    CodeNotLoadedError,
    DagsterClient,
    DagsterError,
    DagsterUnansweredError,
    LaunchFailedError,
)
from orchestration.replays.replay_choice import ReplayError
from orchestration.replays.replay_run import POLL_SECONDS, REQUEST_TAG, ReplayLaunch, launch_replay
from tracker_store.batches import batches
from tracker_store.schema.states import AttemptState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    import sqlalchemy as sa

    from forebay.cli.terminal.console import Console
    from orchestration.replays.replay_run import ReplayRequest

# A person waits for the answer. A busy machine takes long.
ANSWER_SECONDS = 60.0
# How long to look for a run whose launch got no answer: Dagster may still be making it.
SEARCH_SECONDS = 60.0
# How long to wait for a code server that loads the pipelines, as after `forebay apply`: about as long as a start takes.
CODE_SECONDS = 60.0
# How long to follow a run by the driver log alone while Dagster does not say how it is.
SILENT_SECONDS = 120.0
_FINISHED = ("SUCCESS", "FAILURE", "CANCELED")


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
        try:
            run_id = self._launch()
        except ReplayError as error:
            message = f"{error} --local replays it here"
            raise ReplayError(message) from error
        except CodeNotLoadedError as error:
            message = f"{error}; --local replays in this process"
            raise ReplayError(message) from error
        except DagsterError as error:
            message = f"Dagster at {self._url}: {type(error).__doc__} ({error}); --local replays in this process"
            raise ReplayError(message) from error
        self._console.print(f"Run {run_id}: {self._url}/runs/{run_id}", markup=False)
        yield from self._follow(run_id)

    def _launch(self) -> str:
        client = DagsterClient(self._url, token=self._token, timeout_seconds=ANSWER_SECONDS)
        mark = {REQUEST_TAG: str(uuid.uuid4())}
        try:
            launch = ReplayLaunch(client, self._request, url=self._url, tags=mark, code_seconds=CODE_SECONDS)
            return launch_replay(launch, self._report_wait)
        except DagsterUnansweredError as error:
            return self._find(mark, error)

    def _report_wait(self) -> None:
        waits = f"waiting for it, for at most {CODE_SECONDS:g} s …"
        self._console.print(f"Dagster's code server has not loaded {self._request.pipeline}: {waits}", markup=False)

    def _find(self, mark: Mapping[str, str], error: DagsterUnansweredError) -> str:
        """Return the run that was launched without an answer. Raises ReplayError if there is none."""
        self._console.print(f"Dagster has not answered: {error}. Looking for the run …", markup=False)
        client = DagsterClient(self._url, token=self._token)
        # If the launch ended with an error, Dagster had finished with it: a run that is not there now will not come.
        deadline = time.monotonic() + (0.0 if isinstance(error, LaunchFailedError) else SEARCH_SECONDS)
        while True:
            said = "it has no run of this replay"
            try:
                run_id = client.run_with(mark)
            except DagsterError as unanswered:
                said = f"it does not answer: {unanswered}"
            else:
                if run_id is not None:
                    return run_id
            if time.monotonic() >= deadline:
                break
            time.sleep(POLL_SECONDS)
        tag = next(f"{name}={value}" for name, value in mark.items())
        message = (
            f"Dagster at {self._url} did not confirm the run ({error}), and {said}. If one appears later, it has the "
            f"tag {tag}. You may ask again: a second replay of a batch that is being replayed is refused."
        )
        raise ReplayError(message)

    def _follow(self, run_id: str) -> Iterator[ReplayedRow]:
        client = DagsterClient(self._url, token=self._token)
        answered = time.monotonic()
        where = f"{self._url}/runs/{run_id}"
        while self._left:
            finished, silence = False, ""
            try:
                finished = client.run_status(run_id) in _FINISHED
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

"""Launch a run of the replay job in Dagster, for `forebay batches replay` and `forebay state`.

An answer of Dagster's that is lost hides no run: it is looked for by its tag. What the run does is followed elsewhere.
"""

from __future__ import annotations

import time
import uuid
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

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay.cli.terminal.console import Console
    from orchestration.replays.replay_run import ReplayRequest

# A person waits for the answer. A busy machine takes long.
ANSWER_SECONDS = 60.0
# How long to look for a run whose launch got no answer: Dagster may still be making it.
SEARCH_SECONDS = 60.0
# How long to wait for a code server that loads the pipelines, as after `forebay apply`: about as long as a start takes.
CODE_SECONDS = 60.0


class ReplayLauncher:
    """Launch runs; `url` is the webserver's, and `token` what it demands."""

    def __init__(self, console: Console, url: str, token: str | None) -> None:
        self._console = console
        self._url = url
        self._token = token

    def launch(self, request: ReplayRequest) -> str:
        """Launch a run, print where it is, and return its id. Raises ReplayError if there is none."""
        try:
            run_id = self._launch(request)
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
        return run_id

    def _launch(self, request: ReplayRequest) -> str:
        client = DagsterClient(self._url, token=self._token, timeout_seconds=ANSWER_SECONDS)
        mark = {REQUEST_TAG: str(uuid.uuid4())}
        try:
            launch = ReplayLaunch(client, request, url=self._url, tags=mark, code_seconds=CODE_SECONDS)
            return launch_replay(launch, lambda: self._report_wait(request.pipeline))
        except DagsterUnansweredError as error:
            return self._find(mark, error)

    def _report_wait(self, pipeline: str) -> None:
        waits = f"waiting for it, for at most {CODE_SECONDS:g} s …"
        self._console.print(f"Dagster's code server has not loaded {pipeline}: {waits}", markup=False)

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

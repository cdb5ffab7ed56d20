"""End replays in Dagster whose process has ended without a word, and request those again that came over HTTP.

A replay's process is a child of the code server: if both are killed at once, Dagster shows the run as started for ever.
The driver log says that its attempt and its process ended. `forebay batches replay` follows its run, and launches it
again itself; nothing follows one that was requested over HTTP. It is requested again once.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import dagster as dg

from orchestration.batches.batch_schedule import FIRST_TAG, LEFT_FOR, is_begun_replay, replay_job_name
from orchestration.dagster_defs.assets.replay_tags import LAST_TAG
from orchestration.replays.replay_run import AGAIN_TAG, FOLLOWS_TAG, REPLAY_TAG, REQUEST_TAG
from tracker_store.batches.batches import end_of_run
from tracker_store.schema.states import AttemptState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import sqlalchemy as sa


def lost_replays(
    connection: sa.Connection,
    pipeline_id: int,
    pipeline: str,
    begun: Sequence[dg.DagsterRun],
    instance: dg.DagsterInstance,
    end: Callable[[str, str], None],
) -> list[dg.RunRequest]:
    """Return requests for lost replays that are to run again.

    `begun`: the pipeline's runs in Dagster that have begun and not ended. `end` ends one there, with a reason. While no
    replay has begun, asks neither Dagster nor the driver log.
    """
    requests: list[dg.RunRequest] = []
    job = replay_job_name(pipeline)
    for run in begun:
        if not is_begun_replay(run.job_name, run.tags):
            continue
        first, last = (datetime.fromisoformat(run.tags[tag]) for tag in (FIRST_TAG, LAST_TAG))
        ended = end_of_run(
            connection, pipeline_id=pipeline_id, run_id=run.run_id, first=first, last=last, since=LEFT_FOR
        )
        if ended is None:
            continue
        state, error = ended
        follows = {FOLLOWS_TAG: run.run_id}
        is_wanted = state is AttemptState.LOST and AGAIN_TAG in run.tags and run.status is dg.DagsterRunStatus.STARTED
        if is_wanted and not instance.get_runs(filters=dg.RunsFilter(tags=follows), limit=1):
            # Ended at a later look, when the other one is there: this process may end before it is made.
            tags = {name: value for name, value in run.tags.items() if name in (REPLAY_TAG, REQUEST_TAG)} | follows
            key = f"{AGAIN_TAG} {run.run_id}"
            requests.append(dg.RunRequest(run_key=key, job_name=job, run_config=run.run_config, tags=tags))
            continue
        end(
            run.run_id,
            f"its process is gone, and its last attempt at a batch {state}" + (f" ({error})" if error else ""),
        )
    return requests

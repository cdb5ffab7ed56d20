"""Run an output with a state again from one of its batches on, within a run in Dagster.

The driver log has how far it is (``orchestration.replays.state_forward``); Dagster shows the run, its log and events.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from orchestration.batches.batch_schedule import FIRST_TAG
from orchestration.dagster_defs.assets.committed_outputs import CommittedOutputs
from orchestration.dagster_defs.assets.replay_tags import COUNT_TAG, KIND_TAG, LAST_TAG, REPLAY_KIND
from orchestration.dagster_defs.shared.run_errors import tag_cause
from orchestration.dagster_defs.shared.spark_resource import SparkResource, batch_session
from orchestration.declarations.settings import Settings
from orchestration.replays.forward_choice import begin_or_find, output_to_replay
from orchestration.replays.replay_choice import ReplayError
from orchestration.replays.replay_run import STATE_REPLAY_TAG
from orchestration.replays.state_forward import replay_forward
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.state_replays import batches_left, next_batch, resume_state_replay, state_replay
from tracker_store.connection.engine import connect_once
from tracker_store.schema.states import StateReplayState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import sqlalchemy as sa

    from orchestration.declarations.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class ForwardChoice:
    """Name the replay forward to go on with, or the batch and the output that a new one begins with."""

    from_time: datetime | None
    outputs: Sequence[str] = ()
    state_replay: int | None = None


@dataclass(frozen=True, slots=True)
class _Found:
    replay_id: int
    output: str
    first: datetime
    last: datetime
    left: int


def forward_in_dagster(
    context: dg.OpExecutionContext, pipeline: Pipeline, resource: SparkResource, choice: ForwardChoice
) -> None:
    """Begin a replay forward, or go on with one, and run what is left of it; log a line per batch, and tag the run.

    If the run is cancelled, the replay is stopped. Raises dg.Failure if a batch failed, or the replay was stopped.
    """
    settings = Settings()
    url, name = settings.require_database_url(), f"forebay replay {pipeline.name}"
    with connect_once(url, application_name=name) as connection:
        found = _found(connection, pipeline, choice)
    context.instance.add_run_tags(
        context.run.run_id,
        {
            KIND_TAG: REPLAY_KIND,
            STATE_REPLAY_TAG: str(found.replay_id),
            FIRST_TAG: found.first.isoformat(),
            LAST_TAG: found.last.isoformat(),
            COUNT_TAG: str(found.left),
        },
    )
    where = f"replay {found.replay_id} of the state of output {found.output}"
    context.log.info(f"{where}: {found.left} batch(es) to run, from {found.first.isoformat()} on")
    committed = CommittedOutputs(context, pipeline, lambda _: {"kind": dg.MetadataValue.text(REPLAY_KIND)})
    replays = replay_forward(
        pipeline,
        found.replay_id,
        run_id=context.run.run_id,
        settings=settings,
        session=lambda: batch_session(resource, settings, pipeline),
        on_committed=committed.report,
    )
    cause = ""
    with closing(replays):
        for number, replayed in enumerate(replays, start=1):
            batch = f"batch {replayed.batch_time.isoformat()}"
            if replayed.error:
                cause = f"{batch} was {'refused' if replayed.refused else 'not replayed'}: {replayed.error}"
            else:
                rows = ", ".join(f"{result.rows} rows" for result in replayed.replaced)
                context.log.info(f"{number} of {found.left}: {batch} replayed in {replayed.seconds:.1f} s: {rows}")
    committed.finish()
    with connect_once(url, application_name=name) as connection:
        now = state_replay(connection, found.replay_id)
    if cause or now.is_unfinished:
        cause = f"{where} is {now.state}" + (f": {cause}" if cause else "")
        tag_cause(context.instance, context.run.run_id, cause)
        raise dg.Failure(cause, allow_retries=False)
    context.log.info(f"{where} is {now.state}")


def _found(connection: sa.Connection, pipeline: Pipeline, choice: ForwardChoice) -> _Found:
    """Return the replay that is meant, which then is not STOPPED. Raises ReplayError and DriverLogError."""
    row = get_pipeline(connection, pipeline.name)
    if (number := choice.state_replay) is None:
        if choice.from_time is None:
            raise ReplayError("a replay forward needs from_time, the first batch to run again")
        output = output_to_replay(row.name, row.declaration, choice.outputs)
        number = begin_or_find(connection, row.name, row.pipeline_id, output, choice.from_time)
    found = state_replay(connection, number)
    if found.pipeline_id != row.pipeline_id:
        raise ReplayError(f"replay {number} is of another pipeline than {pipeline.name}")
    if found.state is StateReplayState.STOPPED:
        resume_state_replay(connection, number)
    first = next_batch(connection, number) or found.from_time
    return _Found(number, found.output, first, found.to_time, batches_left(connection, number))

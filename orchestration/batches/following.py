"""Updates `output_commits` from what targets have committed, if an attempt died between its two commits.

A transactional target's own commit decides. If a batch is tried again, its next attempt writes the row
(``output_run``). That leaves failed replays, whose batch stays COMPLETED under the row of an older attempt, and
batches whose last attempt failed. It only reads from the target.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

import structlog

from orchestration.batches.publishing import publish
from orchestration.declarations.sink import OutputAttempt
from tracker_store.batches import batches, outputs
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import StateMovedError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import sqlalchemy as sa

    from orchestration.declarations.pipeline import Output, Pipeline

# How long after an attempt's end to ask its target: a process that was declared dead may still commit.
FOLLOWED_FOR = timedelta(hours=1)
# The same once a day: the target, or Dagster, may have been unavailable for all of that hour.
FOLLOWED_LATER_FOR = timedelta(days=7)
MOST_FOLLOWED = 1000
# How long one pass may ask: targets that don't answer must not hold up the others. The next pass asks the rest.
MOST_SECONDS = 60.0

log = structlog.get_logger(__name__)


def followed_outputs(pipeline: Pipeline) -> list[Output]:
    """Return the outputs whose target has its own commits."""
    return [output for output in pipeline.outputs.values() if output.sink.commits]


def to_follow(
    connection: sa.Connection,
    pipeline_id: int,
    outputs_: Sequence[Output],
    *,
    within: timedelta = FOLLOWED_FOR,
    limit: int = MOST_FOLLOWED,
) -> list[tuple[str, datetime]]:
    """Return outputs of batches whose target may have a commit without a row, newest attempt first. Takes no locks."""
    names = [output.name for output in outputs_]
    return outputs.commits_to_follow(connection, pipeline_id, names, within=within, limit=limit)


def follow_targets(
    engine: sa.Engine, pipeline: Pipeline, pipeline_id: int, *, most_seconds: float = MOST_SECONDS
) -> int:
    """Ask the targets, write the missing rows and return how many. Logs what fails and goes on."""
    by_name = {output.name: output for output in followed_outputs(pipeline)}
    if not by_name:
        return 0
    give_up_at = time.monotonic() + most_seconds
    with connect(engine) as connection:
        left = to_follow(connection, pipeline_id, list(by_name.values()), within=FOLLOWED_LATER_FOR)
    followed = 0
    for name, batch_time in left:
        if time.monotonic() > give_up_at:
            log.warning("asked targets for long enough, the rest comes later", pipeline=pipeline.name)
            break
        about = {"pipeline": pipeline.name, "output": name, "batch_time": batch_time.isoformat()}
        try:
            followed += _follow(engine, by_name[name], pipeline_id, batch_time)
        except StateMovedError as refusal:
            log.warning("the target has a result that the output's state lacks", error=str(refusal), **about)
        except Exception as error:  # noqa: BLE001  a target's client may raise anything
            log.warning("could not adopt an output's commit from its target", error=str(error), **about)
    return followed


def follow_output(engine: sa.Engine, output: Output, pipeline_id: int, *, before: datetime | None = None) -> int:
    """Do the same for one output, its oldest batch first, of those before a time; raises what a target raises.

    An output with a state needs it at once: what goes on without a batch leaves that out for ever. A result that the
    state can't have is left to `follow_targets`, which logs it.
    """
    if not output.sink.commits:
        return 0
    with connect(engine) as connection:
        left = to_follow(connection, pipeline_id, [output], within=FOLLOWED_LATER_FOR)
    times = sorted(batch_time for _, batch_time in left if before is None or batch_time < before)
    followed = 0
    for batch_time in times:
        with suppress(StateMovedError):
            followed += _follow(engine, output, pipeline_id, batch_time)
    return followed


def _follow(engine: sa.Engine, output: Output, pipeline_id: int, batch_time: datetime) -> bool:
    """Ask the target about one batch; return whether the row was written. Raises StateMovedError."""
    name, pipeline = output.name, output.pipeline.name
    with connect(engine) as connection:
        runs = batches.runs_of_batch(connection, pipeline_id, batch_time)
    # Attempt 0: this only asks.
    found = output.sink.committed(OutputAttempt(pipeline, pipeline_id, name, batch_time, 0, "", runs))
    if found is None:
        return False
    with connect(engine) as connection:
        wrote = outputs.follow_commit(
            connection,
            pipeline_id=pipeline_id,
            batch_time=batch_time,
            attempt=found.attempt,
            output=name,
            location=found.written.location,
            rows=found.written.rows,
        )
    if wrote:
        publish(engine, pipeline_id, output, found.written.location, batch_time=batch_time)
        about = {"pipeline": pipeline, "output": name, "batch_time": batch_time.isoformat()}
        log.warning("the target has what an attempt committed before it failed", attempt=found.attempt, **about)
    return wrote

"""Check whether a pipeline keeps up: checks on its asset `batches`, from the newest batch and the waiting ones.

They are cheap enough to run every half minute, unlike the proofs in ``checks``. The observation sensor reports them
when they change, and the job `PIPELINE_checks` runs them together with all others.
"""

# No `from __future__ import annotations`: Dagster reads what a check returns off the annotation.
from collections.abc import Iterator

import dagster as dg
import sqlalchemy as sa

from orchestration.dagster_defs.shared.batch_plots import MILLISECONDS, batches_key
from orchestration.declarations.pipeline import Pipeline
from orchestration.declarations.settings import Settings
from tracker_store.batches.batch_outputs import outputs_of_batch, partial_commit, quarantined_batches
from tracker_store.batches.batches import get_batch
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.engine import connect_once
from tracker_store.reports.batch_statistics import newest_completed_batch, pipeline_queue

TOTAL_DELAY = "total_delay"
QUEUE_DEPTH = "queue_depth"
NONE_QUARANTINED = "none_quarantined"

# Limits of the total delay in batch intervals, and of the number of waiting batches. A batch with a total delay above 1
# interval delays the next; above 10, readers no longer see live data.
LATE = 1.0
TOO_LATE = 10.0
# How many of the newest quarantined batches are looked at for outputs that are committed.
MOST_QUARANTINED = 20

DESCRIPTIONS = {
    TOTAL_DELAY: (
        f"The newest batch was complete within {LATE:g} interval of its time (a warning beyond), or within "
        f"{TOO_LATE:g} (an error beyond)."
    ),
    QUEUE_DEPTH: f"At most {LATE:g} batch waits behind the one that runs (an error beyond {TOO_LATE:g}).",
    NONE_QUARANTINED: "No batch was given up and waits for a person.",
}


def check_batches(connection: sa.Connection, pipeline: Pipeline) -> Iterator[dg.AssetCheckResult]:
    """Run the three checks of an applied pipeline. Raises NotAppliedError."""
    row = get_pipeline(connection, pipeline.name)
    pipeline_id = row.pipeline_id
    key = batches_key(pipeline)
    newest = newest_completed_batch(connection, pipeline_id)
    delay = 0.0 if newest is None or newest.total_delay is None else newest.total_delay
    intervals = delay / pipeline.interval.total_seconds()
    yield dg.AssetCheckResult(
        passed=intervals <= LATE,
        asset_key=key,
        check_name=TOTAL_DELAY,
        severity=_severity(intervals),
        description=None if newest is not None else "no batch is complete yet",
        metadata={"total_delay_ms": delay * MILLISECONDS, "intervals": intervals},
    )
    queue = pipeline_queue(connection, pipeline_id)
    # Its reason is shown as an example.
    given_up = (
        None if queue.newest_quarantined is None else get_batch(connection, pipeline_id, queue.newest_quarantined)
    )
    partial = [
        time
        for time in quarantined_batches(connection, pipeline_id, newest=MOST_QUARANTINED)
        if partial_commit(outputs_of_batch(connection, row, time))
    ]
    yield dg.AssetCheckResult(
        passed=queue.depth <= LATE,
        asset_key=key,
        check_name=QUEUE_DEPTH,
        severity=_severity(queue.depth),
        metadata={"waiting": queue.waiting, "running": queue.running, "due": queue.due},
    )
    yield dg.AssetCheckResult(
        passed=queue.quarantined == 0,
        asset_key=key,
        check_name=NONE_QUARANTINED,
        severity=dg.AssetCheckSeverity.ERROR,
        description=(
            None
            if queue.quarantined == 0
            else f"{queue.quarantined} batch(es) were given up"
            + (f", {len(partial)} of them partially committed" if partial else "")
            + f"; see: forebay batches --pipeline {pipeline.name}"
            + ("" if given_up is None else f"; {given_up.batch_time.isoformat()}: {given_up.reason}")
        ),
        metadata={"quarantined": queue.quarantined, "partially_committed": len(partial)},
    )


def _severity(intervals: float) -> dg.AssetCheckSeverity:
    return dg.AssetCheckSeverity.ERROR if intervals > TOO_LATE else dg.AssetCheckSeverity.WARN


def batch_checks(pipeline: Pipeline) -> dg.AssetChecksDefinition:
    """Return the three checks on `batches`, which run in one step."""

    @dg.multi_asset_check(
        name=f"{pipeline.name}__batch_checks",
        specs=[
            dg.AssetCheckSpec(name, asset=batches_key(pipeline), description=description)
            for name, description in DESCRIPTIONS.items()
        ],
        description=f"Checks whether {pipeline.name} keeps up.",
    )
    def look() -> Iterator[dg.AssetCheckResult]:
        with connect_once(
            Settings().require_database_url(), application_name=f"forebay checks {pipeline.name}"
        ) as connection:
            yield from check_batches(connection, pipeline)

    return look

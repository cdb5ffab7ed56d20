"""Report each quarantined batch to Dagster as an observation of `PIPELINE/batches`, with the state of its outputs.

A batch may be quarantined by its run, by the sensor or by the tracker, so the observation sensor reports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from orchestration.dagster_defs.shared.batch_plots import batches_key
from tracker_store.batches.batch_outputs import OutputState, outputs_of_batch, partial_commit, quarantined_batches
from tracker_store.batches.batches import get_batch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import sqlalchemy as sa

    from orchestration.declarations.pipeline import Pipeline
    from tracker_store.batches.batch_outputs import BatchOutput
    from tracker_store.batches.pipelines import PipelineRow

# Most batches that one tick reports: the next tick reports the rest.
MOST_BATCHES = 20


def observe_quarantined(
    connection: sa.Connection, pipeline: Pipeline, row: PipelineRow, reported: Sequence[datetime]
) -> tuple[list[dg.AssetObservation], list[datetime]]:
    """Return the observations of quarantined batches that are not `reported`, oldest first, and all that now are.

    A time stays reported for as long as its batch is quarantined.
    """
    times = quarantined_batches(connection, row.pipeline_id)
    before = set(reported)
    unreported = [time for time in reversed(times) if time not in before][:MOST_BATCHES]
    found = []
    for time in unreported:
        batch = get_batch(connection, row.pipeline_id, time)
        if batch is None:
            continue
        outputs = outputs_of_batch(connection, row, time)
        partial = partial_commit(outputs)
        found.append(
            dg.AssetObservation(
                batches_key(pipeline),
                description=f"batch {time.isoformat()} is {batch.state}" + (f", {partial}" if partial else ""),
                metadata={
                    "batch_time": dg.MetadataValue.text(time.isoformat()),
                    "state": dg.MetadataValue.text(batch.state.value),
                    "partially_committed": dg.MetadataValue.bool(bool(partial)),
                    "reason": dg.MetadataValue.text(batch.reason),
                    **{f"output {output.output}": dg.MetadataValue.text(_state(output)) for output in outputs},
                },
            )
        )
    return found, sorted(before.intersection(times).union(unreported))


def _state(output: BatchOutput) -> str:
    if output.state is OutputState.COMMITTED or not output.error:
        return output.state.value
    return f"{output.state.value}: {output.error}"

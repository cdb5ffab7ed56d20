"""One output of one attempt at a batch: taken over, or computed, written and committed.

The order for every sink is: what the target has committed of this batch already, else compute and write; then the row
in `output_commits`. Publishing comes after it, and is the batch run's, which repeats it also for outputs that an
earlier attempt had committed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

import structlog

from orchestration.patience import patiently
from orchestration.spark.sinks.sink import SinkError
from tracker_store import outputs

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa
    from pyspark.sql import DataFrame

    from orchestration.pipeline import Output
    from orchestration.spark.sinks.sink import OutputAttempt, Written

log = structlog.get_logger(__name__)


def run_output(
    engine: sa.Engine, output: Output, attempt: OutputAttempt, compute: Callable[[], DataFrame], *, replaces: bool
) -> Written:
    """Commit the output's result and say where it lies.

    `replaces`: what an earlier attempt has committed in the target is not taken over, as in a replay.

    Raises:
        SinkError: the sink can't keep the result.
        AttemptSupersededError: the batch has a newer attempt; the driver log changed nothing.
    """
    found = output.sink.committed(attempt)
    if found is not None and (found.attempt == attempt.attempt or not replaces):
        log.info("committed in the target already", output=output.name, attempt=found.attempt)
        written = found.written
    else:
        written = output.sink.write(_checked(compute(), attempt), attempt)
    # An outage now is waited for: what was computed is there, and the commit may be repeated.
    commit = partial(
        outputs.commit_output,
        pipeline_id=attempt.pipeline_id,
        batch_time=attempt.batch_time,
        attempt=attempt.attempt,
        output=output.name,
        location=written.location,
        rows=written.rows,
        to_publish=output.sink.publishes,
    )
    patiently(engine, commit, f"commit of {attempt.name}")
    return written


def _checked(result: object, attempt: OutputAttempt) -> DataFrame:
    # By what sinks call, for Spark's classic and connected frames are of different classes.
    if not hasattr(result, "mapInArrow"):
        got = "nothing (None)" if result is None else f"a {type(result).__module__}.{type(result).__qualname__}"
        raise SinkError(
            f"{attempt.name} returned {got}, and its sink needs a Spark DataFrame: end the function with "
            "`return frame` (spark.createDataFrame(...) makes one of a pandas frame; for an output with effects of "
            "its own take ForeachBatchSink(fn), which is given the frame)"
        )
    frame = cast("DataFrame", result)
    if frame.isStreaming is True:
        raise SinkError(
            f"{attempt.name} returned a streaming DataFrame: a batch's result is computed and done; read its inputs, "
            "which are no streams, or run the query beside the pipeline"
        )
    return frame

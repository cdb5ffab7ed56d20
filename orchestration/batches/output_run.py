"""Commits one output of an attempt at a batch: adopts what the target has committed, or computes and writes it.

The order for every sink: adopt what the target has committed of this batch, or else compute and write; then write the
row in `output_commits`. Publishing comes next. The batch run does it, also for outputs that an earlier attempt had
committed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from orchestration.declarations.sink import Column, checked_result
from orchestration.spark.statement_retry import retry_statement
from tracker_store.batches import outputs

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa
    from pyspark.sql import DataFrame

    from orchestration.batches.stateful.state_run import StateRun
    from orchestration.declarations.pipeline import Output
    from orchestration.declarations.sink import OutputAttempt, Written

log = structlog.get_logger(__name__)


def run_output(
    engine: sa.Engine,
    output: Output,
    attempt: OutputAttempt,
    compute: Callable[[], DataFrame],
    *,
    replaces: bool,
    state: StateRun | None = None,
) -> Written:
    """Commit the output's result, with the version of its `state`, and return where it is.

    `replaces`: don't adopt what an earlier attempt has committed in the target (a replay).

    Raises:
        SinkError: the sink can't keep the result.
        AttemptSupersededError: the batch has a newer attempt; the driver log changed nothing.
    """
    found = output.sink.committed(attempt)
    version = None if state is None else state.version_attempt
    if (
        found is not None
        and (found.attempt == attempt.attempt or not replaces)
        and (state is None or state.adopts(found.attempt))
    ):
        log.info("committed in the target already", output=output.name, attempt=found.attempt)
        written = found.written
        # An earlier launch of this attempt made it, or an earlier attempt, perhaps with other code.
        code_version = None
        version = None if state is None else found.attempt
    else:
        code_version = output.pipeline.code_version
        result = checked_result(compute(), attempt.name)
        if state is not None:
            attempt = replace(attempt, replaced=state.replaced, overrides_to=state.overrides_to)
        written = output.sink.write(result, attempt)
        if output.sink.address() is not None:
            written = replace(written, columns=_columns(result))
        if written.refused:
            log.warning("rows were refused by the target, and put aside", output=output.name, rows=written.refused)

    def commit(connection: sa.Connection) -> None:
        outputs.commit_output(
            connection,
            pipeline_id=attempt.pipeline_id,
            batch_time=attempt.batch_time,
            attempt=attempt.attempt,
            output=output.name,
            location=written.location,
            rows=written.rows,
            to_publish=output.sink.publishes,
            code_version=code_version,
            state_attempt=version,
        )

    # Wait through an outage: the result is computed, and the commit is idempotent.
    retry_statement(engine, commit, f"commit of {attempt.name}")
    return written


def _columns(result: DataFrame) -> tuple[Column, ...]:
    return tuple(Column(field.name, field.dataType.simpleString(), field.nullable) for field in result.schema)

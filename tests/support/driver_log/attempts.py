"""Lead attempts at batches to where a test needs them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tracker_store.batches import batches, outputs
from tracker_store.receivers.processes import register_process
from tracker_store.schema.states import ProcessKind

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import sqlalchemy as sa

    from tracker_store.schema.states import BatchState


def claim_batch(
    connection: sa.Connection,
    pipeline_id: int,
    time: datetime,
    attempt: int = 1,
    *,
    run_id: str,
    process_id: int | None = None,
) -> None:
    """Claim an attempt, as its run does; without a process, a new one is registered for it."""
    if process_id is None:
        process_id = register_process(connection, kind=ProcessKind.BATCH_RUN, name="run", host="h", pid=1)
    batches.claim_attempt(
        connection,
        pipeline_id=pipeline_id,
        batch_time=time,
        attempt=attempt,
        run_id=run_id,
        process_id=process_id,
    )


def fail_batch(
    connection: sa.Connection,
    pipeline_id: int,
    time: datetime,
    attempt: int = 1,
    *,
    run_id: str,
    error: str = "boom",
    max_attempts: int = 3,
    pauses: Sequence[timedelta] | None = (timedelta(0),),
    **more: Any,  # noqa: ANN401  arguments of `fail_attempt`
) -> BatchState | None:
    """Fail an attempt, as its run does; the next one is due at once."""
    return batches.fail_attempt(
        connection,
        pipeline_id=pipeline_id,
        batch_time=time,
        attempt=attempt,
        run_id=run_id,
        error=error,
        max_attempts=max_attempts,
        pauses=pauses,
        **more,
    )


def commit_batch(
    connection: sa.Connection,
    pipeline_id: int,
    time: datetime,
    output: str,
    attempt: int = 1,
    *,
    location: str = "somewhere",
    rows: int = 1,
    code_version: str | None = None,
    state: bool = False,
) -> None:
    """Commit the result of an output, as its run does; with the version of its `state` that the attempt noted."""
    outputs.commit_output(
        connection,
        pipeline_id=pipeline_id,
        batch_time=time,
        attempt=attempt,
        output=output,
        location=location,
        rows=rows,
        code_version=code_version,
        state=state,
    )

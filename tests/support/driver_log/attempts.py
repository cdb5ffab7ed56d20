"""Lead attempts at batches to where a test needs them."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tracker_store.batches import batches, outputs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import sqlalchemy as sa

    from tracker_store.schema.states import BatchState


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
) -> None:
    """Commit the result of an output, as its run does."""
    outputs.commit_output(
        connection,
        pipeline_id=pipeline_id,
        batch_time=time,
        attempt=attempt,
        output=output,
        location=location,
        rows=rows,
        code_version=code_version,
    )

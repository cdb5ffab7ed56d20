"""Run finished batches again, one after the other, oldest first. ``replay_choice`` says which.

Knows nothing of Dagster: the replay job, the output assets and the command line all use it. The driver log decides
what a replay may do to a batch (``functions/batches/claim_replay.sql``).
"""

from __future__ import annotations

import time as monotonic
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import structlog

from orchestration.batches.batch_run import replay_batch
from orchestration.replays.replay_choice import check_output_names
from tracker_store.connection.errors import BatchHeldError, BlocksNotRetainedError, StatefulReplayError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from pyspark.sql import SparkSession

    from orchestration.batches.attempt_outputs import OutputResult
    from orchestration.declarations.pipeline import Pipeline
    from orchestration.declarations.settings import Settings

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ReplayedBatch:
    """Report on one batch of a replay; `refused`: it did not begin, because it runs or its blocks are gone."""

    batch_time: datetime
    results: Sequence[OutputResult]
    seconds: float
    error: str = ""
    refused: bool = False

    @property
    def replaced(self) -> Sequence[OutputResult]:
        """Return the results that this replay computed: with `failed_outputs_only`, the others had one before."""
        return [result for result in self.results if result.seconds is not None]


def unreported(_: datetime, __: OutputResult) -> None:
    """Report no result."""


def checked_outputs(pipeline: Pipeline, outputs: Sequence[str]) -> Sequence[str]:
    """Return `outputs`. Raises ReplayError if the pipeline lacks one of them."""
    check_output_names(pipeline.name, declared=pipeline.outputs, outputs=outputs)
    return outputs


def replay_batches(
    pipeline: Pipeline,
    times: Sequence[datetime],
    *,
    outputs: Sequence[str] = (),
    failed_outputs_only: bool = False,
    run_id: str,
    settings: Settings,
    session: Callable[[], SparkSession],
    on_committed: Callable[[datetime, OutputResult], None] = unreported,
) -> Iterator[ReplayedBatch]:
    """Replay each of `times`, whether or not others fail or are refused. Raises ReplayError for unknown outputs.

    `failed_outputs_only`: replace nothing, run only outputs without a result. `on_committed` is called with each result
    as soon as readers see it.
    """
    checked_outputs(pipeline, outputs)
    for batch_time in times:
        started = monotonic.monotonic()
        results: Sequence[OutputResult] = ()
        error, refused = "", False
        try:
            results = replay_batch(
                pipeline,
                batch_time=batch_time,
                outputs=outputs,
                failed_outputs_only=failed_outputs_only,
                run_id=run_id,
                settings=settings,
                session=session,
                on_committed=partial(on_committed, batch_time),
            )
        except (BatchHeldError, BlocksNotRetainedError, StatefulReplayError) as refusal:
            error, refused = str(refusal), True
        except Exception as failure:
            log.exception("replay failed", pipeline=pipeline.name, batch_time=batch_time.isoformat())
            error = f"{type(failure).__name__}: {failure}"
        yield ReplayedBatch(batch_time, results, monotonic.monotonic() - started, error, refused)

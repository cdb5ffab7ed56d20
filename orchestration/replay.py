"""Replays finished batches: selects them, and runs them again one after the other, oldest first.

Knows nothing of Dagster: the replay job, the output assets and the command line all use it. The driver log decides
what a replay may do to a batch (``functions/claim_replay.sql``).
"""

from __future__ import annotations

import time as monotonic
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import structlog

from orchestration.batch_run import replay_batch
from tracker_store import batches
from tracker_store.batch_outputs import quarantined_batches
from tracker_store.errors import BatchHeldError, BlocksNotRetainedError
from tracker_store.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import sqlalchemy as sa
    from pyspark.sql import SparkSession

    from orchestration.attempt_outputs import OutputResult
    from orchestration.pipeline import Pipeline
    from orchestration.settings import Settings

REPLAYABLE = (BatchState.COMPLETED, BatchState.QUARANTINED)
# How many batches one command, or one run in Dagster, replays at most: replay a longer time in parts.
MOST_BATCHES = 10_000

log = structlog.get_logger(__name__)


class ReplayError(Exception):
    """A replay can't be done as it was asked for; the message says what to ask for instead."""


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


def _unreported(_: datetime, __: OutputResult) -> None:
    """Report a result to nobody."""


def parsed_time(text: str) -> datetime | None:
    """Parse a batch time, UTC unless it says otherwise; return None for no text. Raises ReplayError."""
    if not text.strip():
        return None
    try:
        time = datetime.fromisoformat(text.strip())
    except ValueError as error:
        message = f"{text!r} is no time: write it as 2026-01-31T12:00:00Z"
        raise ReplayError(message) from error
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def batches_to_replay(
    connection: sa.Connection,
    pipeline_id: int,
    *,
    from_time: datetime | None,
    to_time: datetime | None,
    failed_outputs_only: bool = False,
) -> list[datetime]:
    """Return the batches, oldest first: finished and not empty, with `from_time` <= batch time <= `to_time`.

    Without `from_time`, return the newest completed one; without `to_time`, the one at `from_time`. Skip batches that
    are not finished or were empty; with `failed_outputs_only`, all that are not QUARANTINED. Takes no locks. Raises
    ReplayError if there is none.
    """
    if from_time is None:
        if to_time is not None:
            message = "a replay has a to_time and no from_time: give both, or neither for the newest completed batch"
            raise ReplayError(message)
        if failed_outputs_only:
            quarantined = quarantined_batches(connection, pipeline_id, newest=1)
            if not quarantined:
                message = "no batch is quarantined: there are no failed outputs to run"
                raise ReplayError(message)
            return quarantined
        found = [
            row
            for row in batches.list_batches(connection, pipeline_id, states=[BatchState.COMPLETED], limit=1000)
            if row.attempt
        ][:1]
        if not found:
            message = "no batch is completed yet (of those that had records): there is nothing to replay"
            raise ReplayError(message)
        return [found[0].batch_time]
    last = to_time or from_time
    if last < from_time:
        message = f"the replay's from_time {from_time.isoformat()} is after its to_time {last.isoformat()}: swap them"
        raise ReplayError(message)
    states = (BatchState.QUARANTINED,) if failed_outputs_only else REPLAYABLE
    rows = batches.list_batches(
        connection, pipeline_id, first=from_time, last=last, states=states, limit=MOST_BATCHES + 1
    )
    if len(rows) > MOST_BATCHES:
        message = (
            f"more than {MOST_BATCHES:,} batches from {from_time.isoformat()} to {last.isoformat()}: replay in parts"
        )
        raise ReplayError(message)
    times = [row.batch_time for row in reversed(rows) if row.attempt]
    if not times:
        message = (
            f"no batch from {from_time.isoformat()} to {last.isoformat()} is {' or '.join(states)} and had records: "
            "`forebay batches` shows which there are (times are UTC)"
        )
        raise ReplayError(message)
    return times


def checked_outputs(pipeline: Pipeline, outputs: Sequence[str]) -> Sequence[str]:
    """Return `outputs`. Raises ReplayError if the pipeline lacks one of them."""
    unknown = sorted(set(outputs) - pipeline.outputs.keys())
    if unknown:
        message = (
            f"pipeline {pipeline.name!r} has no output {', '.join(map(repr, unknown))}: "
            f"it has {', '.join(pipeline.outputs)}"
        )
        raise ReplayError(message)
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
    on_committed: Callable[[datetime, OutputResult], None] = _unreported,
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
        except (BatchHeldError, BlocksNotRetainedError) as refusal:
            error, refused = str(refusal), True
        except Exception as failure:
            log.exception("replay failed", pipeline=pipeline.name, batch_time=batch_time.isoformat())
            error = f"{type(failure).__name__}: {failure}"
        yield ReplayedBatch(batch_time, results, monotonic.monotonic() - started, error, refused)

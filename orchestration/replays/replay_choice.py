"""Choose the batches of a replay, and check what it asks for.

Knows neither Dagster nor Spark, so the tracker can use it. ``replay`` runs the batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tracker_store.batches import batches
from tracker_store.batches.batch_outputs import quarantined_batches
from tracker_store.close_names import did_you_mean
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import sqlalchemy as sa

REPLAYABLE = (BatchState.COMPLETED, BatchState.QUARANTINED)
# A from_time that names no time: the newest batch that was given up, or, if none was, the latest completed one.
NEWEST_FAILED = "newest_failed"
# How many batches one command, or one run in Dagster, replays at most: replay a longer time in parts.
MOST_BATCHES = 10_000


class ReplayError(Exception):
    """This replay can't be done as it was asked for; the message says what to ask for instead."""


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


@dataclass(frozen=True, slots=True)
class ReplayChoice:
    """Choose batches by their times, both included, or, with flags, those that are QUARANTINED."""

    from_time: datetime | None = None
    to_time: datetime | None = None
    #: Run only the outputs that have no result.
    failed_outputs_only: bool = False
    quarantined: bool = False


def batches_to_replay(connection: sa.Connection, pipeline_id: int, choice: ReplayChoice) -> list[datetime]:
    """Return the batches, oldest first: finished and not empty, with `from_time` <= batch time <= `to_time`.

    Without `from_time`, return the latest completed one (``latest_batch``); without `to_time`, the one at `from_time`.
    Skip batches that are not finished or were empty; with `quarantined` or `failed_outputs_only`, all that are not
    QUARANTINED. Without times, `quarantined` means all that are. Takes no locks. Raises ReplayError if there is none.
    """
    from_time, to_time = choice.from_time, choice.to_time
    only_quarantined = choice.quarantined or choice.failed_outputs_only
    if from_time is None:
        if to_time is not None:
            message = "a replay has a to_time and no from_time: give both, or neither for the latest completed batch"
            raise ReplayError(message)
        if only_quarantined:
            times = quarantined_batches(connection, pipeline_id, newest=MOST_BATCHES if choice.quarantined else 1)
            if not times:
                message = "no batch is quarantined: there is nothing to run again"
                raise ReplayError(message)
            return times[::-1]
        found = batches.latest_batch(connection, pipeline_id, [BatchState.COMPLETED])
        if found is None or not found.attempt:
            message = "no batch is completed yet (of those that had records): there is nothing to replay"
            raise ReplayError(message)
        return [found.batch_time]
    last = to_time or from_time
    if last < from_time:
        message = f"the replay's from_time {from_time.isoformat()} is after its to_time {last.isoformat()}: swap them"
        raise ReplayError(message)
    states = (BatchState.QUARANTINED,) if only_quarantined else REPLAYABLE
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


def newest_failed_batch(connection: sa.Connection, pipeline_id: int) -> datetime | None:
    """Return the newest quarantined batch, or None. No locks."""
    return next(iter(quarantined_batches(connection, pipeline_id, newest=1)), None)


def check_output_names(pipeline: str, *, declared: Collection[str], outputs: Sequence[str]) -> None:
    """Raise ReplayError if one of `outputs` is not among the declared ones."""
    unknown = sorted(set(outputs).difference(declared))
    if unknown:
        hint = did_you_mean(unknown[0], declared)
        message = (
            f"pipeline {pipeline!r} has no output {', '.join(map(repr, unknown))}: it has {', '.join(declared)}"
            f"{f'; {hint}' if hint else ''}"
        )
        raise ReplayError(message)

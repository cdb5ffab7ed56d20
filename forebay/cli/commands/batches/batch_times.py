"""Find the batch that a person names by its time, as other commands print it.

Owns the forms of a batch time on the command line, and the argument and the option that go with it. It reads the
driver log, and changes nothing.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.instance import names
from orchestration.replays.replay_choice import ReplayError, parsed_time
from tracker_store.batches import batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    import sqlalchemy as sa

    from tracker_store.batches.batches import BatchRow
    from tracker_store.schema.states import BatchState

#: The argument of the commands that name a batch by its pipeline and its time.
PipelineName = Annotated[
    str, typer.Argument(metavar="PIPELINE", help="The pipeline's name.", autocompletion=names.pipelines)
]
#: The option of the commands that run some outputs of a batch again.
Outputs = Annotated[
    list[str] | None, typer.Option(help="Only this output; may be given several times.", autocompletion=names.outputs)
]
LATEST = "latest"
TIME_HELP = "The batch time (UTC), as `forebay batches` or `forebay status` prints it"
# `forebay status` prints batch times of today in this way, without fractions of a second.
_TIME_OF_DAY = re.compile(r"\d{2}:\d{2}:\d{2}(\.\d+)?Z?")
_SECOND = timedelta(seconds=1)
_MOST_NAMED = 5


def named_batch(
    connection: sa.Connection,
    pipeline_id: int,
    text: str,
    *,
    pipeline: str,
    latest_of: Sequence[BatchState] | None = None,
) -> BatchRow:
    """Return the batch at a time, such as 2026-01-31T12:00:00Z or 12:00:00 (the newest of today and yesterday).

    A time without fractions of a second also names the only batch within that second. `latest_of`: which states the
    batch may have that `latest` names (none: any; see ``latest_batch``); without it, `latest` is refused. No locks.
    Raises ReplayError if there is no such batch, or several.
    """
    if text.strip() == LATEST and latest_of is not None:
        newest = batches.latest_batch(connection, pipeline_id, latest_of)
        if newest is None:
            message = f"pipeline {pipeline!r} has no batch{_in_states(latest_of)} yet"
            raise ReplayError(message)
        return newest
    times = _meant(text)
    for time in times:
        found = batches.get_batch(connection, pipeline_id, time)
        if found is not None:
            return found
        within = _within_second(connection, pipeline_id, time)
        if len(within) == 1:
            return within[0]
        if within:
            listed = ", ".join(row.batch_time.isoformat() for row in within[:_MOST_NAMED])
            message = f"pipeline {pipeline!r} has several batches within that second: {listed}"
            raise ReplayError(message)
    listed = " or ".join(time.isoformat() for time in times)
    message = f"pipeline {pipeline!r} has no batch at {listed}: `forebay batches` lists them (UTC)"
    raise ReplayError(message)


def bound_time(text: str) -> datetime | None:
    """Return a bound of a span of batches, which takes what names a batch; None for no text. Raises ReplayError.

    A time of day is the newest one that is not in the future.
    """
    if not text.strip():
        return None
    newest, *before = _meant(text)
    return before[0] if before and newest > datetime.now(UTC) else newest


def _meant(text: str) -> list[datetime]:
    """Return the times that the text may mean, the newest first. Raises ReplayError."""
    text = text.strip()
    if _TIME_OF_DAY.fullmatch(text):
        today = datetime.now(UTC).date()
        written = [f"{day}T{text}" for day in (today, today - timedelta(days=1))]
    else:
        written = [text]
    times = [time for one in written if (time := parsed_time(one)) is not None]
    if not times:
        message = "a batch time is needed, as 2026-01-31T12:00:00Z: `forebay batches` lists them"
        raise ReplayError(message)
    return times


def _within_second(connection: sa.Connection, pipeline_id: int, time: datetime) -> list[BatchRow]:
    if time.microsecond:
        return []
    found = batches.list_batches(connection, pipeline_id, first=time, last=time + _SECOND, limit=_MOST_NAMED + 1)
    return [row for row in reversed(found) if row.batch_time < time + _SECOND]


def _in_states(states: Sequence[BatchState]) -> str:
    return f" that is {' or '.join(states)}" if states else ""

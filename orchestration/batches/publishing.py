"""Publish committed results to readers, and give targets their turns of upkeep.

Files of some sinks are a projection of the row in `output_commits`.

The row says which attempt counts, and whether its files are still to be published (`to_publish`). Any process that
finds such a row publishes the files: the run that committed it, the next attempt at its batch, the next batch of its
pipeline, or the upkeep schedule. Only one process at a time changes what readers of an output see of an hour: its
transaction holds a lock in the driver log. A paused process loses the lock with its transaction, so before each step
that readers see it checks that it still has the lock. This module never decides what counts, and computes nothing.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING

import structlog

from orchestration.declarations.sink import SinkError, Upkeep
from orchestration.spark.statement_retry import retry_statement
from tracker_store.batches import outputs
from tracker_store.connection.engine import connect, named_failures
from tracker_store.connection.errors import DriverLogError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    import sqlalchemy as sa

    from orchestration.declarations.pipeline import Output, Pipeline
    from orchestration.declarations.sink import Figures

# Seconds between statements: well below the server's time-out for an idle transaction.
_STILL_HERE_SECONDS = 2.0
# How many leftovers one batch run publishes besides its own work; the upkeep schedule does the rest.
MOST_LEFT = 20

log = structlog.get_logger(__name__)


def publish(engine: sa.Engine, pipeline_id: int, output: Output, location: str, *, batch_time: datetime) -> None:
    """Show the committed result of an output to readers; `location` is the result of sinks that publish nothing."""
    if not output.sink.may_publish():
        output.sink.publish(location, batch_time=batch_time)
        return
    show = partial(_publish_committed, pipeline_id, output, batch_time)
    retry_statement(engine, show, f"publishing of output {output.name!r}")


def publish_what_is_left(engine: sa.Engine, pipeline: Pipeline, pipeline_id: int, *, most: int = MOST_LEFT) -> int:
    """Publish what other runs committed and did not publish; return how many. Logs what fails and goes on."""
    by_name = {name: output for name, output in pipeline.outputs.items() if output.sink.may_publish()}
    if not by_name:
        return 0
    try:
        with connect(engine) as connection:
            left = outputs.commits_to_publish(connection, pipeline_id, list(by_name), limit=most)
    except DriverLogError as error:
        log.warning("could not look for what is not published", error=str(error))
        return 0
    published = 0
    for name, batch_time in left:
        about = {"pipeline": pipeline.name, "output": name, "batch_time": batch_time.isoformat()}
        try:
            with connect(engine) as connection:
                _publish_committed(pipeline_id, by_name[name], batch_time, connection)
        except (DriverLogError, SinkError, OSError) as error:
            log.warning("could not publish what is committed", error=str(error), **about)
        else:
            log.info("published what another run had committed", **about)
            published += 1
    return published


def upkeep(engine: sa.Engine, pipeline: Pipeline, pipeline_id: int, *, most_seconds: float) -> list[UpkeepResult]:
    """Give each output's target its turns of upkeep, for at most `most_seconds`; return what was done and what failed.

    Outputs share the time, so that none waits for another one that has too much to do, or that fails.
    """
    with connect(engine) as connection:
        oldest = outputs.oldest_attempt(connection, pipeline_id)
    to_do = [output for output in pipeline.outputs.values() if output.sink.upkeep_every is not None]
    ends_at = time.monotonic() + most_seconds
    done: list[UpkeepResult] = []
    for at, output in enumerate(to_do):
        now = time.monotonic()
        give_up_at = now + (ends_at - now) / (len(to_do) - at)
        turn = Upkeep(
            pipeline.name,
            output.name,
            oldest_attempt=oldest,
            has_time=partial(_has_time, give_up_at),
        )
        done += _keep_output(engine, pipeline_id, output, turn)
    return done


def _has_time(give_up_at: float) -> bool:
    return time.monotonic() < give_up_at


def _keep_output(engine: sa.Engine, pipeline_id: int, output: Output, turn: Upkeep) -> list[UpkeepResult]:
    done: list[UpkeepResult] = []
    hours: list[datetime | None] = []
    # A target's client may raise anything, and the other outputs need their turns too.
    try:
        hours += output.sink.upkeep_hours()
    except Exception as error:  # noqa: BLE001
        done.append(_failed(output, None, error))
    for hour in hours:
        if not turn.has_time():
            log.info("no time is left for the rest of this output, which comes later", output=output.name)
            break
        try:
            with connect(engine) as connection:
                figures = _keep(pipeline_id, output, replace(turn, hour=hour), connection)
        except Exception as error:  # noqa: BLE001
            done.append(_failed(output, hour, error))
            continue
        if figures:
            log.info("looked after a target", output=output.name, hour=_iso(hour), **figures)
            done.append(UpkeepResult(output.name, hour, figures))
    return done


def _failed(output: Output, hour: datetime | None, error: Exception) -> UpkeepResult:
    said = str(error) or type(error).__name__
    log.warning("could not look after a target", output=output.name, hour=_iso(hour), error=said)
    return UpkeepResult(output.name, hour, {}, said)


def _iso(hour: datetime | None) -> str | None:
    return None if hour is None else hour.isoformat()


def _keep(pipeline_id: int, output: Output, turn: Upkeep, connection: sa.Connection) -> Figures:
    with held(connection, pipeline_id, output.name, turn.hour):
        if turn.hour is not None:
            begin, end = output.sink.published_hour(turn.hour)
            committed = outputs.commits_of_closed_hour(connection, pipeline_id, output.name, begin, end)
            if committed is None:
                return {}
            turn = replace(turn, committed=committed)
        with staying(connection) as check:
            return output.sink.upkeep(replace(turn, check=check))


def _publish_committed(pipeline_id: int, output: Output, batch_time: datetime, connection: sa.Connection) -> None:
    with held(connection, pipeline_id, output.name, output.sink.published_hour(batch_time)[0]):
        commit = outputs.commit_of_output(connection, pipeline_id, output.name, batch_time)
        if commit is None:
            return
        with staying(connection) as check:
            output.sink.publish(commit.location, batch_time=batch_time, check=check)
        outputs.note_published(connection, pipeline_id, output.name, batch_time, attempt=commit.attempt)


@dataclass(frozen=True, slots=True)
class UpkeepResult:
    """Describe what upkeep did at an output's target, or in one hour of it, or why it failed."""

    output: str
    hour: datetime | None
    figures: Figures
    error: str = ""


@contextmanager
def held(connection: sa.Connection, pipeline_id: int, output: str, batch_time: datetime | None) -> Iterator[None]:
    """Hold, in a transaction, the lock on what readers see of an output in the hour of `batch_time`.

    None: the lock on the upkeep of its whole target, which no batch waits for.

    Raises DriverLogUnavailableError if another process holds the lock for long.
    """
    connection.execution_options(isolation_level="READ COMMITTED")
    hour = None if batch_time is None else batch_time.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    with named_failures(), connection.begin():
        outputs.hold_publishing(connection, pipeline_id, output, hour)
        yield


@contextmanager
def staying(connection: sa.Connection) -> Iterator[Callable[[], None]]:
    """Keep the transaction alive while files are written and the connection is otherwise idle.

    Yields a check, which raises OutcomeUnknownError if the transaction has ended.
    """
    in_turn = threading.Lock()
    done = threading.Event()

    def check() -> None:
        with in_turn:
            outputs.still_connected(connection)

    def stay() -> None:
        # The server ends idle transactions; that is right for a paused process, but must not happen to this one.
        while not done.wait(_STILL_HERE_SECONDS):
            try:
                check()
            except DriverLogError:
                return

    thread = threading.Thread(target=stay, name="publishing", daemon=True)
    thread.start()
    try:
        yield check
    finally:
        done.set()
        thread.join()

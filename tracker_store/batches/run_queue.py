"""Read and write `batch_drivers` and `run_queue`: which drivers accept runs, and which runs wait for one.

A row of `run_queue` is a Dagster run that was handed over and has not ended: its launcher enqueues it, a driver claims
and then finishes it. A row of `batch_drivers` belongs to a row of `processes` and ends with it.
"""

from __future__ import annotations

import select
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import psycopg2
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from tracker_store.connection.engine import engine_beside, named_failures, shares_sessions
from tracker_store.connection.errors import DriverLogUnavailableError
from tracker_store.schema.states import BATCH_DRIVER_TRANSITIONS, BatchDriverState

if TYPE_CHECKING:
    from collections.abc import Sequence


# NOTIFY on this says that a location's queue has a new run (payload: the location) …
QUEUED_CHANNEL = "forebay_run_queued"
# … and on this that a run is to be cancelled (payload: the run's id).
CANCEL_CHANNEL = "forebay_run_cancel"

# For how long a run waits for a driver that is starting.
STARTING_COUNTS = timedelta(seconds=60)
# For how long a run waits for the next driver after one died at work or was left by its agent.
CRASHED_COUNTS = timedelta(seconds=15)
# The end reasons of these two: the agent writes the first, and how in parentheses if it knows; the driver itself the
# second.
CRASHED = "its process ended"
LEFT = "its agent is gone"


class WorkerState(StrEnum):
    """Name the state of a run that was handed over."""

    QUEUED = "queued"  # waits, and its location has a live driver
    ABANDONED = "abandoned"  # waits, and its location has no live driver
    RUNNING = "running"  # a live driver has it
    LOST = "lost"  # its driver has ended


@dataclass(frozen=True, slots=True)
class RunWorker:
    """Say where a handed-over run is; `driver` is empty while it waits; `seconds` since it was handed over."""

    state: WorkerState
    driver: str
    why: str
    seconds: float


@dataclass(frozen=True, slots=True)
class WaitingRuns:
    """Count a location's runs that wait for a driver while none is ready, and for how long the oldest does."""

    location: str
    runs: int
    waited: timedelta
    starting: int


def waiting_runs(connection: sa.Connection) -> list[WaitingRuns]:
    """Return the locations that have runs and no driver that takes one. Takes no locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT q.location, count(*) AS runs, clock_timestamp() - min(q.enqueued_at) AS waited, (
                    SELECT count(*)
                    FROM forebay.batch_drivers d JOIN forebay.processes p ON p.id = d.process_id
                    WHERE d.location = q.location AND d.state = 'STARTING' AND p.ended_at IS NULL
                ) AS starting
                FROM forebay.run_queue q
                WHERE q.process_id IS NULL
                  AND NOT EXISTS (
                      SELECT
                      FROM forebay.batch_drivers d JOIN forebay.processes p ON p.id = d.process_id
                      WHERE d.location = q.location AND d.state = 'READY' AND p.ended_at IS NULL
                  )
                GROUP BY q.location ORDER BY q.location
            """)
        ).all()
    return [WaitingRuns(row.location, row.runs, row.waited, row.starting) for row in rows]


def register_batch_driver(connection: sa.Connection, *, process_id: int, location: str) -> None:
    """Record a driver that is starting. Locks: the new row, and the rows that ended drivers left.

    Deletes rows of drivers that ended more than an hour ago, and their runs: Dagster has ended those long ago.
    """
    with named_failures():
        connection.execute(
            # Looks for the process: a driver that signed off has no row in batch_drivers, but may have left a run
            # unfinished. NOT EXISTS, because the rows of processes that ended long ago are deleted.
            sa.text("""
                WITH ended AS (
                    DELETE FROM forebay.batch_drivers d
                    WHERE NOT EXISTS (
                        SELECT
                        FROM forebay.processes p
                        WHERE p.id = d.process_id
                          AND (p.ended_at IS NULL OR p.ended_at > clock_timestamp() - interval '1 hour')
                    )
                ), swept AS (
                    DELETE FROM forebay.run_queue q
                    WHERE q.process_id IS NOT NULL
                      AND NOT EXISTS (
                          SELECT
                          FROM forebay.processes p
                          WHERE p.id = q.process_id
                            AND (p.ended_at IS NULL OR p.ended_at > clock_timestamp() - interval '1 hour')
                      )
                )
                INSERT INTO forebay.batch_drivers (process_id, location)
                VALUES (:process, :location)
            """),
            {"process": process_id, "location": location},
        )


def set_batch_driver_state(connection: sa.Connection, *, process_id: int, state: BatchDriverState) -> None:
    """Move a driver to `state`, from the states that the table of transitions allows; else nothing changes.

    Moving to the same state again is a success. Locks: its row, so that an enqueue happens before or after it.
    """
    sources = [source.value for source, targets in BATCH_DRIVER_TRANSITIONS.items() if state in targets]
    with named_failures():
        connection.execute(
            sa.text("""
                UPDATE forebay.batch_drivers
                SET state = :state, since = clock_timestamp()
                WHERE process_id = :process AND state = ANY (CAST(:sources AS text[]))
            """),
            {"process": process_id, "state": state.value, "sources": [*sources, state.value]},
        )


def remove_batch_driver(connection: sa.Connection, *, process_id: int) -> None:
    """Delete a driver's row at its own end. Locks: the row."""
    with named_failures():
        connection.execute(
            sa.text("DELETE FROM forebay.batch_drivers WHERE process_id = :process"), {"process": process_id}
        )


def has_ready_driver(connection: sa.Connection, *, location: str, other_than: int = 0) -> bool:
    """Return whether a live driver of `location` takes runs. No locks."""
    with named_failures():
        ready: bool = connection.execute(
            sa.text("""
                SELECT EXISTS (
                    SELECT
                    FROM forebay.batch_drivers d
                    JOIN forebay.processes p ON p.id = d.process_id
                    WHERE d.location = :location AND d.state = 'READY' AND p.ended_at IS NULL AND d.process_id <> :other
                )
            """),
            {"location": location, "other": other_than},
        ).scalar_one()
    return ready


def crashed_batch_drivers(connection: sa.Connection, *, location: str) -> dict[int, tuple[int, str]]:
    """Return the drivers of `location` whose agent saw them end unasked, for an hour, by id. No locks.

    Each has its pid, and how it ended ("was killed by SIGKILL"); "" if its agent did not see how.
    """
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT p.id, p.pid, p.end_reason
                FROM forebay.batch_drivers d
                JOIN forebay.processes p ON p.id = d.process_id
                WHERE d.location = :location AND starts_with(p.end_reason, :crashed)
                ORDER BY p.id
            """),
            {"location": location, "crashed": CRASHED},
        ).all()
    return {row.id: (row.pid, row.end_reason.removeprefix(CRASHED).strip(" ()")) for row in rows}


def has_waiting_run(connection: sa.Connection, *, location: str) -> bool:
    """Return whether a run of `location` waits for a driver. No locks."""
    with named_failures():
        waits: bool = connection.execute(
            sa.text("SELECT EXISTS (SELECT FROM forebay.run_queue WHERE location = :location AND process_id IS NULL)"),
            {"location": location},
        ).scalar_one()
    return waits


def enqueue_run(connection: sa.Connection, *, run_id: str, location: str) -> bool:
    """Hand a run to the drivers of `location`; returns False, and does nothing, if none takes runs.

    A driver that is starting also counts, for STARTING_COUNTS, unless one has recently died while starting. So does a
    driver that has recently died at work or was left by its agent, for CRASHED_COUNTS, because another is being
    started. Both take the run sooner than a process that would be started beside them now.

    Locks: one such driver's row FOR SHARE, so that a driver that stops taking runs either sees this run or is not
    counted; the new row. A run that is there already stays as it is.
    """
    with named_failures():
        return (
            connection.execute(
                sa.text("""
                    WITH drivers AS (
                        SELECT d.process_id, d.state, d.since, p.ended_at, p.end_reason
                        FROM forebay.batch_drivers d
                        JOIN forebay.processes p ON p.id = d.process_id
                        WHERE d.location = :location
                    ), counts AS (
                        SELECT d.process_id
                        FROM drivers d
                        WHERE d.state = 'READY'
                            AND (
                                d.ended_at IS NULL
                                OR (
                                    (starts_with(d.end_reason, :crashed) OR d.end_reason = :left)
                                    AND d.ended_at > clock_timestamp() - CAST(:crashed_counts AS interval)
                                )
                            )
                          OR d.state = 'STARTING'
                            AND d.ended_at IS NULL
                            AND d.since > clock_timestamp() - CAST(:starting_counts AS interval)
                            AND NOT EXISTS (
                                SELECT
                                FROM drivers o
                                WHERE o.state = 'STARTING'
                                  AND o.ended_at > clock_timestamp() - 2 * CAST(:starting_counts AS interval)
                            )
                    ), driver AS (
                        SELECT d.process_id
                        FROM forebay.batch_drivers d
                        JOIN counts c USING (process_id)
                        WHERE d.state <> 'DRAINING'
                        LIMIT 1
                        FOR SHARE OF d
                    ), queued AS (
                        INSERT INTO forebay.run_queue (run_id, location)
                        SELECT :run, :location
                        FROM driver
                        ON CONFLICT (run_id) DO UPDATE
                        SET location = excluded.location
                        RETURNING run_id
                    )
                    SELECT pg_notify(:channel, :location)
                    FROM queued
                """),
                {
                    "run": run_id,
                    "location": location,
                    "channel": QUEUED_CHANNEL,
                    "starting_counts": STARTING_COUNTS,
                    "crashed": CRASHED,
                    "left": LEFT,
                    "crashed_counts": CRASHED_COUNTS,
                },
            ).one_or_none()
            is not None
        )


def claim_run(connection: sa.Connection, *, process_id: int, location: str) -> str | None:
    """Claim the run of `location` that waits longest; None if none waits or this driver was declared dead.

    Locks: the process's row FOR SHARE (it must live); one waiting row, skipping those that others are claiming.
    """
    with named_failures():
        run_id: str | None = connection.execute(
            sa.text("""
                WITH me AS (
                    SELECT p.id
                    FROM forebay.processes p
                    WHERE p.id = :process AND p.ended_at IS NULL
                    FOR SHARE
                ), next AS (
                    SELECT q.run_id
                    FROM forebay.run_queue q, me
                    WHERE q.location = :location AND q.process_id IS NULL
                    ORDER BY q.enqueued_at LIMIT 1 FOR UPDATE OF q SKIP LOCKED
                )
                UPDATE forebay.run_queue q
                SET process_id = me.id, claimed_at = clock_timestamp()
                FROM next, me
                WHERE q.run_id = next.run_id
                RETURNING q.run_id
            """),
            {"process": process_id, "location": location},
        ).scalar_one_or_none()
    return run_id


def claimed_run(connection: sa.Connection, *, process_id: int) -> str | None:
    """Return a run that this driver has, for a driver whose claim or finish had no answer. No locks."""
    with named_failures():
        run_id: str | None = connection.execute(
            sa.text(
                "SELECT run_id FROM forebay.run_queue WHERE process_id = :process ORDER BY claimed_at, run_id LIMIT 1"
            ),
            {"process": process_id},
        ).scalar_one_or_none()
    return run_id


def finish_run(connection: sa.Connection, *, run_id: str, process_id: int) -> None:
    """Delete the row of a run that this driver has ended. Locks: the row."""
    with named_failures():
        connection.execute(
            sa.text("DELETE FROM forebay.run_queue WHERE run_id = :run AND process_id = :process"),
            {"run": run_id, "process": process_id},
        )


def withdraw_run(connection: sa.Connection, run_id: str) -> bool:
    """Take back a run that no driver has claimed; returns whether there was one.

    Locks: the row; a claim in progress is waited for, and comes first.
    """
    with named_failures():
        return (
            connection.execute(
                sa.text("DELETE FROM forebay.run_queue WHERE run_id = :run AND process_id IS NULL RETURNING run_id"),
                {"run": run_id},
            ).one_or_none()
            is not None
        )


def request_cancel(connection: sa.Connection, run_id: str) -> bool:
    """Ask the driver that has a run to cancel it; returns False if no live driver has it. Locks: the row."""
    with named_failures():
        return (
            connection.execute(
                sa.text("""
                    WITH asked AS (
                        UPDATE forebay.run_queue q
                        SET cancel_requested = true
                        FROM forebay.processes p
                        WHERE q.run_id = :run AND p.id = q.process_id AND p.ended_at IS NULL
                        RETURNING q.run_id
                    )
                    SELECT pg_notify(:channel, run_id)
                    FROM asked
                """),
                {"run": run_id, "channel": CANCEL_CHANNEL},
            ).one_or_none()
            is not None
        )


def is_cancel_requested(connection: sa.Connection, run_id: str) -> bool:
    """Return whether a run must be cancelled. No locks."""
    with named_failures():
        requested: bool | None = connection.execute(
            sa.text("SELECT cancel_requested FROM forebay.run_queue WHERE run_id = :run"), {"run": run_id}
        ).scalar_one_or_none()
    return bool(requested)


def run_worker(connection: sa.Connection, run_id: str) -> RunWorker | None:
    """Return where a run is; None if it was never handed over, or has been finished. No locks."""
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT q.process_id, p.name, p.pid, p.host, p.ended_at, p.end_reason,
                    -- If the clock was set back, an abandoned run must not wait until it has caught up.
                    abs(extract(epoch FROM clock_timestamp() - q.enqueued_at)) AS seconds,
                    EXISTS (
                        SELECT
                        FROM forebay.batch_drivers d
                        JOIN forebay.processes o ON o.id = d.process_id
                        WHERE d.location = q.location AND o.ended_at IS NULL
                    ) AS served
                FROM forebay.run_queue q
                LEFT JOIN forebay.processes p ON p.id = q.process_id
                WHERE q.run_id = :run
            """),
            {"run": run_id},
        ).one_or_none()
    if row is None:
        return None
    seconds = float(row.seconds)
    if row.process_id is None:
        if row.served:
            return RunWorker(WorkerState.QUEUED, "", "it waits for a batch driver", seconds)
        return RunWorker(WorkerState.ABANDONED, "", "no batch driver of its code location lives", seconds)
    if row.pid is None:
        # Ended processes are deleted after a while.
        return RunWorker(WorkerState.LOST, f"process {row.process_id}", "it ended long ago", seconds)
    driver = f"{row.name} (process {row.process_id}, pid {row.pid} on {row.host})"
    if row.ended_at is None:
        return RunWorker(WorkerState.RUNNING, driver, "", seconds)
    return RunWorker(WorkerState.LOST, driver, row.end_reason or "it ended", seconds)


class Notifications:
    """Listen on some channels in a separate session. For one thread."""

    def __init__(self, engine: sa.Engine, channels: Sequence[str]) -> None:
        """Take the engine and channels; the session opens at the first `wait`, and again after each failure."""
        self._engine = engine
        self._channels = channels
        self._connection: sa.Connection | None = None
        # Made if a pooler shares the sessions of `engine`.
        self._beside: sa.Engine | None = None

    def wait(self, timeout: float) -> list[str]:
        """Return the payloads that have come, as soon as there is one; empty after `timeout` seconds.

        Notifications from before the session began to listen are missed: the first call, and the one after a failure,
        return at once with nothing. Raises DriverLogError.
        """
        try:
            if self._connection is None:
                if self._beside is None and shares_sessions(self._engine):
                    self._beside = engine_beside(self._engine, "listening for runs")
                self._connection = (self._beside or self._engine).connect()
                # Otherwise the pool would give the listening session to another caller.
                self._connection.detach()
                for channel in self._channels:
                    self._connection.exec_driver_sql(f'LISTEN "{channel}"')
                return []
            # psycopg2's own connection, which has the notifications.
            listening: Any = self._connection.connection.dbapi_connection
            select.select([listening], [], [], timeout)
            listening.poll()
            payloads = [notify.payload for notify in listening.notifies]
            listening.notifies.clear()
        except (psycopg2.Error, DBAPIError, PoolTimeoutError, OSError) as error:
            self.close()
            raise DriverLogUnavailableError(str(error).strip()) from error
        return payloads

    def close(self) -> None:
        """End the session; a later `wait` opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(DBAPIError, psycopg2.Error):
                connection.close()

"""Restart FAILED receivers, with one run per failure that shows operators the reason: the receiver sensor.

A receiver is FAILED when its agent's or its own attempts are used up. The sensor decides when to try
again: after a pause that doubles, and at most `max_restarts_per_hour` times; after that a person must act.
It keeps no state: restarts are counted in the driver log, and a failure is identified by the assignment under which the
receiver failed. A run that did nothing (because it was deleted, or its machine failed) is requested again under another
run key, each time after twice the wait.
While Dagster is down no receiver is restarted here, and nothing else depends on it.
"""

# No `from __future__ import annotations`: Dagster reads the configuration's class off the annotation.
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import dagster as dg
import sqlalchemy as sa

from orchestration.dagster_defs.sensors.batch_sensor import PIPELINE_TAG
from orchestration.dagster_defs.shared.sensor_connections import SensorConnections
from orchestration.declarations.pipeline import Pipeline, Stream
from orchestration.declarations.settings import DatabaseUrlMissingError, Settings
from tracker_store.connection.engine import connect_once
from tracker_store.connection.errors import DriverLogError
from tracker_store.long_texts import one_line
from tracker_store.receivers.receivers import failed_receivers, restart_receiver

RECEIVER_TAG = "forebay/receiver"
REASON_TAG = "forebay/reason"

# The daemon's loop is 5 s and skips a sensor whose interval ends some ms later: 9 means every 10 s. A FAILED receiver
# waits for FIRST_PAUSE or longer in any case.
INTERVAL_SECONDS = 9
FIRST_PAUSE = timedelta(seconds=10)
LONGEST_PAUSE = timedelta(minutes=10)
# How long after its request a run that has restarted nothing is requested again; then after twice that, and so on.
ASK_AGAIN_AFTER = timedelta(minutes=5)
# Characters of the reason in a tag, which is shown in lists of runs; the run's configuration has the whole reason.
_REASON_TAG_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Restart:
    """Name a FAILED receiver that is due for a restart."""

    receiver: str
    receiver_id: int
    assignment: int
    reason: str
    # For how long the restart has been due.
    due_for: timedelta = timedelta(0)

    @property
    def run_key(self) -> str:
        """Return the run key: one per failure, as each restart raises the assignment, plus a number for repeats."""
        asked_again = int(self.due_for / ASK_AGAIN_AFTER + 1).bit_length() - 1
        return f"{self.receiver_id}:{self.assignment}" + (f":{asked_again}" if asked_again else "")


class RestartConfig(dg.Config):
    """Name the receiver to restart, and the assignment under which it failed; the receiver sensor fills it in."""

    receiver_id: int
    assignment: int
    reason: str


def owned_streams(pipelines: Sequence[Pipeline]) -> dict[str, list[Stream]]:
    """Return the streams that each pipeline's sensor looks after: those that no earlier pipeline reads."""
    taken: set[str] = set()
    owned: dict[str, list[Stream]] = {}
    for pipeline in pipelines:
        owned[pipeline.name] = [stream for stream in pipeline.streams if stream.name not in taken]
        taken |= {stream.name for stream in pipeline.streams}
    return owned


def pause_before(restart: int) -> timedelta:
    """Return how long a receiver stays FAILED before its restart number `restart` (from 1) of the hour."""
    return min(FIRST_PAUSE * (1 << min(restart - 1, 16)), LONGEST_PAUSE)


def due_restarts(connection: sa.Connection, streams: Sequence[Stream]) -> tuple[list[Restart], list[str]]:
    """Return the receivers to restart now, and why each other FAILED receiver waits."""
    most = {stream.name: stream.settings.max_restarts_per_hour for stream in streams}
    due: list[Restart] = []
    waiting: list[str] = []
    for failed in failed_receivers(connection, list(most)):
        name = f"{failed.stream_name}/{failed.ordinal}"
        limit = most[failed.stream_name]
        left = pause_before(failed.restarts + 1) - failed.failed_for
        if failed.restarts >= limit:
            waiting.append(
                f"{name} stays FAILED, {failed.restarts} of {limit} restarts of this hour are used: {failed.reason}; "
                f"when that is fixed: forebay receivers restart {name}"
            )
        elif left > timedelta(0):
            waiting.append(
                f"{name} is FAILED: {failed.reason}; restart {failed.restarts + 1} of {limit} in "
                f"{left.total_seconds():.0f} s"
            )
        else:
            due.append(Restart(name, failed.receiver_id, failed.assignment, failed.reason, -left))
    return due, waiting


def restart_op_name(pipeline: Pipeline) -> str:
    """Return the name of the step that restarts a receiver, under which the run configuration has its settings."""
    return f"{pipeline.name}__restart_receiver"


def restart_job(pipeline: Pipeline) -> dg.JobDefinition:
    """Return the job `PIPELINE_restart_receiver`."""

    @dg.op(
        name=restart_op_name(pipeline),
        description="Gives a FAILED receiver a new assignment; the tracker places it, an agent starts it.",
        # The sensor requests one run per failure, so the run retries during an outage of the driver log.
        retry_policy=dg.RetryPolicy(max_retries=5, delay=2, backoff=dg.Backoff.EXPONENTIAL),
    )
    def restart(context: dg.OpExecutionContext, config: RestartConfig) -> None:
        with connect_once(
            Settings().require_database_url(), application_name=f"forebay receiver restart {pipeline.name}"
        ) as connection:
            restarted = restart_receiver(
                connection,
                receiver_id=config.receiver_id,
                why=f"restarted after: {config.reason}",
                by=f"Dagster run {context.run_id}",
                failed_under=config.assignment,
            )
        if restarted:
            context.log.info(f"receiver {config.receiver_id} will be restarted; it had failed: {config.reason}")
        else:
            context.log.info(f"receiver {config.receiver_id}: nothing to do, that failure is already over")

    @dg.job(
        name=f"{pipeline.name}_restart_receiver",
        executor_def=dg.in_process_executor,
        description="Restarts a FAILED receiver; launched by the receiver sensor, one run per failure.",
        tags={PIPELINE_TAG: pipeline.name},
    )
    def restart_receiver_job() -> None:
        restart()

    return restart_receiver_job


def receiver_sensor(
    pipeline: Pipeline, streams: Sequence[Stream], job: dg.JobDefinition, connections: SensorConnections
) -> dg.SensorDefinition:
    """Return the sensor `PIPELINE_receivers`, which runs by default."""

    @dg.sensor(
        name=f"{pipeline.name}_receivers",
        # By name: Dagster would bind a job object again when definitions are merged, with warnings.
        job_name=job.name,
        minimum_interval_seconds=INTERVAL_SECONDS,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Starts FAILED receivers of {', '.join(stream.name for stream in streams)} again.",
    )
    def evaluate(_context: dg.SensorEvaluationContext) -> dg.SensorResult | dg.SkipReason:
        try:
            database_url = Settings().require_database_url()
        except DatabaseUrlMissingError as error:
            return dg.SkipReason(str(error))
        try:
            with connections.connect(database_url) as connection:
                due, waiting = due_restarts(connection, streams)
        except DriverLogError as error:
            return dg.SkipReason(f"the driver log can't be asked, trying again: {error}")
        if not due:
            return dg.SkipReason("\n".join(waiting) or "no receiver is FAILED")
        return dg.SensorResult(
            run_requests=[
                dg.RunRequest(
                    run_key=restart.run_key,
                    run_config=dg.RunConfig(
                        {
                            restart_op_name(pipeline): RestartConfig(
                                receiver_id=restart.receiver_id, assignment=restart.assignment, reason=restart.reason
                            )
                        }
                    ),
                    tags={
                        PIPELINE_TAG: pipeline.name,
                        RECEIVER_TAG: restart.receiver,
                        REASON_TAG: one_line(restart.reason, _REASON_TAG_LENGTH),
                    },
                )
                for restart in due
            ]
        )

    return evaluate

"""Define `PIPELINE_stop_streams` and `PIPELINE_start_streams`: `forebay receivers stop` and `start` in the launchpad.

They only record the wanted state; agents and tracker then drain and end the receivers' processes, or start them.
"""

# No `from __future__ import annotations`: Dagster reads the configuration's class off the annotation.
from collections.abc import Sequence

import dagster as dg
from pydantic import Field

from orchestration.batches.batch_schedule import PIPELINE_TAG
from orchestration.declarations.pipeline import Pipeline, Stream
from orchestration.declarations.settings import Settings
from tracker_store.connection.engine import connect_once
from tracker_store.receivers.receivers import receivers_named, set_desired_state
from tracker_store.schema.states import DesiredState

_WORDS = {DesiredState.STOPPED: "stop", DesiredState.RUNNING: "start"}
_DESCRIPTIONS = {
    DesiredState.STOPPED: (
        "Stops the receivers of {streams}: they stop reading, register what they hold, and end, until they are started "
        "again. Batches continue with what was registered."
    ),
    DesiredState.RUNNING: "Starts the receivers of {streams} that were stopped or paused.",
}


class ReceiversConfig(dg.Config):
    """Name the receivers to stop or start. The default is all receivers of the job's streams."""

    receivers: list[str] = Field(
        default=[], description="Names of streams, STREAM, or of single receivers, STREAM/N; empty: all streams."
    )


def stream_op_name(pipeline: Pipeline, desired: DesiredState) -> str:
    """Return the name of the job's step, under which the run configuration has its settings."""
    return f"{pipeline.name}__{_WORDS[desired]}_streams"


def stream_jobs(pipeline: Pipeline, streams: Sequence[Stream]) -> list[dg.JobDefinition]:
    """Return the jobs that stop and start `streams`."""
    return [_stream_job(pipeline, streams, desired) for desired in _WORDS]


def _stream_job(pipeline: Pipeline, streams: Sequence[Stream], desired: DesiredState) -> dg.JobDefinition:
    names = [stream.name for stream in streams]
    description = _DESCRIPTIONS[desired].format(streams=", ".join(names))

    @dg.op(name=stream_op_name(pipeline, desired), description=description)
    def want(context: dg.OpExecutionContext, config: ReceiversConfig) -> None:
        wanted = config.receivers or names
        if strange := [name for name in wanted if name.partition("/")[0] not in names]:
            raise dg.Failure(
                f"receivers: {strange[0]!r} is none of this job's, which has {', '.join(names)}: name one of these "
                "streams, or STREAM/N"
            )
        with connect_once(
            Settings().require_database_url(), application_name=f"forebay streams {pipeline.name}"
        ) as connection:
            found = [receiver for name in wanted for receiver in receivers_named(connection, name)]
            set_desired_state(connection, receiver_ids=[receiver.receiver_id for receiver in found], desired=desired)
            for receiver in found:
                context.log.info(
                    f"{receiver.stream_name}/{receiver.ordinal} is to {_WORDS[desired]} (it is {receiver.state})"
                )

    @dg.job(
        name=f"{pipeline.name}_{_WORDS[desired]}_streams",
        executor_def=dg.in_process_executor,
        description=description,
        tags={PIPELINE_TAG: pipeline.name},
    )
    def stream_job() -> None:
        want()

    return stream_job

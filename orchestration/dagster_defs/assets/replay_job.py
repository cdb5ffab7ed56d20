"""Define `PIPELINE_replay`, which runs finished batches again from the launchpad, and report replays to Dagster.

The output assets replay too when they are materialized without a configuration or backfilled by partition. All of them
use `replay_in_dagster`. The job also runs replays forward (`forward_in_dagster`).
"""

# No `from __future__ import annotations`: Dagster reads the configuration's class off the annotation.
from collections.abc import Sequence
from dataclasses import replace

import dagster as dg
from pydantic import Field

from orchestration.batches.batch_schedule import FIRST_TAG, PIPELINE_TAG, replay_job_name
from orchestration.dagster_defs.assets.committed_outputs import CommittedOutputs
from orchestration.dagster_defs.assets.forward_replay import ForwardChoice, forward_in_dagster
from orchestration.dagster_defs.assets.replay_tags import COUNT_TAG, KIND_TAG, LAST_TAG, REPLAY_KIND
from orchestration.dagster_defs.shared.run_errors import tag_cause
from orchestration.dagster_defs.shared.spark_resource import SPARK_RESOURCE, SparkResource, batch_session
from orchestration.declarations.pipeline import Pipeline
from orchestration.declarations.settings import Settings
from orchestration.replays.replay import ReplayedBatch, replay_batches
from orchestration.replays.replay_choice import (
    NEWEST_FAILED,
    ReplayChoice,
    batches_to_replay,
    newest_failed_batch,
    parsed_time,
)
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.engine import connect_once


class ReplayConfig(dg.Config):
    """Name the batches to run again, and the outputs to replace: the newest failed batch and all outputs by default."""

    from_time: str = Field(
        default=NEWEST_FAILED,
        description=f"The first batch time, as 2026-01-31T12:00:00Z; {NEWEST_FAILED}: the newest batch that was given "
        "up (QUARANTINED), or, if none was, the newest completed one with records; empty: the latter.",
    )
    to_time: str = Field(default="", description="The last batch time; empty: the one batch at from_time.")
    outputs: list[str] = Field(default=[], description="The outputs to replace, by name; empty: all of them.")
    failed_outputs_only: bool = Field(
        default=False,
        description="Replace nothing: of quarantined batches, run only the outputs that have no result; without a "
        "from_time, of the newest one.",
    )
    quarantined: bool = Field(
        default=False,
        description="Run quarantined batches only; with an empty from_time: all of them.",
    )
    forward: bool = Field(
        default=False,
        description="Of one output with a state: run the batch at from_time with the state that it had, and then every "
        "later batch. New batches of the output wait meanwhile.",
    )
    state_replay: int = Field(
        default=0,
        description="Go on with this replay forward, by its number, or with its undoing; all else is ignored. 0: none.",
    )


def replay_op_name(pipeline: str) -> str:
    """Return the name of its step, under which the run configuration has its settings."""
    return f"{pipeline}__replay"


def replay_in_dagster(
    context: dg.OpExecutionContext | dg.AssetExecutionContext,
    pipeline: Pipeline,
    resource: SparkResource,
    choice: ReplayChoice,
    *,
    newest_failed: bool = False,
    outputs: Sequence[str] = (),
) -> None:
    """Replay batches within a run: log a line per batch, materializations as outputs are committed, and tag the run.

    `newest_failed`: begin with the newest quarantined batch, if there is one.

    Raises dg.Failure if any batch failed.
    """
    settings = Settings()
    with connect_once(
        settings.require_database_url(), application_name=f"forebay replay {pipeline.name}"
    ) as connection:
        pipeline_id = get_pipeline(connection, pipeline.name).pipeline_id
        if newest_failed:
            newest = newest_failed_batch(connection, pipeline_id)
            choice = replace(choice, from_time=newest)
            found = "no batch is QUARANTINED" if newest is None else f"{newest.isoformat()} is QUARANTINED"
            context.log.info(f"from_time: {NEWEST_FAILED}: {found}")
        times = batches_to_replay(connection, pipeline_id, choice)
    context.instance.add_run_tags(
        context.run.run_id,
        {
            KIND_TAG: REPLAY_KIND,
            FIRST_TAG: times[0].isoformat(),
            LAST_TAG: times[-1].isoformat(),
            COUNT_TAG: str(len(times)),
        },
    )
    context.log.info(f"{len(times)} batch(es) to replay, from {times[0].isoformat()} to {times[-1].isoformat()}")
    failed: list[ReplayedBatch] = []
    committed = CommittedOutputs(context, pipeline, lambda _: {"kind": dg.MetadataValue.text(REPLAY_KIND)})
    replays = replay_batches(
        pipeline,
        times,
        outputs=outputs,
        failed_outputs_only=choice.failed_outputs_only,
        run_id=context.run.run_id,
        settings=settings,
        session=lambda: batch_session(resource, settings, pipeline),
        on_committed=committed.report,
    )
    for number, replayed in enumerate(replays, start=1):
        where = f"{number} of {len(times)}: batch {replayed.batch_time.isoformat()}"
        if replayed.error:
            failed.append(replayed)
            context.log.error(f"{where} was {'refused' if replayed.refused else 'not replayed'}: {replayed.error}")
        else:
            names = ", ".join(f"{result.output} ({result.rows} rows)" for result in replayed.replaced)
            context.log.info(f"{where} replayed in {replayed.seconds:.1f} s: {names or 'every output had a result'}")
    committed.finish()
    if failed:
        cause = (
            f"{len(failed)} of {len(times)} batches were not replayed, and what failed of them is unchanged; the "
            f"first, {failed[0].batch_time.isoformat()}: {failed[0].error}"
        )
        tag_cause(context.instance, context.run.run_id, cause)
        raise dg.Failure(cause, allow_retries=False)


def replay_job(pipeline: Pipeline, spark: object | None = None) -> dg.JobDefinition:
    """Return the job `PIPELINE_replay`, with a default configuration that can be launched unchanged.

    `spark`: the resource of its session; None: the definitions have it. A job that has all resources is not made again
    with those of the definitions, and so the sensor that launches it is not either: Dagster would warn of that.
    """
    resources: dict[str, object] = {} if spark is None else {SPARK_RESOURCE: spark, "io_manager": dg.mem_io_manager}

    @dg.op(
        name=replay_op_name(pipeline.name),
        description=f"Runs finished batches of {pipeline.name} again, with the blocks that they had, and replaces "
        "their outputs; or an output with a state from one of them on.",
    )
    def replay(
        context: dg.OpExecutionContext, config: ReplayConfig, forebay_spark: dg.ResourceParam[SparkResource]
    ) -> None:
        newest_failed = config.from_time.strip() == NEWEST_FAILED
        if config.forward or config.state_replay:
            from_time = None if newest_failed else parsed_time(config.from_time)
            choice = ForwardChoice(from_time, config.outputs, config.state_replay or None)
            forward_in_dagster(context, pipeline, forebay_spark, choice)
            return
        replay_in_dagster(
            context,
            pipeline,
            forebay_spark,
            ReplayChoice(
                None if newest_failed else parsed_time(config.from_time),
                parsed_time(config.to_time),
                failed_outputs_only=config.failed_outputs_only,
                quarantined=config.quarantined,
            ),
            newest_failed=newest_failed,
            outputs=config.outputs,
        )

    @dg.job(
        name=replay_job_name(pipeline.name),
        executor_def=dg.in_process_executor,
        resource_defs=resources,
        description=f"Replays batches of {pipeline.name}: the newest failed one, or all from from_time to to_time.",
        tags={PIPELINE_TAG: pipeline.name, KIND_TAG: REPLAY_KIND},
        # The configuration that the launchpad shows first.
        config=dg.RunConfig({replay_op_name(pipeline.name): ReplayConfig()}),
    )
    def job() -> None:
        replay()

    return job

"""Asset checks on each output of a pipeline: proofs on the driver log's live data (docs/how-to/dagster.md).

They run on request, by the job `PIPELINE_checks` or in the UI, and never with a batch, because a proof reads the whole
driver log. The observation sensor runs them once, while the log is short. `forebay db check` proves the same, and
checks the schema too.
"""

# No `from __future__ import annotations`: Dagster reads what a check returns off the annotation.
from collections.abc import Iterator, Sequence

import dagster as dg
import sqlalchemy as sa
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from orchestration.dagster_defs.shared.stream_assets import stream_key
from orchestration.declarations.pipeline import Output, Pipeline, Stream
from orchestration.declarations.settings import Settings
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.engine import connect_once
from tracker_store.receivers.receivers import is_degraded
from tracker_store.reports import checks
from tracker_store.reports.status import ReceiverStatus, receiver_status
from tracker_store.schema.states import DesiredState, ReceiverState

# The asset checks; below are the proofs that each consists of.
BLOCKS_INTACT = "blocks_intact"
BATCHES_INTACT = "batches_intact"
COMMITTED_ONCE = "committed_once"
RECEIVERS_ACTIVE = "receivers_active"
DESCRIPTIONS = {
    BLOCKS_INTACT: (
        "The blocks of its streams: no gaps in the sequences, totals add up, no block added by a replaced receiver, "
        "source positions are chained, every file is known."
    ),
    BATCHES_INTACT: (
        "Its batches: their records are those of their ranges, ranges are contiguous, no block that is still needed "
        "was cleaned up."
    ),
    COMMITTED_ONCE: "Committed once for each completed batch.",
}
_AS_WANTED = {
    DesiredState.RUNNING: (ReceiverState.ACTIVE,),
    DesiredState.PAUSED: (ReceiverState.PAUSED,),
    DesiredState.STOPPED: (ReceiverState.INACTIVE,),
}
_BLOCKS = (
    checks.chains_are_gapless,
    checks.running_totals_add_up,
    checks.epochs_begin_with_a_marker,
    checks.source_positions_are_chained,
    checks.blocks_have_their_segment,
)
_BATCHES = (
    checks.ranges_are_contiguous,
    checks.batches_count_their_ranges,
    checks.unfinished_batches_have_their_blocks,
    checks.attempts_agree_with_their_batch,
)


def _result(output: Output, name: str, found: Sequence[checks.CheckResult]) -> dg.AssetCheckResult:
    broken = [result for result in found if not result.passed]
    return dg.AssetCheckResult(
        passed=not broken,
        asset_key=output.asset_key,
        check_name=name,
        severity=dg.AssetCheckSeverity.ERROR,
        description=None if not broken else f"broken: {'; '.join(result.promise for result in broken)}",
        metadata={
            result.check: "holds" if result.passed else f"{result.violations}: {'; '.join(result.offenders)}"
            for result in found
        },
    )


def check_pipeline(connection: sa.Connection, pipeline: Pipeline) -> Iterator[dg.AssetCheckResult]:
    """Run all checks of all outputs of an applied pipeline. Raises NotAppliedError."""
    pipeline_id = get_pipeline(connection, pipeline.name).pipeline_id
    with checks.patient(connection):
        blocks = [check(connection, pipeline_id) for check in _BLOCKS]
        batches = [check(connection, pipeline_id) for check in _BATCHES]
        for output in pipeline.outputs.values():
            commits = checks.outputs_are_committed_once(connection, pipeline_id, output.name)
            yield _result(output, BLOCKS_INTACT, blocks)
            yield _result(output, BATCHES_INTACT, batches)
            yield _result(output, COMMITTED_ONCE, [commits])


def pipeline_checks(pipeline: Pipeline) -> dg.AssetChecksDefinition:
    """Return the three checks on each output, which run in one step."""

    @dg.multi_asset_check(
        name=f"{pipeline.name}__checks",
        specs=[
            dg.AssetCheckSpec(name, asset=output.asset_key, description=description)
            for output in pipeline.outputs.values()
            for name, description in DESCRIPTIONS.items()
        ],
        description=f"Proves that the driver log of {pipeline.name} is intact.",
        # Materializing one output runs only its checks.
        can_subset=True,
    )
    def prove(context: dg.AssetCheckExecutionContext) -> Iterator[dg.AssetCheckResult]:
        with connect_once(
            Settings().require_database_url(), application_name=f"forebay checks {pipeline.name}"
        ) as connection:
            for result in check_pipeline(connection, pipeline):
                if (result.asset_key, result.check_name) in context.selected_asset_check_keys:
                    yield result

    return prove


def check_receivers(streams: Sequence[Stream], receivers: Sequence[ReceiverStatus]) -> Iterator[dg.AssetCheckResult]:
    """Check that each stream's receivers are in the wanted state, and do their work.

    One that is FAILED or degraded is an error; other states recover by themselves, and are a warning. `receivers`:
    those of the streams, as read.
    """
    for stream in streams:
        rows = [row for row in receivers if row.stream == stream.name]
        amiss = [
            row
            for row in rows
            if row.state not in _AS_WANTED[DesiredState(row.desired_state)] or is_degraded(row.reason)
        ]
        yield dg.AssetCheckResult(
            # A stream with a receiver per host may have no receiver yet, and then receives nothing.
            passed=bool(rows) and not amiss,
            asset_key=stream_key(stream),
            check_name=RECEIVERS_ACTIVE,
            severity=dg.AssetCheckSeverity.ERROR
            if any(row.state == ReceiverState.FAILED or is_degraded(row.reason) for row in amiss)
            else dg.AssetCheckSeverity.WARN,
            description=None if rows else "it has no receiver",
            metadata={
                f"{row.stream}/{row.ordinal}": f"{row.state}, wanted {row.desired_state}: {row.reason}" for row in rows
            },
        )


def stream_checks(pipeline: Pipeline, streams: Sequence[Stream]) -> dg.AssetChecksDefinition:
    """Return the check `receivers_active` on each of `streams`; all run in one step."""

    @dg.multi_asset_check(
        name=f"{pipeline.name}__stream_checks",
        specs=[
            dg.AssetCheckSpec(
                RECEIVERS_ACTIVE,
                asset=stream_key(stream),
                description="Each of its receivers is ACTIVE and gets and stores all, or is as wanted otherwise.",
            )
            for stream in streams
        ],
        description="Checks whether receivers run.",
    )
    def look() -> Iterator[dg.AssetCheckResult]:
        with connect_once(
            Settings().require_database_url(), application_name=f"forebay checks {pipeline.name}"
        ) as connection:
            yield from check_receivers(streams, receiver_status(connection, [stream.name for stream in streams]))

    return look


def checks_job(pipeline: Pipeline, *definitions: dg.AssetChecksDefinition) -> UnresolvedAssetJobDefinition:
    """Return the job `PIPELINE_checks`, which only runs the checks; users may add a schedule for it."""
    return dg.define_asset_job(
        f"{pipeline.name}_checks",
        selection=dg.AssetSelection.checks(*definitions),
        executor_def=dg.in_process_executor,
        description=f"Proves that the driver log of {pipeline.name} is intact; runs no batch.",
        tags={"forebay/pipeline": pipeline.name},
    )

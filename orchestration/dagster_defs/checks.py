"""Asset checks: proofs on the driver log's live data, on each output of a pipeline (design §6).

They run when they are asked for, by the job `PIPELINE_checks` or in the UI, and never with a batch: a proof reads all
that is kept. `forebay db check` proves the same, and the schema too.
"""

# No `from __future__ import annotations`: Dagster reads what a check returns off the annotation.
from collections.abc import Iterator, Sequence

import dagster as dg
import sqlalchemy as sa
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from orchestration.pipeline import Output, Pipeline
from orchestration.settings import Settings
from tracker_store import checks
from tracker_store.engine import connect, create_engine
from tracker_store.pipelines import get_pipeline

# Each asset check, and the proofs that it stands for.
BLOCKS_INTACT = "blocks_intact"
BATCHES_INTACT = "batches_intact"
COMMITTED_ONCE = "committed_once"
DESCRIPTIONS = {
    BLOCKS_INTACT: (
        "The blocks of its streams: sequences without a gap, totals that add up, nobody added who was replaced, "
        "source positions chained, every file known."
    ),
    BATCHES_INTACT: (
        "Its batches: records in are records out of the log, ranges follow each other, nothing is cleaned up that is "
        "still needed."
    ),
    COMMITTED_ONCE: "Committed once for each completed batch.",
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
    """All checks of all outputs of a pipeline that is applied. Raises NotAppliedError."""
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
    """Three checks on each output, made in one step."""

    @dg.multi_asset_check(
        name=f"{pipeline.name}__checks",
        specs=[
            dg.AssetCheckSpec(name, asset=output.asset_key, description=description)
            for output in pipeline.outputs.values()
            for name, description in DESCRIPTIONS.items()
        ],
        description=f"Proves that the driver log of {pipeline.name} is intact.",
    )
    def prove() -> Iterator[dg.AssetCheckResult]:
        engine = create_engine(
            Settings().require_database_url(), application_name=f"forebay checks {pipeline.name}", pool_size=1
        )
        try:
            with connect(engine) as connection:
                yield from check_pipeline(connection, pipeline)
        finally:
            engine.dispose()

    return prove


def checks_job(pipeline: Pipeline, definition: dg.AssetChecksDefinition) -> UnresolvedAssetJobDefinition:
    """`PIPELINE_checks`: the checks alone, for a schedule of one's own."""
    return dg.define_asset_job(
        f"{pipeline.name}_checks",
        selection=dg.AssetSelection.checks(definition),
        executor_def=dg.in_process_executor,
        description=f"Proves that the driver log of {pipeline.name} is intact; runs no batch.",
        tags={"forebay/pipeline": pipeline.name},
    )

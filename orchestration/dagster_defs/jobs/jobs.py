"""Define the job that runs one batch, in one process: a batch is one step, so a process per step only costs time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from orchestration.batches.batch_schedule import PIPELINE_TAG, job_name

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

    from orchestration.declarations.pipeline import Pipeline

MAX_RETRIES_TAG = "dagster/max_retries"  # Dagster's own


def batch_job(pipeline: Pipeline, *checks: dg.AssetChecksDefinition) -> UnresolvedAssetJobDefinition:
    """Return the job `PIPELINE_batch`; it sets its own executor, so that a project's default executor is unaffected.

    It runs a user's own checks of the outputs, and not `checks`, which are ours: those read the whole driver log.
    """
    return dg.define_asset_job(
        job_name(pipeline.name),
        # A selection of assets includes their checks.
        selection=dg.AssetSelection.assets(*(output.asset_key for output in pipeline.outputs.values()))
        - dg.AssetSelection.checks(*checks),
        executor_def=dg.in_process_executor,
        description=f"Runs one batch of {pipeline.name}; launched by its batch sensor.",
        # A batch's next attempt is another run: an instance with `run_retries` must not repeat one.
        tags={PIPELINE_TAG: pipeline.name, MAX_RETRIES_TAG: "0"},
    )

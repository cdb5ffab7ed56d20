"""Say in the events of a run that its attempt failed at a batch, with the link to the batch's page.

A run that has committed nothing has no other event with that link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg
import structlog

from orchestration.dagster_defs.shared.batch_plots import batches_key
from orchestration.dagster_defs.shared.page_links import page_of_batch

if TYPE_CHECKING:
    from datetime import datetime

    from orchestration.declarations.pipeline import Pipeline

log = structlog.get_logger(__name__)


def observe_failure(context: dg.AssetExecutionContext, pipeline: Pipeline, batch_time: datetime, cause: str) -> None:
    """Report an observation of the pipeline's `batches`. Never raises: the failure itself must be seen."""
    try:
        context.log_event(
            dg.AssetObservation(
                batches_key(pipeline),
                description=f"The batch of {batch_time.isoformat()} failed.",
                metadata={
                    "batch_time": dg.MetadataValue.text(batch_time.isoformat()),
                    "failed_because": dg.MetadataValue.text(cause),
                    **page_of_batch(pipeline, batch_time),
                },
            )
        )
    except Exception as error:  # noqa: BLE001  a storage may raise anything
        log.warning("can't report where the failed batch is shown", error=str(error)[:500])

"""Lead from Dagster's pages to the status page: as metadata of a pipeline's assets, and of a batch's events.

A pipeline is loaded without the link where the status page is off, or its address is none: the tracker reports that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg

from orchestration.declarations.settings import Settings
from orchestration.tracker.http.listen_address import ListenAddressError
from orchestration.tracker.http.status_address import batch_page, pipeline_page

if TYPE_CHECKING:
    from datetime import datetime

    from orchestration.declarations.pipeline import Pipeline

STATUS_PAGE = "status_page"


def page_of_pipeline(pipeline: Pipeline) -> dict[str, dg.MetadataValue]:
    """Return the link to a pipeline's page, by the address that is known when Dagster loads the pipeline."""
    try:
        return _link(pipeline_page(Settings(), pipeline.name))
    except ListenAddressError:
        return {}


def page_of_batch(pipeline: Pipeline, batch_time: datetime) -> dict[str, dg.MetadataValue]:
    """Return the link to a batch's page."""
    try:
        return _link(batch_page(Settings(), pipeline.name, batch_time))
    except ListenAddressError:
        return {}


def _link(page: str | None) -> dict[str, dg.MetadataValue]:
    return {} if page is None else {STATUS_PAGE: dg.MetadataValue.url(page)}

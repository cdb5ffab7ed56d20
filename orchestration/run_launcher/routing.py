"""Recognise batch runs, and the code location whose drivers they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import dagster as dg

# Tags that the batch sensor sets; a run with both is one batch of one pipeline.
BATCH_RUN_TAGS = ("forebay/pipeline", "forebay/batch_time")


def is_batch_run(tags: Mapping[str, str]) -> bool:
    """Return whether the tags are those of a run of one batch."""
    return all(tag in tags for tag in BATCH_RUN_TAGS)


def location_of(run: dg.DagsterRun) -> str | None:
    """Return the name of the run's code location; None if it has none (a job in a test)."""
    return None if run.remote_job_origin is None else run.remote_job_origin.location_name

"""Which runs are batch runs, and to which code location's drivers they belong."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import dagster as dg

# As the batch sensor sets them; a run with both is one batch of one pipeline.
BATCH_RUN_TAGS = ("forebay/pipeline", "forebay/batch_time")


def is_batch_run(tags: Mapping[str, str]) -> bool:
    """Whether the tags are those of a run of one batch."""
    return all(tag in tags for tag in BATCH_RUN_TAGS)


def location_of(run: dg.DagsterRun) -> str | None:
    """The name of the code location that the run was launched from; None where it has none (a job in a test)."""
    return None if run.remote_job_origin is None else run.remote_job_origin.location_name

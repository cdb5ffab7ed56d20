"""Find in Dagster's events why a run failed, and show it where Dagster lists runs.

A list of runs, and a job's tile, say that a run failed and not why: a tag does.
"""

from __future__ import annotations

import re
from typing import Any

import dagster as dg
import structlog

from tracker_store.long_texts import one_line, shortened

_MOST_EVENTS = 20  # newest events read: the reason why a run died at its start comes shortly before its end
_LONGEST = 1_000  # characters
_LONGEST_TAG = 250  # characters: a list shows a line
_NO_JOB = re.compile(r"(Could not find job '[^']*')\. Found: .*")
CAUSE_TAG = "forebay/failed_because"

log = structlog.get_logger(__name__)


def tag_cause(instance: dg.DagsterInstance, run_id: str, cause: str) -> None:
    """Give a run the first line of its cause as a tag. Never raises: the run's own events have the whole cause."""
    line = one_line(cause, _LONGEST_TAG)
    try:
        instance.add_run_tags(run_id, {CAUSE_TAG: line})
    except Exception as error:  # noqa: BLE001  a storage may raise anything
        log.warning("can't tag a run with the cause of its failure", run_id=run_id, error=shortened(str(error), 500))


def why_failed(instance: dg.DagsterInstance, run_id: str) -> str:
    """Return the innermost cause of the newest error in a run's events, else the failure's message, else ""."""
    records = instance.get_records_for_run(
        run_id,
        of_type={dg.DagsterEventType.RUN_FAILURE, dg.DagsterEventType.ENGINE_EVENT},
        limit=_MOST_EVENTS,
        ascending=False,
    ).records
    events = [event for record in records if (event := record.event_log_entry.dagster_event) is not None]
    errors = (error for event in events if (error := _error(event)) is not None)
    error = next(errors, None)
    if error is None:
        said = next((event.message or "" for event in events if event.is_run_failure), "")
    else:
        while error.cause is not None:
            error = error.cause
        said = error.message
    return shortened(_without_the_others(" ".join(said.split())), _LONGEST)


def _without_the_others(said: str) -> str:
    """Return Dagster's message on a job that there is not without the list of those that there are."""
    return _NO_JOB.sub(r"\1: the code that the run was given does not have its pipeline", said)


def _error(event: dg.DagsterEvent) -> Any | None:  # noqa: ANN401  an internal class of Dagster
    """Return the error of an event: of the run, of the process that runs it, or of its first failed step."""
    data = event.event_specific_data
    error = getattr(data, "error", None)
    if error is None and (step := getattr(data, "first_step_failure_event", None)) is not None:
        error = getattr(step.event_specific_data, "error", None)
    return error

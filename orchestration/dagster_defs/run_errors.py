"""Why a run failed, as far as Dagster's events of it say: for runs that died before they could tell the driver log.

Reads a run's newest events, and changes nothing.
"""

from __future__ import annotations

from typing import Any

import dagster as dg

_MOST_EVENTS = 20  # what says why a run died at its start comes shortly before its end
_LONGEST = 1_000  # characters


def why_failed(instance: dg.DagsterInstance, run_id: str) -> str:
    """Return the innermost cause of the newest error in a run's events, else what its failure says, else nothing."""
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
    return " ".join(said.split())[:_LONGEST]


def _error(event: dg.DagsterEvent) -> Any | None:  # noqa: ANN401  a class of Dagster's inside
    """The error that an event carries: of the run, of what runs it, or of the step that it failed by."""
    data = event.event_specific_data
    error = getattr(data, "error", None)
    if error is None and (step := getattr(data, "first_step_failure_event", None)) is not None:
        error = getattr(step.event_specific_data, "error", None)
    return error

"""Find in Dagster's events why a run failed, for runs that died before they could write to the driver log.

Reads a run's newest events, and changes nothing.
"""

from __future__ import annotations

from typing import Any

import dagster as dg

_MOST_EVENTS = 20  # newest events read: the reason why a run died at its start comes shortly before its end
_LONGEST = 1_000  # characters


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
    return " ".join(said.split())[:_LONGEST]


def _error(event: dg.DagsterEvent) -> Any | None:  # noqa: ANN401  an internal class of Dagster
    """Return the error of an event: of the run, of the process that runs it, or of its first failed step."""
    data = event.event_specific_data
    error = getattr(data, "error", None)
    if error is None and (step := getattr(data, "first_step_failure_event", None)) is not None:
        error = getattr(step.event_specific_data, "error", None)
    return error

"""Turn rows of the driver log into JSON: times as ISO 8601, durations in seconds.

Owns the form in which `forebay status`, `top` and `pipelines` give the same rows. It reads nothing.
"""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tracker_store.reports.status import PipelineStatus


def columns(row: DataclassInstance) -> dict[str, Any]:
    """Return a row by the names of its columns. Its values are not copied, which `asdict` does for each."""
    return {field.name: getattr(row, field.name) for field in fields(row)}


def pipeline_columns(row: PipelineStatus) -> dict[str, Any]:
    """Return a pipeline's row, and what follows from it."""
    return {**columns(row), "is_stale": row.is_stale, "intervals_behind": row.intervals_behind}


def to_json(content: object) -> str:
    """Return rows, and what contains them, as JSON on one line."""
    return json.dumps(content, default=_plain)


def _plain(value: object) -> object:
    """Return what JSON has no type for as a number of seconds or as text."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{value!r} has no form in JSON")

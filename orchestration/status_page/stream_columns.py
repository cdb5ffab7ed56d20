"""List a stream's columns for its page: their types as Spark names them, and where their values come from. Pure."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from receiver_runtime.sources.records.ddl import type_name

if TYPE_CHECKING:
    from tracker_store.reports.status_page import PageColumns


class ShownColumn(NamedTuple):
    """Hold a column as it is shown."""

    name: str
    type: str
    origin: str


def shown_columns(columns: PageColumns) -> list[ShownColumn]:
    """Return the columns of a stream's batches: those that its records have now first."""
    found: dict[str, tuple[str, str]] = {}
    for name, text in chain(columns.parsed, *columns.versions):
        found.setdefault(name.lower(), (name, text))
    return [ShownColumn(name, type_name(text), _origin(columns, name)) for name, text in found.values()]


def _origin(columns: PageColumns, name: str) -> str:
    if name in columns.required:
        return "record, NOT NULL"
    if any(name == parsed for parsed, _ in columns.parsed):
        return "record"
    return "source" if not columns.parsed or name.startswith("_") else "earlier records"

"""Read rows of views and tables into dataclasses: the one way of `status`, the status page, `/metrics` and the plots.

A dataclass names the columns that its reader needs, in their order, so that a view computes no others. Nothing here
takes locks or changes anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures

if TYPE_CHECKING:
    from collections.abc import Mapping

_Row = TypeVar("_Row")


def columns(row: type) -> str:
    """Return SQL for a dataclass's fields as a list of columns."""
    return ", ".join(f'"{name}"' for name in row.__slots__)  # type: ignore[attr-defined]


def read(
    connection: sa.Connection, row: type[_Row], source: str, values: Mapping[str, Any] | None = None
) -> list[_Row]:
    """Return the rows of `source`, which is SQL from FROM on, with the columns that `row` names. No locks."""
    return read_statement(connection, row, f"SELECT {columns(row)} {source}", values)


def read_statement(
    connection: sa.Connection, row: type[_Row], statement: str, values: Mapping[str, Any] | None = None
) -> list[_Row]:
    """Return what a whole statement selects, in the order of the fields of `row`. No locks."""
    with named_failures():
        found = connection.execute(sa.text(statement), values or {}).all()
    return [row(*each) for each in found]


def only(found: list[_Row]) -> _Row | None:
    """Return the one row, or None."""
    return found[0] if found else None

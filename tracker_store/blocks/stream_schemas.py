"""Read and write `stream_schemas`: the columns of a stream's records, version by version.

A receiver registers its columns once per start, before it reads anything; readers of a stream's blocks use all versions
together. A version is never changed or withdrawn.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.connection.engine import named_failures
from tracker_store.connection.errors import SchemaConflictError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class StreamSchema:
    """One version; `columns` are (name, Arrow type in text), in the receiver's order."""

    version: int
    fingerprint: str
    columns: tuple[tuple[str, str], ...]
    registered_at: datetime


def register_schema(
    connection: sa.Connection, *, receiver_id: int, fingerprint: str, columns: Sequence[tuple[str, str]]
) -> int:
    """Make a receiver's columns a version of its stream's; returns the version's number. Idempotent.

    Locks: none if the version is known, else the stream's row (see functions/blocks/register_schema.sql). Raises
    SchemaConflictError, naming columns and types, if a column has another type than before.
    """
    with named_failures():
        row = connection.execute(
            sa.text("""
                SELECT outcome, version, detail
                FROM forebay.register_schema(:receiver, :fingerprint, CAST(:columns AS jsonb))
            """),
            {"receiver": receiver_id, "fingerprint": fingerprint, "columns": json.dumps([list(c) for c in columns])},
        ).one()
    if row.outcome == "conflict":
        raise SchemaConflictError(row.detail)
    version: int = row.version
    return version


def schemas_of_stream(connection: sa.Connection, stream_id: int) -> list[StreamSchema]:
    """Return every version of a stream's columns, oldest first. No locks."""
    with named_failures():
        rows = connection.execute(
            sa.text("""
                SELECT version, fingerprint, columns, registered_at
                FROM forebay.stream_schemas
                WHERE stream_id = :stream
                ORDER BY version
            """),
            {"stream": stream_id},
        ).all()
    return [
        StreamSchema(row.version, row.fingerprint, tuple((name, kind) for name, kind in row.columns), row.registered_at)
        for row in rows
    ]

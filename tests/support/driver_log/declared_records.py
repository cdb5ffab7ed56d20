"""Make streams typed, as `forebay apply` would, without a pipeline."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.schema.declarations import RECORDS_FIELD

if TYPE_CHECKING:
    from receiver_runtime.sources.records.declared import Records


def declare_records(connection: sa.Connection, records: Records) -> None:
    """Let every stream of the driver log have these records."""
    connection.execute(
        sa.text("""
            UPDATE forebay.streams
            SET declaration = jsonb_set(declaration, ARRAY['source', :field], CAST(:records AS jsonb))
        """),
        {"field": RECORDS_FIELD, "records": json.dumps(records.model_dump(mode="json"))},
    )

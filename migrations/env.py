"""Alembic's environment: runs the migrations on the connection that `tracker_store.migrate` hands over."""

from __future__ import annotations

from alembic import context
from sqlalchemy import text

from tracker_store.schema import SCHEMA, metadata

connection = context.config.attributes["connection"]
connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
connection.commit()
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table_schema=SCHEMA,
    include_schemas=True,
    include_name=lambda name, kind, _parents: kind != "schema" or name == SCHEMA,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()

"""Alembic's environment: runs the migrations on the connection that `tracker_store.migrate` hands over.

Functions, views and rights have no versions of their own: they are dropped before the first migration and installed as
the installation has them after the last, all in one transaction. So a migration changes tables alone, and a running
receiver finds the old functions or the new ones, never none.
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import text

from tracker_store.migrate import current_revision, newest_revision
from tracker_store.programs import drop_statements, install_statements, installed_fingerprint, programs_fingerprint
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
)
with context.begin_transaction():
    before = current_revision(connection)
    up_to_date = before == newest_revision() and installed_fingerprint(connection) == programs_fingerprint()
    if context.config.attributes["down"] or not up_to_date:
        for statement in drop_statements():
            connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
    context.run_migrations()
    if current_revision(connection) == newest_revision() and not up_to_date:
        for statement in install_statements():
            connection.exec_driver_sql(statement, execution_options={"no_parameters": True})

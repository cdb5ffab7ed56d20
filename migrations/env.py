"""Alembic's environment: runs the migrations on the connection that `tracker_store.install.migrate` hands over.

Functions, views and rights have no versions of their own: they are installed as the installation has them after the
last migration, all in one transaction. Views are dropped before the first, for they hold on to columns; functions are
replaced in their places, for they may be running. So a migration changes tables alone, and a running receiver finds the
old functions or the new ones, never none.
"""

from __future__ import annotations

from alembic import context
from sqlalchemy import text

from tracker_store.install.migrate import current_revision, newest_revision
from tracker_store.install.programs import install, installed_fingerprint, programs_fingerprint, uninstall
from tracker_store.schema.tables import SCHEMA, metadata

connection = context.config.attributes["connection"]
connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
connection.commit()
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table_schema=SCHEMA,
    include_schemas=True,
    include_name=lambda name, kind, _parents: kind != "schema" or name == SCHEMA,
    on_version_apply=context.config.attributes["told"],
)
with context.begin_transaction():
    before = current_revision(connection)
    up_to_date = before == newest_revision() and installed_fingerprint(connection) == programs_fingerprint()
    if context.config.attributes["down"] or not up_to_date:
        uninstall(connection, functions=context.config.attributes["down"])
    context.run_migrations()
    if current_revision(connection) == newest_revision() and not up_to_date:
        install(connection)

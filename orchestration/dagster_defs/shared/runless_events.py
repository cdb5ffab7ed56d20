"""Delete old runless asset events from Dagster: those reported for batches and minutes, which belong to no run.

Dagster can't do this: it deletes events only with their run, so it keeps runless events for ever. So this module uses
the tables of its event log, which are not a public interface: the version is pinned, and a test covers what is used
here. An asset keeps the newest events of each kind. If the event log is not one of Dagster's own SQL storages, nothing
is deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa
from dagster._core.storage.event_log import SqlEventLogStorage
from dagster._core.storage.event_log.schema import (
    AssetCheckExecutionsTable,
    AssetEventTagsTable,
    SqlEventLogStorageTable,
)

if TYPE_CHECKING:
    import dagster as dg

# The run id that Dagster writes for an event without a run.
_NO_RUN = ""
_PER_STATEMENT = 2_000


def prune_runless_events(instance: dg.DagsterInstance, asset_key: dg.AssetKey, *, keep: int) -> int:
    """Keep an asset's newest `keep` runless events of each kind and results of each check; return how many it deleted.

    Deletes at most 2,000 rows of each kind in a call; the rest waits for the next call.
    """
    storage = instance.event_log_storage
    if not isinstance(storage, SqlEventLogStorage):
        return 0
    key = asset_key.to_string()
    events, tags, checks = SqlEventLogStorageTable, AssetEventTagsTable, AssetCheckExecutionsTable
    pruned = 0
    with storage.index_connection() as connection:
        of_asset = sa.and_(events.c.asset_key == key, events.c.run_id == _NO_RUN)
        for [kind] in connection.execute(sa.select(events.c.dagster_event_type).where(of_asset).distinct()).all():
            of_kind = sa.and_(of_asset, events.c.dagster_event_type == kind)
            old = _beyond(connection, events, of_kind, keep)
            if old:
                connection.execute(sa.delete(tags).where(tags.c.event_id.in_(old)))
                connection.execute(sa.delete(events).where(events.c.id.in_(old)))
            pruned += len(old)
        results = sa.and_(checks.c.asset_key == key, checks.c.run_id == _NO_RUN)
        for [name] in connection.execute(sa.select(checks.c.check_name).where(results).distinct()).all():
            old = _beyond(connection, checks, sa.and_(results, checks.c.check_name == name), keep)
            if old:
                connection.execute(sa.delete(checks).where(checks.c.id.in_(old)))
            pruned += len(old)
    return pruned


def _beyond(connection: sa.Connection, table: sa.Table, where: sa.ColumnElement[bool], keep: int) -> list[int]:
    """Return the ids of rows that have at least `keep` newer ones, oldest first, at most _PER_STATEMENT."""
    newest = sa.select(table.c.id).where(where).order_by(table.c.id.desc()).offset(keep).limit(1).scalar_subquery()
    rows = sa.select(table.c.id).where(where, table.c.id <= newest).order_by(table.c.id).limit(_PER_STATEMENT)
    return [row.id for row in connection.execute(rows)]

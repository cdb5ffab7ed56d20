"""Keeps the connections of Dagster's storage on Postgres, in the instance that `forebay up` creates.

Outside of its webserver, Dagster's own storage opens a connection for each statement. Its daemon makes about twenty
statements a second, so more than a quarter of a system's CPU time went to Postgres starting processes and checking
passwords. Here all storages of a process, of every instance that it makes, share one pool. The pool tests a
connection before each use, so that no statement fails after a restart of the server, and drops one to a standby.

It changes nothing else: tables, statements and errors are Dagster's.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self, cast

import sqlalchemy as sa
from dagster_postgres import DagsterPostgresStorage
from dagster_postgres.utils import create_pg_engine, pg_url_from_config

from tracker_store.engine import CONNECTION_TIMEOUTS, leave_a_read_only_server

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster._core.storage.config import PostgresStorageConfig
    from dagster._serdes import ConfigurableClassData

# How many connections an idle process keeps; more are opened when more threads need them, and closed again.
KEPT_CONNECTIONS = 2
RECYCLE_SECONDS = 3_600


@lru_cache(maxsize=1)
def _engine(url: str) -> sa.Engine:
    """Return the process's engine. Dagster makes an instance for each tick of a sensor and never closes it."""
    engine = create_pg_engine(
        url,
        isolation_level="AUTOCOMMIT",
        pool_size=KEPT_CONNECTIONS,
        # No limit, so that no thread waits for another's connection.
        max_overflow=-1,
        pool_pre_ping=True,
        pool_recycle=RECYCLE_SECONDS,
        connect_args=dict(CONNECTION_TIMEOUTS),
    )
    sa.event.listen(engine, "handle_error", leave_a_read_only_server)
    # A user's code may fork: two processes must not use one connection.
    os.register_at_fork(after_in_child=lambda: engine.dispose(close=False))
    return engine


class PooledPostgresStorage(DagsterPostgresStorage):
    """Replace Dagster's `storage: postgres`; takes the same configuration keys except `auth_provider`."""

    def __init__(
        self,
        postgres_url: str,
        should_autocreate_tables: bool = True,  # noqa: FBT002  as Dagster's
        inst_data: ConfigurableClassData | None = None,
    ) -> None:
        """Make the storage as Dagster's own is made. Raises what that raises if the server does not answer."""
        super().__init__(postgres_url, should_autocreate_tables, inst_data)
        for storage in (self._run_storage, self._event_log_storage, self._schedule_storage):
            storage._engine = _engine(postgres_url)  # noqa: SLF001  Dagster has no other way

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> Self:
        """Make the storage from dagster.yaml; Dagster calls it."""
        return cls(
            pg_url_from_config(cast("PostgresStorageConfig", config_value)),
            config_value.get("should_autocreate_tables", True),
            inst_data=inst_data,
        )

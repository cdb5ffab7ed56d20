"""Dagster's storage on Postgres, with connections that are kept: for the instance that `forebay up` makes.

Dagster's own opens a connection for each statement outside of its webserver. Its daemon makes about twenty statements a
second, so that more than a quarter of a system's CPU time went to Postgres starting processes and checking passwords.
Here all storages of a process, of every instance that it makes, share one pool. A connection is looked at before it is
used, so that a server that was started again costs no statement, and given up where it leads to a standby.

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

# Of a process at rest; what more threads need at one time is opened, and closed again.
KEPT_CONNECTIONS = 2
RECYCLE_SECONDS = 3_600


@lru_cache(maxsize=1)
def _engine(url: str) -> sa.Engine:
    """One for the process: Dagster makes an instance for each tick of a sensor, and leaves it to the collector."""
    engine = create_pg_engine(
        url,
        isolation_level="AUTOCOMMIT",
        pool_size=KEPT_CONNECTIONS,
        # No thread waits for another's connection.
        max_overflow=-1,
        pool_pre_ping=True,
        pool_recycle=RECYCLE_SECONDS,
        connect_args=dict(CONNECTION_TIMEOUTS),
    )
    sa.event.listen(engine, "handle_error", leave_a_read_only_server)
    # A user's code may fork: two processes must not speak on one connection.
    os.register_at_fork(after_in_child=lambda: engine.dispose(close=False))
    return engine


class PooledPostgresStorage(DagsterPostgresStorage):
    """As Dagster's `storage: postgres`, and configured by the same keys except `auth_provider`."""

    def __init__(
        self,
        postgres_url: str,
        should_autocreate_tables: bool = True,  # noqa: FBT002  as Dagster's
        inst_data: ConfigurableClassData | None = None,
    ) -> None:
        """Make it as Dagster's own is made. Raises what that raises where the server does not answer."""
        super().__init__(postgres_url, should_autocreate_tables, inst_data)
        for storage in (self._run_storage, self._event_log_storage, self._schedule_storage):
            storage._engine = _engine(postgres_url)  # noqa: SLF001  Dagster has no other way

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> Self:
        """Made by Dagster from dagster.yaml."""
        return cls(
            pg_url_from_config(cast("PostgresStorageConfig", config_value)),
            config_value.get("should_autocreate_tables", True),
            inst_data=inst_data,
        )

"""Keeps the connections of Dagster's storage on Postgres, in the instance that `forebay up` creates.

Outside of its webserver, Dagster's own storage opens a connection for each statement. Its daemon makes about twenty
statements a second, so more than a quarter of a system's CPU time went to Postgres starting processes and checking
passwords. In its webserver, each storage keeps a connection of its own, and the first statement of each fails after a
restart of the server: a launch that fails between two statements leaves a run that no process starts. Here all storages
of a process, of every instance that it makes, share one pool. The pool tests a connection before each use, so that no
statement fails after a restart of the server, and drops one to a standby.

Dagster's own storage also lists the schema's tables before most statements, because an older release of Dagster may
have made them. Half of an idle system's CPU time in Postgres was for that. Here a process remembers each table, column
and finished migration that it has found: Dagster never removes one.

It changes nothing else: tables, statements and errors are Dagster's.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self, cast

import sqlalchemy as sa
from dagster_postgres import (
    DagsterPostgresStorage,
    PostgresEventLogStorage,
    PostgresRunStorage,
    PostgresScheduleStorage,
)
from dagster_postgres.utils import create_pg_engine, pg_url_from_config, set_pg_statement_timeout

from tracker_store.connection.engine import CONNECTION_TIMEOUTS, leave_a_read_only_server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dagster._core.storage.config import PostgresStorageConfig
    from dagster._serdes import ConfigurableClassData

# How many connections an idle process keeps; more are opened when more threads need them, and closed again.
KEPT_CONNECTIONS = 2
RECYCLE_SECONDS = 3_600


@dataclass(frozen=True, slots=True)
class _Shared:
    """Hold what all storages of a process share: the pool, and what they have found in the database."""

    engine: sa.Engine
    found: set[str] = field(default_factory=set)

    def has(self, what: str, look: Callable[[], bool]) -> bool:
        """Return whether it is there: look until it is, and never again."""
        if what not in self.found and look():
            self.found.add(what)
        return what in self.found


@lru_cache(maxsize=1)
def _shared(url: str) -> _Shared:
    """Return what the process shares. Dagster makes an instance for each tick of a sensor and never closes it."""
    return _Shared(_pool(url))


@lru_cache(maxsize=1)
def _webservers_pool(url: str, statement_timeout: int) -> sa.Engine:
    """Return the pool of the webserver's process, whose statements end after `statement_timeout` ms."""
    engine = _pool(url)
    sa.event.listen(engine, "connect", lambda made, _: set_pg_statement_timeout(made, statement_timeout))
    return engine


def _pool(url: str) -> sa.Engine:
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


class _Pooled:
    """Use the process's pool in place of a storage's own; the first base of each."""

    postgres_url: str

    def __init__(self, postgres_url: str, shared: _Shared) -> None:
        super().__init__(postgres_url, should_autocreate_tables=False)  # type: ignore[call-arg]  # the storage's own
        self._engine = shared.engine
        self._shared = shared

    def optimize_for_webserver(self, statement_timeout: int, pool_recycle: int, max_overflow: int) -> None:  # noqa: ARG002
        self._engine = _webservers_pool(self.postgres_url, statement_timeout)


class _RunStorage(_Pooled, PostgresRunStorage):
    def has_run_stats_index_cols(self) -> bool:
        return self._shared.has("runs.start_time", super().has_run_stats_index_cols)

    def has_backfill_id_column(self) -> bool:
        return self._shared.has("runs.backfill_id", super().has_backfill_id_column)

    def has_built_index(self, migration_name: str) -> bool:
        look = super().has_built_index
        return self._shared.has(f"runs: {migration_name}", lambda: look(migration_name))


class _EventLogStorage(_Pooled, PostgresEventLogStorage):
    def _has_asset_key_col_on_connection(self, conn: sa.Connection, column_name: str) -> bool:
        look = super()._has_asset_key_col_on_connection
        return self._shared.has(f"asset_keys.{column_name}", lambda: look(conn, column_name))

    def has_secondary_index(self, name: str) -> bool:
        look = super().has_secondary_index
        return self._shared.has(f"events: {name}", lambda: look(name))


class _ScheduleStorage(_Pooled, PostgresScheduleStorage):
    def has_instigators_table(self) -> bool:
        # Without a connection, if it was found before.
        return self._shared.has("instigators", super().has_instigators_table)

    def _has_instigators_table(self, conn: sa.Connection) -> bool:
        look = super()._has_instigators_table
        return self._shared.has("instigators", lambda: look(conn))

    def has_secondary_index_table(self) -> bool:
        return self._shared.has("secondary_indexes", super().has_secondary_index_table)

    def has_built_index(self, migration_name: str) -> bool:
        look = super().has_built_index
        return self._shared.has(f"schedules: {migration_name}", lambda: look(migration_name))


class PooledPostgresStorage(DagsterPostgresStorage):
    """Replace Dagster's `storage: postgres`; takes the same configuration keys except `auth_provider`."""

    def __init__(
        self,
        postgres_url: str,
        should_autocreate_tables: bool = True,  # noqa: FBT002  as Dagster's
        inst_data: ConfigurableClassData | None = None,
    ) -> None:
        """Make the storage as Dagster's own is made. Raises what that raises if the server does not answer."""
        shared = _shared(postgres_url)
        is_first = "tables" not in shared.found
        super().__init__(postgres_url, should_autocreate_tables and is_first, inst_data)
        shared.found.add("tables")
        self.should_autocreate_tables = should_autocreate_tables
        # Dagster has no other way to use another engine.
        self._run_storage = _RunStorage(postgres_url, shared)
        self._event_log_storage = _EventLogStorage(postgres_url, shared)
        self._schedule_storage = _ScheduleStorage(postgres_url, shared)

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> Self:
        """Make the storage from dagster.yaml; Dagster calls it."""
        return cls(
            pg_url_from_config(cast("PostgresStorageConfig", config_value)),
            config_value.get("should_autocreate_tables", True),
            inst_data=inst_data,
        )

"""Test the storage of Forebay's own Dagster instance: Dagster's, with pooled connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dagster as dg
import pytest
import sqlalchemy as sa

from forebay.cli.instance.dagster_home import (
    DATABASE_VARIABLE,
    dagster_database_url,
    ensure_dagster_schema,
    write_dagster_home,
)
from orchestration.dagster_instance.dagster_storage import KEPT_CONNECTIONS
from tracker_store.connection.engine import psycopg2_url

if TYPE_CHECKING:
    from pathlib import Path

# Autovacuum works in the database too, and has no name of an application either.
_DAGSTERS = (
    "FROM pg_stat_activity WHERE datname = current_database() AND pid != pg_backend_pid() AND application_name = '' "
    "AND backend_type = 'client backend'"
)
# A pid tells a kept connection from a new one; its last statement says who made it.
_CONNECTIONS = sa.text(f"SELECT pid, query {_DAGSTERS}")
_END_CONNECTIONS = sa.text(f"SELECT count(pg_terminate_backend(pid, 5000)) {_DAGSTERS}")


def _instance(directory: Path, *, is_webserver: bool = False) -> dg.DagsterInstance:
    instance = dg.DagsterInstance.from_config(str(directory))
    if is_webserver:
        instance.optimize_for_webserver(statement_timeout=5000, pool_recycle=3600, max_overflow=20)
    return instance


def _ask(instance: dg.DagsterInstance) -> None:
    """Execute statements on runs, events and schedules, as Dagster's daemon does."""
    instance.get_runs(limit=1)
    instance.get_run_records(limit=1)
    instance.get_latest_materialization_event(dg.AssetKey("counts"))
    instance.all_instigator_state()


def _connections(watching: sa.Connection) -> dict[int, str]:
    return {row.pid: row.query for row in watching.execute(_CONNECTIONS)}


@pytest.mark.parametrize("is_webserver", [False, True])
def test_connections_are_kept_and_shared_and_a_restarted_server_costs_no_statement(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch, *, is_webserver: bool
) -> None:
    ensure_dagster_schema(database_url)
    monkeypatch.setenv(DATABASE_VARIABLE, dagster_database_url(database_url))
    write_dagster_home(tmp_path, code_server=tmp_path / "socket")
    watcher = sa.create_engine(
        psycopg2_url(database_url), isolation_level="AUTOCOMMIT", connect_args={"application_name": "watcher"}
    )
    with watcher.connect() as watching, _instance(tmp_path, is_webserver=is_webserver) as instance:
        _ask(instance)
        kept = _connections(watching).keys()
        assert 0 < len(kept) <= KEPT_CONNECTIONS
        # The code server makes an instance for each tick of a sensor.
        for _ in range(3):
            with _instance(tmp_path, is_webserver=is_webserver) as another:
                _ask(another)
        now = _connections(watching)
        assert now.keys() <= kept, now
        assert watching.execute(_END_CONNECTIONS).scalar_one() == len(kept)
        _ask(instance)
        assert not _connections(watching).keys() & kept
    watcher.dispose()


def test_tables_are_looked_for_once_by_all_instances_of_a_process(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_dagster_schema(database_url)
    monkeypatch.setenv(DATABASE_VARIABLE, dagster_database_url(database_url))
    write_dagster_home(tmp_path, code_server=tmp_path / "socket")
    statements: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_more: object) -> None:
        statements.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        with _instance(tmp_path) as instance:
            _ask(instance)
            _observe(instance)
        assert [statement for statement in statements if "pg_catalog" in statement] != []
        statements.clear()
        with _instance(tmp_path) as another:
            _ask(another)
            _observe(another)
        assert statements != []
        assert [statement for statement in statements if "pg_catalog" in statement] == []
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


def _observe(instance: dg.DagsterInstance) -> None:
    """Report an event of an asset, as the observation sensor does."""
    instance.report_runless_asset_event(dg.AssetObservation("counts"))

"""Check that the schema is what the migrations make, up and down, and nothing else."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from tests.support.driver_log.log import make_log
from tests.support.polling import eventually
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import DriverLogError
from tracker_store.install import migrate
from tracker_store.install.programs import FUNCTIONS
from tracker_store.reports.checks import functions_are_the_files, revision_is_the_newest
from tracker_store.schema.tables import SCHEMA, metadata
from tracker_store.views import VIEWS

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping


def test_models_and_migrations_do_not_drift(database_url: str) -> None:
    def ours(name: str | None, kind: str, parents: MutableMapping[str, str | None]) -> bool:
        return name == SCHEMA if kind == "schema" else parents.get("schema_name") == SCHEMA

    # A user with the schema's own name has it as the default schema, which Alembic then reflects without a name.
    plain = sa.create_engine(database_url, connect_args={"options": "-csearch_path=public"})
    with connect(plain) as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_schemas": True,
                "include_name": ours,
                "version_table_schema": SCHEMA,
                "compare_type": True,
                "compare_server_default": True,
            },
        )
        assert compare_metadata(context, metadata) == []
    plain.dispose()


def test_tables_have_the_storage_parameters_that_are_declared(engine: sa.Engine) -> None:
    """Check this because Alembic's comparison does not: without them, autovacuum comes too late to hot tables."""
    declared = {
        table.name: {f"{name}={value}" for name, value in parameters.items()}
        for table in metadata.tables.values()
        if (parameters := table.dialect_options["postgresql"]["with"])
    }
    statement = sa.text(
        "SELECT relname, reloptions FROM pg_class WHERE relnamespace = CAST(:schema AS regnamespace) "
        "AND relkind = 'r' AND reloptions IS NOT NULL"
    )
    with connect(engine) as connection:
        found = {row.relname: set(row.reloptions) for row in connection.execute(statement, {"schema": SCHEMA})}
    assert "processes" in declared
    assert found == declared


def test_down_and_up_again_with_data_in_it(engine: sa.Engine, database_url: str) -> None:
    with connect(engine) as connection:
        make_log(connection)
    migrate.downgrade(database_url, "base")
    with connect(engine) as connection:
        assert migrate.current_revision(connection) is None
        assert sa.inspect(connection).get_table_names(SCHEMA) == ["alembic_version"]
    migrate.upgrade(database_url)
    with connect(engine) as connection:
        assert migrate.current_revision(connection) == migrate.newest_revision()
        make_log(connection)


def test_functions_and_views_of_another_version_are_replaced(engine: sa.Engine, database_url: str) -> None:
    with connect(engine) as connection:
        # As another version has them.
        connection.exec_driver_sql("COMMENT ON SCHEMA forebay IS 'functions, views and rights: 0123'")
        connection.exec_driver_sql("DROP FUNCTION forebay.heartbeat")
        connection.exec_driver_sql("DROP VIEW forebay.driver_log")
        assert not revision_is_the_newest(connection).passed
        make_log(connection)
    migrate.upgrade(database_url)
    with connect(engine) as connection:
        assert revision_is_the_newest(connection).passed
        assert functions_are_the_files(connection).passed
        assert "driver_log" in sa.inspect(connection).get_view_names(SCHEMA)


def test_two_processes_may_upgrade_at_once(engine: sa.Engine, database_url: str) -> None:
    migrate.downgrade(database_url, "base")
    with ThreadPoolExecutor(2) as pool:
        for upgrade in [pool.submit(migrate.upgrade, database_url) for _ in range(2)]:
            upgrade.result(60)
    with connect(engine) as connection:
        assert migrate.current_revision(connection) == migrate.newest_revision()


@contextmanager
def reading_person(database_url: str) -> Iterator[int]:
    """Hold a table as a backup does; yield the session's process id."""
    plain = sa.create_engine(database_url, connect_args={"application_name": "a backup"})
    with plain.connect() as person:
        pid: int = person.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        person.execute(sa.text("SELECT FROM forebay.dead_letters"))
        yield pid
    plain.dispose()


def test_a_migration_that_is_blocked_names_the_session_and_changes_nothing(
    engine: sa.Engine, database_url: str, version_after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(engine) as connection:
        before = migrate.current_revision(connection)
    monkeypatch.setattr(migrate, "_BLOCKED_SECONDS", 0.0)
    with reading_person(database_url) as pid, pytest.raises(DriverLogError) as raised:
        migrate.upgrade(database_url)
    for said in (f"pid {pid} ", "a backup", "forebay.dead_letters", "pg_terminate_backend"):
        assert said in str(raised.value)
    with connect(engine) as connection:
        assert migrate.current_revision(connection) == before != version_after


def test_a_migration_goes_on_when_the_session_that_blocked_it_has_ended(
    engine: sa.Engine, database_url: str, version_after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that others go on meanwhile: they wait behind the migration for the time of one lock only."""
    paused = threading.Event()

    def pause(_: float) -> None:
        paused.set()
        time.sleep(0.1)

    monkeypatch.setattr(migrate, "time", SimpleNamespace(monotonic=time.monotonic, sleep=pause))

    with ThreadPoolExecutor(1) as pool:
        with reading_person(database_url):
            upgrade = pool.submit(migrate.upgrade, database_url)
            assert paused.wait(60), "the migration gave the table free between two attempts"
        upgrade.result(60)
    with connect(engine) as connection:
        assert migrate.current_revision(connection) == version_after


def test_a_migration_that_deadlocks_with_a_writer_is_run_again(
    engine: sa.Engine, database_url: str, version_after: str
) -> None:
    """Check this because a writer that is called all the time met a migration that takes tables in another order."""

    def migration_waits_for_segments(looker: sa.Connection) -> bool:
        table = "relation = 'forebay.log_segments'::regclass"
        waiting = looker.exec_driver_sql(f"SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND {table})")
        return bool(waiting.scalar_one())

    with (
        ThreadPoolExecutor(1) as pool,
        engine.connect().execution_options(isolation_level="READ COMMITTED") as writer,
        connect(engine) as looker,
    ):
        # So that the server ends the migration's transaction, and not this one.
        writer.exec_driver_sql("SET deadlock_timeout = '60s'")
        writer.exec_driver_sql("SELECT FROM forebay.log_segments FOR UPDATE")
        upgrade = pool.submit(migrate.upgrade, database_url)
        eventually(lambda: migration_waits_for_segments(looker), "the migration waits for the writer's table")
        writer.exec_driver_sql("SELECT FROM forebay.dead_letters")
        writer.commit()
        upgrade.result(60)
        assert migrate.current_revision(looker) == version_after


def test_every_function_view_and_table_exists_with_a_comment(engine: sa.Engine) -> None:
    with connect(engine) as connection:
        functions = connection.execute(
            sa.text("SELECT proname FROM pg_proc WHERE pronamespace = 'forebay'::regnamespace ORDER BY 1")
        ).scalars()
        assert list(functions) == sorted(FUNCTIONS)
        comments: dict[str, str | None] = {
            row.relname: row.comment
            for row in connection.execute(
                sa.text(
                    "SELECT relname, obj_description(oid) AS comment FROM pg_class "
                    "WHERE relnamespace = 'forebay'::regnamespace AND relkind IN ('r', 'v')"
                )
            )
        }
    del comments["alembic_version"]
    assert comments.keys() == {table.name for table in metadata.sorted_tables} | VIEWS.keys()
    assert [name for name, comment in comments.items() if not comment] == []

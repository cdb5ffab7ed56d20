"""Test that Dagster's tables belong to the login of services, also those that a superuser made or restored."""

from __future__ import annotations

import os

import pytest
import sqlalchemy as sa

from forebay.cli.instance.dagster_home import ensure_dagster_schema
from tracker_store.connection.engine import connect


def test_tables_of_a_superuser_get_the_owner(engine: sa.Engine, database_url: str) -> None:
    owner = f"forebay_test_owner_{os.getpid()}"
    with connect(engine) as connection:
        connection.exec_driver_sql("CREATE SCHEMA dagster")
        connection.exec_driver_sql("CREATE TABLE dagster.runs (id bigserial PRIMARY KEY, body text)")
        connection.exec_driver_sql(f"CREATE ROLE {owner}")
        try:
            for _ in range(2):
                ensure_dagster_schema(database_url, owner=owner)
            connection.exec_driver_sql(f"SET ROLE {owner}")
            connection.exec_driver_sql("INSERT INTO dagster.runs (body) VALUES ('x')")
            connection.exec_driver_sql("ALTER TABLE dagster.runs ADD COLUMN more text")
            connection.exec_driver_sql("CREATE TABLE dagster.more (id bigint)")
            with pytest.raises(sa.exc.ProgrammingError, match="permission denied"):
                connection.exec_driver_sql("SELECT * FROM forebay.streams")
        finally:
            connection.exec_driver_sql("RESET ROLE")
            connection.exec_driver_sql(f"DROP OWNED BY {owner}")
            connection.exec_driver_sql(f"DROP ROLE {owner}")

"""Check that Dagster's own storage on Postgres gets the driver that dagster-postgres uses."""

from __future__ import annotations

from dagster_postgres.utils import create_pg_engine, pg_url_from_config


def test_the_url_that_dagster_makes_of_a_hostname_is_for_psycopg2() -> None:
    """Check this because from SQLAlchemy 2.1 on it is for psycopg 3, which dagster-postgres does not bring."""
    url = pg_url_from_config(
        {"postgres_db": {"hostname": "db", "username": "me", "password": "x", "db_name": "dagster", "port": 5432}}
    )
    engine = create_pg_engine(url)
    assert engine.driver == "psycopg2"
    engine.dispose()

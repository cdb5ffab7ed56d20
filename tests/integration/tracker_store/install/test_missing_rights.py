"""Test what a login is told that lacks a right for an upgrade, in each way of setting up a database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from tracker_store.connection.engine import connect, psycopg2_url
from tracker_store.connection.errors import DriverLogError
from tracker_store.install.migrate import naming_missing_rights

if TYPE_CHECKING:
    from collections.abc import Iterator

LOGIN, OWNER = "forebay_test_login", "forebay_test_owner"
MAKE_TABLE = "CREATE TABLE forebay.more ()"
GRANT_CREATE = f"GRANT CREATE ON DATABASE {{}} TO {LOGIN};"
OWNER_LOGS_IN = f"belongs to {OWNER}: let FOREBAY_DATABASE_URL name that login for `forebay db`"


@pytest.fixture
def owner(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Yield the connection of an administrator, in a database with a driver log and two more roles."""
    with connect(engine) as connection:
        connection.exec_driver_sql(f"CREATE ROLE {LOGIN} LOGIN PASSWORD 'pl4nted'")
        connection.exec_driver_sql(f"CREATE ROLE {OWNER} NOLOGIN")
        connection.commit()
        try:
            yield connection
        finally:
            connection.rollback()
            connection.exec_driver_sql("ALTER SCHEMA forebay OWNER TO CURRENT_USER")
            for role in (LOGIN, OWNER):
                connection.exec_driver_sql(f"DROP OWNED BY {role}; DROP ROLE {role}")
            connection.commit()


@pytest.mark.parametrize(
    ("setup", "statement", "advice"),
    [
        # Before the first upgrade: managed Postgres, without a superuser, and the owner of the database grants.
        (["ALTER SCHEMA forebay RENAME TO other"], "CREATE SCHEMA forebay", GRANT_CREATE),
        # A service's login, beside an owner that is a login, and one that is a role for its members.
        ([f"ALTER ROLE {OWNER} LOGIN"], MAKE_TABLE, OWNER_LOGS_IN),
        ([], MAKE_TABLE, f"name a login that is a member of it for `forebay db` and `forebay up`, or `GRANT {OWNER}"),
        # A member that must say SET ROLE.
        ([f"ALTER ROLE {LOGIN} NOINHERIT", f"GRANT {OWNER} TO {LOGIN}"], MAKE_TABLE, "does not inherit its rights: `"),
        # The owner of the driver log, and a member of it, where Dagster's schema is missing.
        ([f"ALTER SCHEMA forebay OWNER TO {LOGIN}"], "CREATE SCHEMA forebay_dagster_too", GRANT_CREATE),
        ([f"GRANT {OWNER} TO {LOGIN}"], "CREATE SCHEMA forebay_dagster_too", GRANT_CREATE),
        # It may all that an upgrade needs: what is missing is something else.
        (
            [f"ALTER SCHEMA forebay OWNER TO {LOGIN}", f"GRANT CREATE ON DATABASE {{}} TO {LOGIN}"],
            "CREATE ROLE forebay_test_third",
            "An administrator of this Postgres can grant what is named there.",
        ),
    ],
)
def test_what_is_advised_fits_the_setup_and_helps(
    owner: sa.Connection, database_url: str, setup: list[str], statement: str, advice: str
) -> None:
    database = owner.execute(sa.text("SELECT quote_ident(current_database())")).scalar_one()
    owner.exec_driver_sql(f"ALTER SCHEMA forebay OWNER TO {OWNER}")
    for one in setup:
        owner.exec_driver_sql(one.format(database))
    owner.commit()
    url = psycopg2_url(database_url).set(username=LOGIN, password="pl4nted").render_as_string(hide_password=False)

    def run() -> None:
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with naming_missing_rights(url), connect(engine) as connection:
            connection.exec_driver_sql(statement)
            connection.rollback()

    with pytest.raises(DriverLogError) as raised:
        run()
    said = str(raised.value)
    assert advice.format(database) in said
    if setup == ["ALTER SCHEMA forebay RENAME TO other"]:
        owner.exec_driver_sql("ALTER SCHEMA other RENAME TO forebay")
        owner.commit()
        return
    advised = [part for part in said.split("`") if part.startswith(("GRANT ", "ALTER ROLE "))]
    for sql in advised[:1]:
        owner.exec_driver_sql(sql)
        owner.commit()
        run()

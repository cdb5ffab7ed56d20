"""Install the login that services use on the embedded server: the rights of the driver log's roles, and no more.

The superuser could run programs on the machine and change any row. Only migrations, and this module, connect as it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg2.extensions import encrypt_password
from psycopg2.sql import SQL, Identifier

if TYPE_CHECKING:
    from psycopg2.extensions import connection

SERVICES = "forebay_services"

# What agents, receivers, trackers, Dagster and batch drivers need together; they share one environment.
_ROLES = ("forebay_receiver", "forebay_driver", "forebay_reader")


def install_services_login(superuser: connection, password: str) -> None:
    """Create the login if it is missing, and set its password and roles. Needs the driver log's roles. Idempotent.

    Locks: the catalogues'.
    """
    # Hashed here, so that the password is in no log of the server.
    hashed = encrypt_password(password, SERVICES, superuser, "scram-sha-256")
    with superuser.cursor() as cursor:
        cursor.execute("SELECT FROM pg_catalog.pg_roles WHERE rolname = %s", (SERVICES,))
        if cursor.fetchone() is None:
            cursor.execute(SQL("CREATE ROLE {}").format(Identifier(SERVICES)))
        cursor.execute(
            SQL("ALTER ROLE {} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS PASSWORD %s").format(
                Identifier(SERVICES)
            ),
            (hashed,),
        )
        for role in _ROLES:
            cursor.execute(SQL("GRANT {} TO {}").format(Identifier(role), Identifier(SERVICES)))

"""Say where a driver log is, from its URL: the database, and its server's host and port, or its socket's directory.

It never has a password, or another secret of the URL. Says too if there is none.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from tracker_store.connection.engine import psycopg2_url
from tracker_store.connection.errors import DriverLogError

#: Begins what is said of a database without a driver log.
NO_LOG = "there is no driver log in"
#: Return the owner of the driver log's schema; no row where there is no log. Looks for a table, in the catalogs: an
#: administrator may have made the schema, and a login may lack rights in it. No locks.
LOG_OWNER = """
SELECT n.nspowner FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'forebay' AND c.relname = 'receivers'
"""
_DEFAULT_PORT = 5432
# libpq's parameters that are secrets.
_SECRETS = ("password", "sslpassword")


@dataclass(frozen=True, slots=True)
class LogAddress:
    """Say where a driver log is; `host` is None, or the directory of a Unix socket, if no host name is in the URL."""

    database: str
    host: str | None
    port: int
    user: str | None

    def __str__(self) -> str:
        """Return the place for people."""
        if self.host is not None and self.host.startswith("/"):
            return f"database {self.database} at the socket {self.host}/.s.PGSQL.{self.port}"
        return f"database {self.database} on {self.host or 'localhost'}, port {self.port}"


def check_there_is_a_log(connection: sa.Connection, url: str) -> None:
    """Raise DriverLogError if the database has no driver log. No locks."""
    if connection.execute(sa.text(LOG_OWNER)).first() is None:
        raise DriverLogError(
            f"{NO_LOG} {address_of_log(url)}",
            "Run `forebay db upgrade`, which creates the driver log's tables there; `forebay up MODULE` does so too.",
        )


def address_of_log(url: str) -> LogAddress:
    """Return where the URL leads, as libpq reads it. Raises NoPostgresUrlError."""
    parsed = psycopg2_url(url)
    host, port = parsed.host or _option(parsed, "host"), parsed.port or _option(parsed, "port") or _DEFAULT_PORT
    user = parsed.username or _option(parsed, "user")
    return LogAddress(parsed.database or _option(parsed, "dbname") or user or "", host, int(port), user)


def libpq_url(url: str, *, with_password: bool) -> str:
    """Return the URL for libpq's programs, such as psql; its password, and other secrets, only `with_password`.

    Raises as `address_of_log`.
    """
    parsed = psycopg2_url(url).set(drivername="postgresql")
    if not with_password:
        # `set` can't take the password away.
        parsed = parsed._replace(password=None).difference_update_query(_SECRETS)
    return parsed.render_as_string(hide_password=False)


def password_of(url: str) -> str | None:
    """Return the password in the URL, or None."""
    parsed = psycopg2_url(url)
    return parsed.password or _option(parsed, "password")


def _option(parsed: sa.URL, name: str) -> str | None:
    value = parsed.query.get(name)
    # A list, if it is in the URL several times: libpq takes the last one.
    return value[-1] if isinstance(value, tuple) else value

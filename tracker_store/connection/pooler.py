"""Give each statement its session settings, whatever is between Forebay and Postgres.

Owns the one table of settings that every statement on the driver log runs with, and the three ways to set them:

- connected directly, as the start-up parameter ``options``;
- behind a pooler in session mode (``?pool_mode=session`` in the URL), by SET on each new connection;
- behind a pooler in transaction mode (``?pool_mode=transaction``), by SET LOCAL in front of each statement, in the same
  message: no session lasts there, so nothing is prepared either.

The settings are read back on each new connection: a pooler that ignores ``options`` would leave every time-out at 0,
and a stopped process could then hold a lock for ever. Must never run a statement of the driver log itself.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import psycopg2.extensions
from psycopg2.sql import Composable
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from tracker_store.connection.errors import DriverLogError, NoPostgresUrlError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import sqlalchemy as sa

POOL_MODE = "pool_mode"
DIRECT_URL_VARIABLE = "FOREBAY_DATABASE_DIRECT_URL"
_SCHEMES = ("postgresql", "postgres")
_SERVER = re.compile(r"(?:\[(?P<ipv6>[^\[\]]*)\]|(?P<host>[^:]*))(?::(?P<port>.*))?")
# What a pooler says that knows no `options`, or not what is in it.
_REFUSES_OPTIONS = "unsupported startup parameter"
# With any other value, a commit may be lost by a crash of the server, or by the failover to a synchronous standby.
_STRONG_COMMITS = ("on", "remote_apply")


class PoolMode(StrEnum):
    """Name what a client of the pooler keeps: a server's session, or the session for one transaction."""

    SESSION = "session"
    TRANSACTION = "transaction"


_NO_MODE = "Add the mode of the pooler to FOREBAY_DATABASE_URL: ?pool_mode=session, or ?pool_mode=transaction."
_NO_DIRECT_URL = "Set FOREBAY_DATABASE_DIRECT_URL to the URL of Postgres itself, without a pooler."


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Hold the settings that a session's statements run with. `search_path` is the server's if it is None."""

    statement_timeout: str
    lock_timeout: str
    idle_in_transaction_session_timeout: str
    search_path: str | None = None

    @property
    def timeouts(self) -> Mapping[str, str]:
        """Return the settings that are times."""
        return {
            "statement_timeout": self.statement_timeout,
            "lock_timeout": self.lock_timeout,
            "idle_in_transaction_session_timeout": self.idle_in_transaction_session_timeout,
        }

    @property
    def values(self) -> Mapping[str, str]:
        """Return every setting with its value, except `synchronous_commit`: see `strong_commit`."""
        return {
            "default_transaction_isolation": "read committed",
            **self.timeouts,
            "timezone": "UTC",
            # With enable_seqscan off, plans get enormous cost estimates: a server with LLVM would JIT-compile each one.
            "jit": "off",
            **({} if self.search_path is None else {"search_path": self.search_path}),
        }

    def start_up_options(self) -> str:
        """Return libpq's `options`."""
        return " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in self.values.items())

    def begin_session(self, connection: psycopg2.extensions.connection, mode: PoolMode | None) -> None:
        """Let a new connection commit each statement, set what is missing, and read everything back.

        Raises DriverLogError if the settings do not hold.
        """
        connection.autocommit = True
        if isinstance(connection, TransactionPooledConnection):
            connection.begin(self)
        before = [f"SET {name} = '{value}'" for name, value in self.values.items()] if mode is PoolMode.SESSION else []
        if mode is not PoolMode.TRANSACTION:
            before.append(strong_commit(is_local=False))
        with connection.cursor() as cursor:
            # Intervals: the server writes a time-out in other units than it was given.
            compared = ", ".join(
                f"current_setting('{name}'), current_setting('{name}')::interval = '{value}'::interval"
                if name in self.timeouts
                else f"current_setting('{name}'), current_setting('{name}') = '{value}'"
                for name, value in self.values.items()
            )
            # One round trip.
            cursor.execute("; ".join([*before, f"SELECT {compared}"]))
            row = cursor.fetchone()
        for name, value, is_set in zip(self.values, row[::2], row[1::2], strict=True):
            if not is_set:
                raise DriverLogError(
                    f"the server ignores the settings of a session, as a pooler may: {name} is {value!r}, and not "
                    f"{self.values[name]!r}",
                    _NO_MODE,
                )


def strong_commit(*, is_local: bool) -> str:
    """Return the statement that lets no commit be answered before it is safe, and keeps a server's stronger setting."""
    names = ", ".join(f"'{value}'" for value in _STRONG_COMMITS)
    return (
        f"SELECT set_config('synchronous_commit', 'on', {str(is_local).lower()}) "
        f"WHERE current_setting('synchronous_commit') NOT IN ({names})"
    )


class TransactionPooledConnection(psycopg2.extensions.connection):  # type: ignore[misc]  # psycopg2 has no types
    """Connect to a pooler in transaction mode: the cursors send the settings along with each statement."""

    # What each statement begins with; empty until the settings are known.
    settings: str = ""

    def begin(self, settings: SessionSettings) -> None:
        """Send `settings` along from now on."""
        self.settings = ""
        with self.cursor() as cursor:
            cursor.execute("SHOW synchronous_commit")
            is_strong = cursor.fetchone()[0] in _STRONG_COMMITS
        # No statement that reads: SET TRANSACTION must come before the first snapshot.
        self.settings = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; " + "".join(
            f"SET LOCAL {name} = '{value}'; "
            for name, value in {**settings.values, **({} if is_strong else {"synchronous_commit": "on"})}.items()
        )

    def cursor(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  psycopg2 has no types
        """Return a cursor that sends the settings along."""
        kwargs.setdefault("cursor_factory", _SettingCursor)
        return super().cursor(*args, **kwargs)


class _SettingCursor(psycopg2.extensions.cursor):  # type: ignore[misc]  # as above
    """Send the settings in front of each statement, in one message, which the server runs as one transaction."""

    def execute(self, query: str | Composable, vars: Any = None) -> None:  # noqa: A002, ANN401  psycopg2's name
        text = query.as_string(self) if isinstance(query, Composable) else query
        super().execute(self.connection.settings + text, vars)


def parsed_url(url: str) -> sa.URL:
    """Return a URL as libpq reads it, which takes several servers, `h1:5432,h2:5432`. Raises NoPostgresUrlError."""
    scheme, separator, rest = url.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    login, at, servers = authority.rpartition("@")
    after = rest[len(authority) :]
    if "," in servers:
        # SQLAlchemy has them among the parameters.
        before, _, query = after.partition("?")
        found = [_SERVER.fullmatch(server) for server in servers.split(",")]
        hosts = ",".join(quote(match["ipv6"] or match["host"], safe=":") for match in found if match)
        ports = ",".join(match["port"] or "" for match in found if match)
        after = f"{before}?{query}{'&' * bool(query)}host={hosts}&port={ports}"
        servers = ""
    try:
        parsed = make_url(f"{scheme}{separator}{login}{at}{servers}{after}")
    except (ValueError, ArgumentError):
        # The cause would be printed with parts of the URL, which may be secrets.
        raise NoPostgresUrlError("FOREBAY_DATABASE_URL is no URL of Postgres") from None
    if parsed.get_backend_name() not in _SCHEMES:
        raise NoPostgresUrlError(f"FOREBAY_DATABASE_URL is a URL of {parsed.drivername}, and not of Postgres")
    return parsed


def split_pool_mode(url: sa.URL) -> tuple[sa.URL, PoolMode | None]:
    """Return the URL that libpq understands, and the mode of the pooler that it leads to. Raises DriverLogError."""
    value = url.query.get(POOL_MODE)
    if value is None:
        return url, None
    if value not in list(PoolMode):
        raise DriverLogError(f"pool_mode={value!r} is no mode", _NO_MODE)
    return url.difference_update_query([POOL_MODE]), PoolMode(str(value))


def pool_mode(url: str) -> PoolMode | None:
    """Return the mode of the pooler that `url` leads to; None: it leads to Postgres itself."""
    return split_pool_mode(parsed_url(url))[1]


def direct_url(url: str, needed_by: str) -> str:
    """Return where `needed_by` connects, which needs a session of its own: `url`, unless a pooler lends transactions.

    Raises DriverLogError.
    """
    mode = pool_mode(url)
    if mode is None:
        return url
    direct = os.environ.get(DIRECT_URL_VARIABLE)
    if direct:
        return direct
    if mode is PoolMode.TRANSACTION:
        raise DriverLogError(
            f"{needed_by} needs a session of its own, and a pooler in transaction mode has none", _NO_DIRECT_URL
        )
    return url


def unpooled_url(url: str, needed_by: str) -> str:
    """Return where `needed_by` connects, which works behind no pooler. Raises DriverLogError."""
    direct = direct_url(url, needed_by)
    if pool_mode(direct) is not None:
        raise DriverLogError(f"{needed_by} needs a connection without a pooler", _NO_DIRECT_URL)
    return direct


def is_options_refused(message: str) -> bool:
    """Return whether a connection failed because a pooler does not pass the settings on."""
    return _REFUSES_OPTIONS in message


def options_refused(message: str) -> DriverLogError:
    """Return the error for `is_options_refused`."""
    return DriverLogError(
        f"a pooler is between Forebay and Postgres, and refuses Forebay's settings: {message}", _NO_MODE
    )

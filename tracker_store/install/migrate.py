"""Bring the driver log's schema to the newest migration; `forebay db` and `forebay up` call it."""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
import structlog
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.exc import DBAPIError

from tracker_store.connection.engine import connect, connect_once, psycopg2_url
from tracker_store.connection.errors import DriverLogError
from tracker_store.connection.pooler import direct_url
from tracker_store.install.migration_blockers import MigrationBlockers
from tracker_store.install.missing_rights import UNKNOWN_SETUP, database_setup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from alembic.runtime.migration import MigrationInfo

_log = structlog.get_logger(__name__)

# SQLSTATE of a role that may not do it.
_NO_RIGHT = "42501"
# One migration at a time: two processes that start together would both find the schema missing.
_MIGRATION_LOCK = 0x666F7265626179
# How long a migration waits for one table. Later sessions wait behind it, heartbeats too, so this is well below
# the time limit of a silent process.
_LOCK_TIMEOUT = "2s"
# Seconds between two attempts, in which those who waited behind the first go on; and after how long to give up.
_PAUSE_SECONDS = 1.0
_BLOCKED_SECONDS = 60.0
# SQLSTATEs of a lock's time-out, and of a deadlock with a writer that takes the tables in another order than the
# migration. The attempt was undone whole.
_BLOCKED_CODES = ("55P03", "40P01")


def _scripts() -> Path:
    """Return the migrations' folder: inside the wheel's `tracker_store`, or beside it in a checkout."""
    packed = Path(str(resources.files("tracker_store"))) / "migrations"
    return packed if packed.is_dir() else packed.parent.parent / "migrations"


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_scripts()).replace("%", "%%"))
    return config


def _run(url: str, revision: str, *, down: bool, told: Callable[[str], None] | None = None) -> None:
    engine = sa.create_engine(psycopg2_url(direct_url(url, "a migration")), poolclass=sa.NullPool)
    # Closing the connection releases the advisory lock, whatever was raised.
    with connect(engine) as connection:
        connection.execute(sa.text("SELECT pg_advisory_lock(:key)"), {"key": _MIGRATION_LOCK})
        connection.commit()
        found = current_revision(connection)
        if is_newer(found):
            raise DriverLogError(
                f"it is at revision {found}, and this installation knows {newest_revision()}",
                "Install the newer version of Forebay here too: it has upgraded this driver log. Nothing was changed."
                " Receivers, agents and trackers of the version before go on meanwhile; only `forebay up` and "
                "`forebay db` need it.",
            )
        config = _config()
        config.attributes["connection"] = connection
        config.attributes["down"] = down
        config.attributes["told"] = None if told is None else _telling(told)
        pid: int = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        connection.execute(sa.text(f"SET lock_timeout = '{_LOCK_TIMEOUT}'"))
        connection.commit()
        with MigrationBlockers(engine, pid) as blockers:
            _migrate(config, connection, revision, blockers)
        connection.execute(sa.text("SELECT pg_advisory_unlock(:key)"), {"key": _MIGRATION_LOCK})
        connection.commit()
    engine.dispose()


@contextmanager
def naming_missing_rights(url: str) -> Iterator[None]:
    """Raise DriverLogError where the login of `url` may not make what an installation needs in the database."""
    try:
        yield
    except DBAPIError as error:
        if getattr(error.orig, "pgcode", None) != _NO_RIGHT:
            raise
        advice = UNKNOWN_SETUP
        # A server may have no connection left for this; what was refused is said all the same.
        with suppress(DriverLogError, DBAPIError), connect_once(url, application_name="forebay") as connection:
            advice = database_setup(connection).advice
        raise DriverLogError(str(error.orig).strip().partition("\n")[0], advice) from error


def _telling(told: Callable[[str], None]) -> Callable[..., None]:
    """Return what Alembic calls after each migration: it passes the revision and the first line of its docstring on."""

    def applied(*, step: MigrationInfo, **_: object) -> None:
        said = getattr(step.up_revision, "doc", "")
        told(f"{step.up_revision_id}: {said}")

    return applied


def _migrate(config: Config, connection: sa.Connection, revision: str, blockers: MigrationBlockers) -> None:
    """Run the migrations in one transaction; run them again while other sessions hold tables, for a bounded time."""
    migrate = command.downgrade if config.attributes["down"] else command.upgrade
    give_up_at = time.monotonic() + _BLOCKED_SECONDS
    while True:
        try:
            migrate(config, revision)
        except DBAPIError as error:
            if getattr(error.orig, "pgcode", None) not in _BLOCKED_CODES:
                raise
            connection.rollback()
            by = "; ".join(blockers.seen) or "sessions that this user can't see"
            if time.monotonic() >= give_up_at:
                raise DriverLogError(
                    f"tables were held for {_BLOCKED_SECONDS:.0f} s by {by}",
                    "Nothing was changed: end what these sessions do (`SELECT pg_terminate_backend(PID)`), and migrate "
                    "again. A backup, a check or a query of a person may hold a table for long; receivers, batches and "
                    "trackers do not.",
                ) from error
            _log.warning("other sessions hold tables, trying to migrate again", blocked_by=by)
        else:
            return
        time.sleep(_PAUSE_SECONDS)


def upgrade(url: str, revision: str = "head", *, told: Callable[[str], None] | None = None) -> None:
    """Migrate the driver log at `url` up to `revision`. Idempotent; safe from several processes at once.

    `told` is called with each migration that was run; all of them are committed together, after the last.

    Raises DriverLogError if the database is past what this installation knows or other sessions hold its tables for
    long, if there is only a pooler, and if the server can't be reached or the login lacks a right.
    """
    with naming_missing_rights(url):
        _run(url, revision, down=False, told=told)


def downgrade(url: str, revision: str) -> None:
    """Migrate the driver log at `url` down to `revision` (``base`` removes everything)."""
    with naming_missing_rights(url):
        _run(url, revision, down=True)


def newest_revision() -> str:
    """Return the revision that this code expects."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    if head is None:
        message = f"no migrations in {_scripts()}: the installation is incomplete, install forebay again"
        raise FileNotFoundError(message)
    return head


def current_revision(connection: sa.Connection) -> str | None:
    """Return the revision of the database behind `connection`, or None if it has no driver log."""
    context = MigrationContext.configure(connection, opts={"version_table_schema": "forebay"})
    return context.get_current_revision()


def is_newer(revision: str | None) -> bool:
    """Return whether a database's revision is one that only a newer installation knows."""
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    return revision is not None and revision not in known


def way_out(revision: str | None) -> str:
    """Return what to do about a database whose revision is not this installation's."""
    return "install the newer Forebay here" if is_newer(revision) else "forebay db upgrade"

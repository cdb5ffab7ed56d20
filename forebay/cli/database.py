"""Connect a command to the driver log: the one that FOREBAY_DATABASE_URL names, or the embedded one of this home."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from forebay.cli.failures import clear_errors
from orchestration.settings import Settings
from tracker_store.embedded_postgres import EmbeddedPostgres
from tracker_store.engine import connect_once
from tracker_store.errors import DriverLogUnavailableError, NoDriverLogError, OtherReleaseError, UnknownNameError
from tracker_store.log_place import place_of_log

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import sqlalchemy as sa

    from forebay.cli.console import Console

EMBEDDED_DIRECTORY = "postgres"

_LOG_TAIL_BYTES = 65_536


def embedded_postgres(settings: Settings) -> EmbeddedPostgres:
    """Return the embedded server of this home; start and create nothing."""
    return EmbeddedPostgres(settings.home / EMBEDDED_DIRECTORY)


def database_url(settings: Settings, *, as_owner: bool = False) -> str:
    """Return FOREBAY_DATABASE_URL, else the URL of the server that `forebay up` runs in this home.

    as_owner: to change the schema or the roles; all else has the rights of services on that server.
    Raises DatabaseUrlMissingError, and DriverLogUnavailableError if this home has a server that does not run.
    """
    if settings.database_url is None:
        server = embedded_postgres(settings)
        if server.running_pid() is not None:
            return server.url() if as_owner else server.services_url()
        if server.data_directory.exists():
            log = settings.home.absolute() / "logs" / "postgres.log"
            raise DriverLogUnavailableError(
                "the Postgres of this home does not run; `forebay up` starts it, and "
                f"{log} says why it ended{_last_failure(log)}"
            )
    return settings.require_database_url()


def _last_failure(log: Path) -> str:
    """Return the last FATAL or PANIC line of the server's log, such as one about a full disk."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    given_up = [line.strip() for line in lines if "FATAL:" in line or "PANIC:" in line]
    return f": {given_up[-1]}" if given_up else ""


@contextmanager
def driver_log(console: Console, *, application_name: str, as_owner: bool = False) -> Iterator[sa.Connection]:
    """Open one connection for one command; print a known error on `console`, and exit with 1. as_owner: see above.

    If a name is not in the driver log, or the database has none, the error also says where that log is.
    """
    with clear_errors(console):
        url = database_url(Settings(), as_owner=as_owner)
        with connect_once(url, application_name=application_name) as connection, _naming_the_log(connection, url):
            yield connection


@contextmanager
def _naming_the_log(connection: sa.Connection, url: str) -> Iterator[None]:
    try:
        yield
    except UnknownNameError as error:
        # The same error, so that it keeps its way out.
        error.args = (f"{error} (The driver log that was asked: {place_of_log(url)}.)",)
        raise
    except OtherReleaseError as error:
        from tracker_store.migrate import current_revision  # noqa: PLC0415  loads Alembic, which takes long

        if current_revision(connection) is not None:
            raise
        raise NoDriverLogError(f"there is no driver log in {place_of_log(url)}") from error

"""Connect a command to the driver log: the one that FOREBAY_DATABASE_URL names, or the embedded one of this home."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from forebay.cli.terminal.failures import clear_errors
from orchestration.declarations.settings import Settings
from tracker_store.connection.engine import connect_once, create_engine
from tracker_store.connection.errors import (
    DriverLogUnavailableError,
    OtherReleaseError,
    UnknownNameError,
)
from tracker_store.connection.log_address import address_of_log, check_there_is_a_log
from tracker_store.server.embedded_postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import sqlalchemy as sa

    from forebay.cli.terminal.console import Console

EMBEDDED_DIRECTORY = "postgres"

#: Begins every reason for which the embedded server does not run.
THIS_SERVER = "the Postgres of this home"

_LOG_TAIL_BYTES = 65_536
# Words of Postgres's log, in its only language here.
_STARTED = "LOG:  starting PostgreSQL"
_REQUESTS = ("LOG:  received fast shutdown request", "LOG:  received smart shutdown request")
_SHUT_DOWN = "LOG:  database system is shut down"


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
            why = _why_it_does_not_run(settings.home.absolute() / "logs" / "postgres.log")
            raise DriverLogUnavailableError(why, "Try again when it runs.")
    return settings.require_database_url()


def _why_it_does_not_run(log: Path) -> str:
    """Return the message about an embedded server that does not run, by the end of its log."""
    lines = _last_lines(log)
    if _was_stopped(lines):
        return f"{THIS_SERVER} was stopped, in order; `forebay up` starts it"
    # For example one about a full disk.
    given_up = [line.strip() for line in lines if "FATAL:" in line or "PANIC:" in line]
    why = f": {given_up[-1]}" if given_up else ""
    return f"{THIS_SERVER} does not run; `forebay up` starts it, and {log} says why it ended{why}"


def _last_lines(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
            return [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return []


def _was_stopped(lines: list[str]) -> bool:
    """Return whether the log's last words are those of a server that was asked to end, as by Ctrl-C, and did.

    A server that fails says that it is shut down too; and each session that the request ends says FATAL.
    """
    started = max((number for number, line in enumerate(lines) if _STARTED in line), default=0)
    asked = any(request in line for line in lines[started:] for request in _REQUESTS)
    return asked and _SHUT_DOWN in lines[-1]


@contextmanager
def driver_log(console: Console, *, application_name: str, as_owner: bool = False) -> Iterator[sa.Connection]:
    """Open one connection for one command; print a known error on `console`, and exit with 1. as_owner: see above.

    If a name is not in the driver log, or the database has none, the error also says where that log is.
    """
    with clear_errors(console):
        url = database_url(Settings(), as_owner=as_owner)
        with naming_the_log(url), connect_once(url, application_name=application_name) as connection:
            yield connection


@contextmanager
def driver_log_engine(console: Console, *, application_name: str) -> Iterator[sa.Engine]:
    """Make an engine of one connection for a command that looks again and again; report errors as `driver_log` does."""
    with clear_errors(console):
        url = database_url(Settings())
        engine = create_engine(url, application_name=application_name, pool_size=1)
        pool_log = logging.getLogger(f"{type(engine.pool).__module__}.{type(engine.pool).__name__}")
        # Ctrl-C may come while the connection is given back: it ends the command, and is no error to report.
        pool_log.addFilter(_is_no_interrupt)
        try:
            with naming_the_log(url):
                yield engine
        finally:
            pool_log.removeFilter(_is_no_interrupt)
            engine.dispose()


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    return record.exc_info is None or record.exc_info[0] is not KeyboardInterrupt


@contextmanager
def naming_the_log(url: str) -> Iterator[None]:
    """Let an error about a name say which driver log was asked; raise DriverLogError if the database has none."""
    try:
        yield
    except UnknownNameError as error:
        # The same error, so that it keeps its way out.
        error.args = (f"{error} (The driver log that was asked: {address_of_log(url)}.)",)
        raise
    except OtherReleaseError:
        with connect_once(url, application_name="forebay") as connection:
            check_there_is_a_log(connection, url)
        raise

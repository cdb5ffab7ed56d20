"""Connect a command to the driver log: the one that FOREBAY_DATABASE_URL names, or the embedded one of this home."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from forebay.cli.failures import clear_errors
from orchestration.settings import Settings
from tracker_store.embedded_postgres import EmbeddedPostgres
from tracker_store.engine import connect_once
from tracker_store.errors import DriverLogUnavailableError

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
    """Open one connection for one command; print a known error on `console`, and exit with 1. as_owner: see above."""
    with (
        clear_errors(console),
        connect_once(database_url(Settings(), as_owner=as_owner), application_name=application_name) as connection,
    ):
        yield connection

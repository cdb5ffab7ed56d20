"""Which driver log a command talks to: the one that is named, or the embedded one that runs in this home."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracker_store.embedded_postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from orchestration.settings import Settings

EMBEDDED_DIRECTORY = "postgres"


def embedded_postgres(settings: Settings) -> EmbeddedPostgres:
    """The embedded server of this home; nothing is started or made."""
    return EmbeddedPostgres(settings.home / EMBEDDED_DIRECTORY)


def database_url(settings: Settings) -> str:
    """FOREBAY_DATABASE_URL, else the server that `forebay up` runs in this home. Raises DatabaseUrlMissingError."""
    if settings.database_url is None:
        server = embedded_postgres(settings)
        if server.running_pid() is not None:
            return server.url()
    return settings.require_database_url()

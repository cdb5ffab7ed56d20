"""Find the Dagster that runs replays: the one that is named in the settings, or of the `forebay up` in this home."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.cli.instance.dagster_home import URL_FILE, kept_token
from forebay.cli.services.supervisor_lock import lock_holder

if TYPE_CHECKING:
    from orchestration.declarations.settings import Settings


def dagster_url(settings: Settings) -> str | None:
    """Return FOREBAY_DAGSTER_URL, else the webserver's URL of the `forebay up` that runs in this home, else None."""
    if settings.dagster_url is not None:
        return settings.dagster_url.reveal()
    file = settings.home / "dagster" / URL_FILE
    return file.read_text(encoding="utf-8") if lock_holder(settings.home) is not None and file.exists() else None


def dagster_token(settings: Settings) -> str | None:
    """Return the token of the webserver at `dagster_url`, or None if it needs none."""
    if settings.dagster_token is not None or settings.dagster_url is not None:
        return settings.webserver_token
    return kept_token(settings.home / "dagster")

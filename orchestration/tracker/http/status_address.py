"""Tell where the status page is: for commands that print it, and for Dagster's links to it.

Owns how its address follows from the settings. It asks no server.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pydantic import SecretStr

from orchestration.status_page import addresses
from orchestration.tracker.http.listen_address import ListenAddress, listen_address, url

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from orchestration.declarations.settings import Settings

# A server that listens on every address is also on this one.
_LOOPBACK_OF = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  compared, not listened on


# Only the tracker needs the token: Dagster's code server, which runs users' code, does not get it.
_ANY = SecretStr("any")


def tracker_url(settings: Settings) -> str | None:
    """Return the address of the tracker's HTTP server; None if it is off, or takes any free port and does not run yet.

    A tracker of this home writes its own down while it serves: it may have been given another one than this process.
    Raises ListenAddressError.
    """
    address = asked_for(settings)
    if address is None:
        return None
    with suppress(FileNotFoundError):
        if written := _url_file(settings).read_text(encoding="utf-8").strip():
            return written
    return url(_LOOPBACK_OF.get(address.host, address.host), address.port) if address.port else None


def asked_for(settings: Settings) -> ListenAddress | None:
    """Return where the settings want trackers to serve HTTP; None: nowhere. Raises ListenAddressError."""
    return listen_address(settings.tracker_http, _ANY)


def forget_served(settings: Settings) -> None:
    """Forget where a tracker served that ended without its own last word. Only while no tracker of this home runs."""
    _url_file(settings).unlink(missing_ok=True)


def is_served(settings: Settings) -> bool:
    """Return whether a tracker of this home serves HTTP now."""
    return _url_file(settings).exists()


def serves_this_home(settings: Settings) -> bool:
    """Return whether the address is this home's: a tracker of it serves there, or a person has set it.

    By default two installations on a host have the same address, and only one of them serves there.
    """
    return "tracker_http" in settings.model_fields_set or is_served(settings)


def status_page(settings: Settings) -> str | None:
    """Return the address of the status page, without the token, or None. Raises ListenAddressError."""
    return _page(settings, addresses.ROOT)


def pipeline_page(settings: Settings, pipeline: str) -> str | None:
    """Return the address of a pipeline's page, or None. Raises ListenAddressError."""
    return _page(settings, addresses.pipeline(pipeline))


def batch_page(settings: Settings, pipeline: str, batch_time: datetime) -> str | None:
    """Return the address of a batch's page, or None. Raises ListenAddressError."""
    return _page(settings, addresses.batch(pipeline, batch_time))


def _url_file(settings: Settings) -> Path:
    return settings.home / "run" / "tracker.url"


def _page(settings: Settings, path: str) -> str | None:
    server = tracker_url(settings)
    return None if server is None else f"{server}{path}"

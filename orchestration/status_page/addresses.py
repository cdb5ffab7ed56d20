"""Build the addresses of the status page's pages, and of Dagster's pages that they lead to.

Pure: names are quoted here, and nowhere else. It never puts a login or a token into a link.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from orchestration.status_page.shown import milliseconds

if TYPE_CHECKING:
    from datetime import datetime

ROOT = "/status"
EVENTS = f"{ROOT}/events"
# A run that Dagster knows; attempts may also be of `forebay batches replay --local`, which name no run.
_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def pipeline(name: str) -> str:
    """Return the page of a pipeline."""
    return f"{ROOT}/pipelines/{quote(name, safe='')}"


def stream(name: str) -> str:
    """Return the page of a stream."""
    return f"{ROOT}/streams/{quote(name, safe='')}"


def batch(pipeline_name: str, batch_time: datetime) -> str:
    """Return the page of a batch."""
    return f"{pipeline(pipeline_name)}/batches/{milliseconds(batch_time)}"


def asked(path: str, **values: str | int | None) -> str:
    """Return an address with those of the values that are not None as its query."""
    query = urlencode({name: value for name, value in values.items() if value is not None})
    return f"{path}?{query}" if query else path


class DagsterPages:
    """Links to Dagster's pages; each is None where there is no webserver's address."""

    def __init__(self, url: str | None) -> None:
        """Take the webserver's address, with its path prefix. A login in it is left out of the links."""
        self._url: str | None = None
        parts = urlsplit(url or "")
        # A link with another scheme, such as javascript:, would run here.
        if parts.scheme in {"http", "https"} and parts.hostname:
            host = parts.netloc.rpartition("@")[2]
            self._url = f"{parts.scheme}://{host}{parts.path.rstrip('/')}"

    @property
    def home(self) -> str | None:
        """Return its first page."""
        return None if self._url is None else f"{self._url}/"

    def run(self, run_id: str | None) -> str | None:
        """Return the page of a run; None if the text is no run's id."""
        if self._url is None or run_id is None or not _RUN_ID.fullmatch(run_id):
            return None
        return f"{self._url}/runs/{run_id}"

    def batches(self, pipeline_name: str) -> str | None:
        """Return the page of a pipeline's batches, which are an asset."""
        return None if self._url is None else f"{self._url}/assets/{quote(pipeline_name, safe='')}/batches"

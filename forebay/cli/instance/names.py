"""Complete names on a command line: of streams, receivers, pipelines, outputs, batches, readers and agents.

The functions of ``tracker_store`` that commands use read them. If the driver log is unavailable or slow, a shell is
offered no names and shows no error.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from datetime import UTC
from typing import TYPE_CHECKING

import typer  # noqa: TC002  Typer evaluates the annotations

from forebay.cli.instance.database import database_url
from orchestration.declarations.settings import Settings
from tracker_store.batches.batches import list_batches
from tracker_store.batches.pipelines import get_pipeline, list_pipelines, list_streams
from tracker_store.batches.readers import list_readers
from tracker_store.connection.engine import connect_once
from tracker_store.receivers.agents import list_agents
from tracker_store.receivers.receivers import placements
from tracker_store.schema.declarations import PipelineDeclaration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import sqlalchemy as sa

_PATIENCE_SECONDS = 1.0  # how long a shell waits for names
_MOST_BATCHES = 200  # how many batch times are offered, the newest ones


def _names(read: Callable[[sa.Connection, str], Iterable[str]]) -> Callable[[typer.Context], list[str]]:
    """Return a callback for Typer that offers what `read` finds, given the pipeline of the command line or ""."""

    def offer(ctx: typer.Context) -> list[str]:
        found: list[str] = []

        def ask() -> None:
            # A shell would show an error in the middle of the command line.
            with suppress(Exception), connect_once(database_url(Settings()), application_name="forebay") as log:
                found.extend(read(log, ctx.params.get("pipeline") or ""))

        # libpq waits at least two seconds for a connection. The thread ends with the process.
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(_PATIENCE_SECONDS)
        return list(found)

    return offer


def _receivers(log: sa.Connection, _: str) -> list[str]:
    named = [f"{row.stream_name}/{row.ordinal}" for row in placements(log)]
    return [*(row.name for row in list_streams(log)), *named]


def _batches(log: sa.Connection, pipeline: str) -> list[str]:
    rows = list_batches(log, get_pipeline(log, pipeline).pipeline_id, limit=_MOST_BATCHES)
    # Without colons: bash splits words at them.
    times = [f"{row.batch_time.astimezone(UTC):%Y%m%dT%H%M%S.%f}" for row in rows]
    return [f"{time.removesuffix('.000000')}Z" for time in times]


streams = _names(lambda log, _: [row.name for row in list_streams(log)])
receivers = _names(_receivers)
pipelines = _names(lambda log, _: [row.name for row in list_pipelines(log)])
outputs = _names(lambda log, pipeline: PipelineDeclaration.of(get_pipeline(log, pipeline).declaration).outputs)
batches = _names(_batches)
readers = _names(lambda log, _: [row.reader for row in list_readers(log)])
agents = _names(lambda log, _: [row.name for row in list_agents(log) if row.agent_id is not None])
lost_hosts = _names(lambda log, _: [row.host for row in list_agents(log) if row.agent_id is None])

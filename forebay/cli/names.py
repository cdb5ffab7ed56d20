"""Complete names on a command line: of streams, receivers, pipelines, outputs, batches, readers, agents and logs.

They come from the driver log, by one statement with a short time limit; where it does not answer, no name is offered.
Light: a shell waits for it at each press of Tab, so it loads no part of Forebay that takes long, and reads the
environment itself. It changes nothing and reports no error.
"""

from __future__ import annotations

import os
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import typer  # noqa: TC002  Typer reads it off the annotations

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Seconds that a shell waits for names.
PATIENCE_SECONDS = 1.0
#: Names that are offered at once.
MOST = 200
# The time without colons: bash takes them for the ends of words.
_TIME = "%Y%m%dT%H%M%S"
# An option of Forebay's in the URL, which libpq does not know.
_OWN_OPTIONS = frozenset({"pool_mode"})

_STREAMS = "SELECT name FROM forebay.streams WHERE removed_at IS NULL AND starts_with(name, %s) ORDER BY name LIMIT %s"
_PIPELINES = _STREAMS.replace("streams", "pipelines")
_RECEIVERS = """
    SELECT name FROM (
        SELECT s.name, 0 AS ordinal FROM forebay.streams s WHERE s.removed_at IS NULL
        UNION ALL
        SELECT s.name || '/' || r.ordinal, r.ordinal
        FROM forebay.receivers r JOIN forebay.streams s ON s.id = r.stream_id
        WHERE r.removed_at IS NULL) AS found
    WHERE starts_with(name, %s)
    ORDER BY split_part(name, '/', 1), ordinal LIMIT %s
"""
_BATCHES = """
    SELECT b.batch_time
    FROM forebay.pipelines p JOIN forebay.batches b ON b.pipeline_id = p.id
    WHERE p.removed_at IS NULL AND p.name = %s
    ORDER BY b.batch_time DESC LIMIT %s
"""
_OUTPUTS = """
    SELECT o.name
    FROM forebay.pipelines p, jsonb_object_keys(p.declaration -> 'outputs') AS o(name)
    WHERE p.removed_at IS NULL AND p.name = %s AND starts_with(o.name, %s)
    ORDER BY o.name LIMIT %s
"""
_READERS = _STREAMS.replace("streams", "readers")
_AGENTS = """
    SELECT DISTINCT name FROM forebay.processes
    WHERE kind = 'agent' AND ended_at IS NULL AND starts_with(name, %s)
    ORDER BY name LIMIT %s
"""
# A host can be forgotten if no agent runs there, and receivers or a block store belong to it.
_LOST_HOSTS = """
    SELECT host FROM (
        SELECT host FROM forebay.receivers WHERE removed_at IS NULL AND host IS NOT NULL
        UNION
        SELECT host FROM forebay.block_stores) AS found
    WHERE starts_with(host, %s) AND NOT EXISTS (
        SELECT FROM forebay.processes a WHERE a.kind = 'agent' AND a.ended_at IS NULL AND a.host = found.host)
    ORDER BY host LIMIT %s
"""


def streams(incomplete: str) -> list[str]:
    """Return the streams that begin so."""
    return [name for (name,) in _ask(_STREAMS, (incomplete, MOST))]


def receivers(incomplete: str) -> list[str]:
    """Return the receivers, as STREAM/N, and the streams, that begin so."""
    return [name for (name,) in _ask(_RECEIVERS, (incomplete, MOST))]


def pipelines(incomplete: str) -> list[str]:
    """Return the pipelines that begin so."""
    return [name for (name,) in _ask(_PIPELINES, (incomplete, MOST))]


def outputs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the outputs that begin so, of the pipeline that is named before."""
    return [name for (name,) in _ask(_OUTPUTS, (ctx.params.get("pipeline") or "", incomplete, MOST))]


def readers(incomplete: str) -> list[str]:
    """Return the named readers that begin so."""
    return [name for (name,) in _ask(_READERS, (incomplete, MOST))]


def agents(incomplete: str) -> list[str]:
    """Return the running agents that begin so."""
    return [name for (name,) in _ask(_AGENTS, (incomplete, MOST))]


def lost_hosts(incomplete: str) -> list[str]:
    """Return the hosts that begin so, have no running agent, and can be forgotten."""
    return [name for (name,) in _ask(_LOST_HOSTS, (incomplete, MOST))]


def batches(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the newest batch times of the pipeline that is named before, newest first."""
    times = [time for (time,) in _ask(_BATCHES, (ctx.params.get("pipeline") or "", MOST))]
    named = [f"{time:{_TIME}}{f'.{time.microsecond:06}' if time.microsecond else ''}Z" for time in times]
    return [name for name in named if name.startswith(incomplete)]


def logs(incomplete: str) -> list[str]:
    """Return the processes of this host that have a log."""
    return sorted(path.stem for path in (_home() / "logs").glob("*.log") if path.stem.startswith(incomplete))


def _home() -> Path:
    return Path(os.environ.get("FOREBAY_HOME") or ".forebay")


def _ask(statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
    """Return the statement's rows, or none if the driver log does not answer in time."""
    rows: list[tuple[Any, ...]] = []

    def ask() -> None:
        # Whatever goes wrong, the shell shows no names.
        with suppress(Exception):
            rows.extend(_rows(statement, values))

    # A connection attempt has no shorter limit than two seconds. The thread ends with the process.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE_SECONDS)
    return [] if asking.is_alive() else rows


def _rows(statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
    import psycopg2  # noqa: PLC0415  only where names are asked for

    connection = psycopg2.connect(**_connection(), connect_timeout=2, application_name="forebay completion")
    with closing(connection):
        connection.set_session(readonly=True, autocommit=True)
        with connection.cursor() as cursor:
            cursor.execute("SET timezone = 'UTC'")
            cursor.execute(statement, values)
            found: list[tuple[Any, ...]] = cursor.fetchall()
            return found


def _connection() -> dict[str, Any]:
    """Return libpq's parameters of the driver log: the one that is named, or this home's."""
    url = os.environ.get("FOREBAY_DATABASE_URL")
    if not url:
        from tracker_store.server.services_address import services_connection  # noqa: PLC0415  as above

        return dict(services_connection((_home() / "postgres").resolve()))
    parts = urlsplit(url)
    options = [(name, value) for name, value in parse_qsl(parts.query) if name not in _OWN_OPTIONS]
    return {"dsn": urlunsplit(parts._replace(scheme="postgresql", query=urlencode(options)))}

"""`forebay events`: show what happened, and follow it, from a cursor that misses nothing."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.instance.database import driver_log_engine
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.outage import TerminalOutage
from tracker_store.connection.engine import connect
from tracker_store.connection.errors import TRANSIENT
from tracker_store.host.terminal_text import escaped
from tracker_store.reports.listener_events import (
    START,
    EventKind,
    ListenerEvent,
    events_after,
    find_position,
    newest_events,
    newest_position,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import sqlalchemy as sa

    from tracker_store.reports.listener_events import EventPosition

APPLICATION = "forebay events"
# The --after that shows all events that are kept.
FROM_START = "start"
# Events per statement.
_PAGE = 1_000
_POLL_SECONDS = 1.0


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new events, until Ctrl-C.")] = False,  # noqa: FBT002
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per event and line.")] = False,  # noqa: FBT002
    after: Annotated[
        str, typer.Option(metavar="ID", help="All events after the one with this id; `start`: all that are kept.")
    ] = "",
    kind: Annotated[
        list[EventKind] | None, typer.Option(help="Only events of this kind; may be given several times.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=0, help="Without --after: the newest N events.")] = 20,
) -> None:
    """Show what happened to batches, receivers, pipelines and the lead, oldest first.

    Each event has an id. A program that keeps the id of the last event that it has handled, and continues with
    `--after ID`, misses none and gets none twice. Times are UTC. If the driver log is unavailable, --follow waits for
    it for up to 10 minutes.

    For example:

        forebay events --follow
        forebay events --after start --kind batch_failed --json
    """
    console = Console(highlight=False, stderr=True, soft_wrap=True)
    wanted = frozenset(str(name) for name in kind or ())
    with driver_log_engine(console, application_name=APPLICATION) as engine:
        try:
            with connect(engine) as connection:
                position, newest = _begin(connection, after, wanted, limit)
            _show(newest, as_json=as_json)
            for page in _pages(engine, position, console, follow=follow) if follow or after else ():
                _show([event for event in page if not wanted or event.kind in wanted], as_json=as_json)
        except KeyboardInterrupt:
            raise typer.Exit(0) from None


def _begin(
    connection: sa.Connection, after: str, kinds: Collection[str], limit: int
) -> tuple[EventPosition, Sequence[ListenerEvent]]:
    """Return where to continue, and the newest events before that; none with `after`."""
    if after:
        return (START if after == FROM_START else find_position(connection, after)), ()
    position = newest_position(connection)
    # What came between the two statements is shown once, because it is after the position.
    newest = newest_events(connection, kinds=kinds, limit=limit)
    here = (position.transaction_id, position.id)
    return position, [event for event in newest if (event.position.transaction_id, event.position.id) <= here]


def _pages(
    engine: sa.Engine, position: EventPosition, console: Console, *, follow: bool
) -> Iterator[Sequence[ListenerEvent]]:
    """Yield the events after a position, up to the newest one, or for ever. Raises what a long outage raises."""
    outage = TerminalOutage(console)
    while True:
        try:
            with connect(engine) as connection:
                page = events_after(connection, position, limit=_PAGE)
        except TRANSIENT as error:
            if not follow:
                raise
            outage.wait(error)
            continue
        outage.over()
        if page:
            yield page
            position = page[-1].position
        if len(page) < _PAGE:
            if not follow:
                return
            time.sleep(_POLL_SECONDS)


def _show(found: Sequence[ListenerEvent], *, as_json: bool) -> None:
    for event in found:
        typer.echo(json.dumps(event.as_json()) if as_json else escaped(_line(event)))


def _line(event: ListenerEvent) -> str:
    about = [event.pipeline] if event.pipeline else []
    if event.stream:
        about.append(f"{event.stream}/{event.ordinal}")
    if event.batch_time is not None:
        about.append(f"{event.batch_time:%Y-%m-%dT%H:%M:%SZ}")
    if event.attempt:
        about.append(f"attempt {event.attempt}")
    if event.output:
        about.append(event.output)
    if event.term is not None:
        about.append(f"term {event.term}")
    if event.records is not None:
        about.append(f"{event.records:,} records")
    said = event.message.partition("\n")[0]
    return f"{event.at:%Y-%m-%d %H:%M:%S} {event.event_id} {event.kind} {' '.join(about)}" + (
        f": {said}" if said else ""
    )

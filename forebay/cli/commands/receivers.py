"""`forebay receivers`: list receivers and their state; restart, pause, stop and start them, by STREAM or STREAM/N."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.instance import names
from forebay.cli.instance.database import driver_log
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.tables import print_table
from orchestration.status_page.reasons import causes
from tracker_store.receivers import receivers as store
from tracker_store.reports.status import receiver_status
from tracker_store.schema.states import DesiredState

if TYPE_CHECKING:
    from tracker_store.reports.status import ReceiverStatus

APPLICATION = "forebay receivers"

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Name = Annotated[
    str,
    typer.Argument(
        metavar="STREAM[/N]",
        help="All receivers of a stream, or one of them by its number.",
        autocompletion=names.receivers,
    ),
]

app = typer.Typer(help="Receivers: list, restart, pause, stop, start.", invoke_without_command=True)


@app.callback()
def receivers(context: typer.Context, as_json: AsJson = False) -> None:  # noqa: FBT002
    """List receivers: state, wanted state, host, last block, rate limit, and the reason for the state.

    Times are UTC. "rate" is the limit in records per second; - means none.

    For example:

        forebay receivers list
        forebay receivers list --json
    """
    if context.invoked_subcommand is not None:
        return
    console = Console(highlight=False, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        rows = receiver_status(connection)
    if as_json:
        typer.echo(json.dumps({"receivers": [_plain(row) for row in rows]}))
        return
    cells = [
        (
            f"{row.stream}/{row.ordinal}",
            row.condition,
            row.desired_state,
            row.host or "-",
            "-" if row.epoch is None else str(row.epoch),
            "-" if row.last_block_at is None else f"{row.last_block_at:%Y-%m-%d %H:%M:%S}",
            "-" if row.rate_limit is None else f"{row.rate_limit:,.1f}",
        )
        for row in rows
    ]
    print_table(console, ("receiver", "state", "wanted", "host", "epoch", "last block", "rate"), cells)
    for cause in causes(rows, lambda row: row.reason):
        # The first one's whole reason: other commands shorten it, and lead here.
        name = f"{cause.row.stream}/{cause.row.ordinal}{cause.and_more}"
        console.print(f"{name}: {cause.row.reason}", markup=False, soft_wrap=True)


def _plain(row: ReceiverStatus) -> dict[str, object]:
    values = {name: getattr(row, name) for name in row.__slots__}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}


@app.command()
def restart(name: Name, as_json: AsJson = False) -> None:  # noqa: FBT002
    """Restart receivers, also those that are FAILED.

    Each stops reading and registers what it holds; the tracker then places it again, in a new process. If one of them
    is stopped, none is restarted.

    For example:

        forebay receivers restart orders
        forebay receivers restart orders/2
    """
    console = Console(highlight=False, soft_wrap=True, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        found = store.receivers_named(connection, name)
        ids = [receiver.receiver_id for receiver in found]
        store.restart_receivers(connection, receiver_ids=ids, why="restarted by an operator")
    if as_json:
        restarted = [
            {"stream": receiver.stream_name, "ordinal": receiver.ordinal, "state_before": receiver.state}
            for receiver in found
        ]
        typer.echo(json.dumps({"restarted": restarted}))
    for receiver in found:
        full_name = f"{receiver.stream_name}/{receiver.ordinal}"
        console.print(f"{full_name} (it was {receiver.state}) will be started again.", markup=False)


@app.command()
def start(name: Name, as_json: AsJson = False) -> None:  # noqa: FBT002
    """Start receivers that were stopped or paused.

    Those that run go on.

    For example:

        forebay receivers start orders
        forebay receivers start orders/2
    """
    _want(name, DesiredState.RUNNING, "is to run", as_json=as_json)


@app.command()
def pause(name: Name, as_json: AsJson = False) -> None:  # noqa: FBT002
    """Pause receivers: they stop reading, but keep their processes and placement.

    `forebay receivers start` lets them read again.

    For example:

        forebay receivers pause orders
        forebay receivers pause orders/2
    """
    _want(name, DesiredState.PAUSED, "is to pause", as_json=as_json)


@app.command()
def stop(name: Name, as_json: AsJson = False) -> None:  # noqa: FBT002
    """Stop receivers until `forebay receivers start`: they stop reading, register what they hold, and end.

    Their pipelines keep running. To stop a pipeline with its receivers: `forebay stop --pipeline P`.

    For example:

        forebay receivers stop orders
        forebay receivers stop orders/2
    """
    _want(name, DesiredState.STOPPED, "is to stop", as_json=as_json)


def _want(name: str, desired: DesiredState, what: str, *, as_json: bool) -> None:
    console = Console(highlight=False, soft_wrap=True, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        found = store.receivers_named(connection, name)
        store.set_desired_state(connection, receiver_ids=[receiver.receiver_id for receiver in found], desired=desired)
    if as_json:
        changed = [
            {
                "stream": receiver.stream_name,
                "ordinal": receiver.ordinal,
                "state": receiver.state,
                "desired_state": desired,
            }
            for receiver in found
        ]
        typer.echo(json.dumps({"receivers": changed}))
    for receiver in found:
        console.print(f"{receiver.stream_name}/{receiver.ordinal} {what} (it is {receiver.state}).", markup=False)

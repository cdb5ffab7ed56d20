"""`forebay receivers`: list receivers and their state; restart, pause, stop and start them, by STREAM or STREAM/N."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.console import Console
from forebay.cli.database import driver_log
from forebay.cli.tables import print_table
from tracker_store import receivers as store
from tracker_store.states import DesiredState
from tracker_store.status import receiver_status

if TYPE_CHECKING:
    from tracker_store.status import ReceiverStatus

APPLICATION = "forebay receivers"

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Name = Annotated[
    str, typer.Argument(metavar="STREAM[/N]", help="All receivers of a stream, or one of them by its number.")
]

app = typer.Typer(help="Receivers: list, restart, pause, stop, start.", invoke_without_command=True)


@app.callback()
def receivers(context: typer.Context, as_json: AsJson = False) -> None:  # noqa: FBT002
    """List receivers: state, wanted state, host, last block, rate limit, and the reason for the state.

    Times are UTC. "rate" is the limit in records per second; - means none.
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
            row.state,
            row.desired_state,
            row.host or "-",
            "-" if row.epoch is None else str(row.epoch),
            "-" if row.last_block_at is None else f"{row.last_block_at:%Y-%m-%d %H:%M:%S}",
            "-" if row.rate_limit is None else f"{row.rate_limit:,.1f}",
        )
        for row in rows
    ]
    print_table(console, ("receiver", "state", "wanted", "host", "epoch", "last block", "rate"), cells)
    for row in rows:
        if row.reason:
            console.print(f"{row.stream}/{row.ordinal}: {row.reason}", markup=False, soft_wrap=True)


def _plain(row: ReceiverStatus) -> dict[str, object]:
    values = {name: getattr(row, name) for name in row.__slots__}
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}


@app.command()
def restart(name: Name) -> None:
    """Restart receivers, also those that are FAILED.

    Each stops reading and registers what it holds; the tracker then places it again, in a new process. A receiver that
    is stopped is refused.
    """
    console = Console(highlight=False, soft_wrap=True)
    with driver_log(console, application_name=APPLICATION) as connection:
        for receiver in store.receivers_named(connection, name):
            full_name = f"{receiver.stream_name}/{receiver.ordinal}"
            if not store.restart_receiver(connection, receiver_id=receiver.receiver_id, why="restarted by an operator"):
                raise store.ReceiverStoppedError(f"receiver {full_name}")
            console.print(f"{full_name} (it was {receiver.state}) will be started again.", markup=False)


@app.command()
def start(name: Name) -> None:
    """Start receivers that were stopped or paused."""
    _want(name, DesiredState.RUNNING, "is to run")


@app.command()
def pause(name: Name) -> None:
    """Pause receivers: they stop reading, but keep their processes and placement."""
    _want(name, DesiredState.PAUSED, "is to pause")


@app.command()
def stop(name: Name) -> None:
    """Stop receivers until `forebay receivers start`: they stop reading, register what they hold, and end.

    Their pipelines keep running. To stop a pipeline with its receivers: `forebay stop --pipeline P`.
    """
    _want(name, DesiredState.STOPPED, "is to stop")


def _want(name: str, desired: DesiredState, what: str) -> None:
    console = Console(highlight=False, soft_wrap=True)
    with driver_log(console, application_name=APPLICATION) as connection:
        for receiver in store.receivers_named(connection, name):
            store.set_desired_state(connection, receiver_id=receiver.receiver_id, desired=desired)
            console.print(f"{receiver.stream_name}/{receiver.ordinal} {what} (it is {receiver.state}).", markup=False)

"""`forebay agents`: list the agents, drain one, rebalance receivers, and forget a host that will not come back."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from forebay.cli.instance import names
from forebay.cli.instance.database import driver_log
from forebay.cli.terminal.confirmation import Yes, confirm
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.tables import print_table
from orchestration.tracker.rebalancing import planned_moves
from tracker_store.receivers import agents as store
from tracker_store.receivers.hand_overs import request_rebalance

APPLICATION = "forebay agents"

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
Name = Annotated[
    str, typer.Argument(help="The agent's name, as `forebay agents` shows it.", autocompletion=names.agents)
]

app = typer.Typer(help="Agents and their hosts: list, drain, undrain, rebalance, forget.", invoke_without_command=True)


@app.callback()
def agents(context: typer.Context, as_json: AsJson = False) -> None:  # noqa: FBT002
    """List agents, and hosts that have receivers but no agent.

    "receivers" counts those that are placed on the agent; "waiting" counts those that belong to its host and are not
    placed.

    For example:

        forebay agents list
        forebay agents list --json
    """
    if context.invoked_subcommand is not None:
        return
    console = Console(highlight=False, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        rows = store.list_agents(connection)
    if as_json:
        listed = [
            {**asdict(row), "started_at": None if row.started_at is None else row.started_at.isoformat()}
            for row in rows
        ]
        typer.echo(json.dumps({"agents": listed}))
        return
    cells: list[tuple[str, ...]] = []
    for row in rows:
        state = "gone" if row.agent_id is None else "draining" if row.draining else "running"
        figures = ("-", "-") if row.agent_id is None else (str(row.receivers), str(row.slots))
        cells.append((row.name or "-", row.host, *figures, str(row.waiting), state))
    print_table(console, ("agent", "host", "receivers", "slots", "waiting", "state"), cells)


@app.command()
def drain(name: Name, as_json: AsJson = False) -> None:  # noqa: FBT002
    """Move all receivers off an agent, and place none on it until `forebay agents undrain`.

    Each receiver stops reading, registers what it holds, and starts again on another agent that has a free slot. A
    receiver that belongs to the agent's host (a listener's address, one receiver per host) stops and waits. If the
    agent is started again under this name, it is still draining.

    For example:

        forebay agents drain host-1
        forebay agents drain host-1 --json
    """
    console = Console(highlight=False, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        placed = store.set_draining(connection, name=name, draining=True)
        others = [row for row in store.list_agents(connection) if row.name != name and not row.draining]
    free = sum(max(0, row.slots - row.receivers) for row in others)
    if as_json:
        typer.echo(json.dumps({"name": name, "draining": True, "receivers": placed, "free_slots": free}))
    console.print(f"{name} is draining; {placed} receiver(s) leave it.", markup=False)
    if placed > free:
        console.print(
            f"Other agents have {free} free slot(s): the rest waits for one, or for `forebay agents undrain {name}`.",
            style="bold red",
        )


@app.command()
def undrain(name: Name, as_json: AsJson = False) -> None:  # noqa: FBT002
    """Let receivers be placed on an agent again.

    Rebalancing gives it some back, unless it is switched off.

    For example:

        forebay agents undrain host-1
        forebay agents undrain host-1 --json
    """
    console = Console(highlight=False, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        placed = store.set_draining(connection, name=name, draining=False)
    if as_json:
        typer.echo(json.dumps({"name": name, "draining": False, "receivers": placed}))
    console.print(f"{name} may have receivers again.", markup=False)


@app.command()
def rebalance(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the moves, and ask for none.")] = False,  # noqa: FBT002
    listeners: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            "--listeners",
            help="Move receivers that listen too: their senders must use the other host's address from then on.",
        ),
    ] = False,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Spread receivers evenly over the agents now, and bring them to the hosts that they prefer.

    The leading tracker moves one receiver after the other. Each goes on where it is until a process on the other agent
    is ready; then it stops reading, registers what it holds, and the other process goes on. Without this command the
    tracker does the same, with pauses (FOREBAY_REBALANCE), when an agent has come.

    For example:

        forebay agents rebalance --dry-run
        forebay agents rebalance --listeners
    """
    console = Console(highlight=False, stderr=as_json, soft_wrap=True)
    with driver_log(console, application_name=APPLICATION) as connection:
        moves = planned_moves(connection, with_listeners=listeners)
        requested = bool(moves) and not dry_run
        if requested:
            request_rebalance(connection, listeners=listeners)
    if as_json:
        typer.echo(json.dumps({"moves": [asdict(move) for move in moves], "requested": requested}))
        return
    if not moves:
        console.print("Nothing to move: receivers are spread evenly, as far as they may move.")
        return
    cells = [(move.receiver, move.from_host, move.to_host, move.why) for move in moves]
    print_table(console, ("receiver", "from", "to", "why"), cells)
    if requested:
        console.print("The leading tracker makes these moves, one after the other. To follow them: forebay receivers")


@app.command()
def forget(
    host: Annotated[
        str,
        typer.Argument(
            help="A host that will not come back, as `forebay agents` shows it.", autocompletion=names.lost_hosts
        ),
    ],
    yes: Yes = False,  # noqa: FBT002
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Forget a host: remove the receivers that belong to it, and let its listeners listen at another address.

    Blocks that they have stored are processed as usual. If the host comes back after all, it gets its receivers
    again. If the host had a block store that no other host sees, hosts with another block store may run receivers from
    now on.

    For example:

        forebay agents forget host-1
        forebay agents forget host-1 --yes
    """
    console = Console(highlight=False, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        confirm(
            f"Blocks that only {host} has are lost, and its receivers are removed. Forget {host}?",
            yes=yes,
            err=as_json,
        )
        removed, freed = store.forget_host(connection, host)
    if as_json:
        typer.echo(
            json.dumps({"host": host, "forgotten": True, "removed_receivers": removed, "freed_listeners": freed})
        )
    console.print(
        f"{host} is given up: {removed} receiver(s) of its own removed, {freed} listener(s) free to go.", markup=False
    )

"""`forebay agent`, and the hidden commands that it runs its children by."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.parent_pipe import stop_event
from orchestration.settings import Settings
from tracker_store.engine import create_engine

if TYPE_CHECKING:
    from collections.abc import Sequence

ROLES = ("receivers", "tracker")
DEFAULT_SLOTS = 16
DEFAULT_RECEIVERS_PER_PROCESS = 1


def _roles(value: str) -> list[str]:
    roles = [role.strip() for role in value.split(",") if role.strip()]
    unknown = [role for role in roles if role not in ROLES]
    if unknown or not roles:
        message = f"{value!r}: give one or more of {', '.join(ROLES)}, separated by commas"
        raise typer.BadParameter(message)
    return roles


def agent(
    host: Annotated[str | None, typer.Option(help="The name of this host; its own unless given.")] = None,
    slots: Annotated[int, typer.Option(min=0, help="How many receivers may run here.")] = DEFAULT_SLOTS,
    roles: Annotated[str, typer.Option(help="What runs here: receivers, tracker, or both.")] = ",".join(ROLES),
    receivers_per_process: Annotated[
        int,
        typer.Option(
            min=1,
            envvar="FOREBAY_RECEIVERS_PER_PROCESS",
            help="How many receivers may share a process. 1 isolates each; up to a few hundred suit many small ones, "
            "which then stop for a moment together when one of them crashes their process.",
        ),
    ] = DEFAULT_RECEIVERS_PER_PROCESS,
    parent_pipe: Annotated[  # noqa: FBT002
        bool, typer.Option("--parent-pipe", hidden=True, help="Stop at the end of standard input.")
    ] = False,
) -> None:
    """Run this host's agent: it starts, watches and restarts the receivers that are placed here.

    One agent per host. Any agent with the role `tracker` can lead; one does. Stops on SIGTERM or Ctrl-C, after
    its receivers have drained.
    """
    from receiver_runtime.agent import Agent  # noqa: PLC0415  other commands need none of it

    settings = Settings()
    wanted = _roles(roles)
    stop = stop_event(parent_pipe=parent_pipe)
    engine = create_engine(settings.require_database_url(), application_name="forebay agent")
    host = host or socket.gethostname()
    command = [sys.executable, "-m", "forebay.cli"]

    def receiver_command(receivers: Sequence[tuple[int, int]]) -> list[str]:
        pairs = [word for pair in receivers for word in ("--receiver", "{}:{}".format(*pair))]
        return [*command, "receiver", *pairs]

    Agent(
        engine,
        name=host,
        host=host,
        slots=slots if "receivers" in wanted else 0,
        receiver_command=receiver_command,
        role_commands={"tracker": [*command, "tracker"]} if "tracker" in wanted else {},
        log_directory=Path(settings.home) / "logs",
        receivers_per_process=receivers_per_process,
    ).run(stop)
    engine.dispose()


def tracker() -> None:
    """Run a tracker: it leads when it can, and places receivers. A child of the agent."""
    from orchestration.tracker.cleaner import Cleaner  # noqa: PLC0415
    from orchestration.tracker.tracker import Tracker  # noqa: PLC0415
    from receiver_runtime.block_store.stores import open_block_store  # noqa: PLC0415

    settings = Settings()
    stop = stop_event(parent_pipe=True)
    engine = create_engine(settings.require_database_url(), application_name="forebay tracker")
    Tracker(
        engine,
        heartbeat_limit_seconds=settings.heartbeat_limit_seconds,
        cleaner=Cleaner(open_block_store(settings.block_store_roots)),
    ).run(stop)
    engine.dispose()

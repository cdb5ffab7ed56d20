"""`forebay receiver`: one receiver process (hidden: the agent starts it, and people don't)."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestration.declarations.settings import Settings


def receiver(
    receiver: Annotated[
        list[str] | None,
        typer.Option(help="RECEIVER_ID:ASSIGNMENT: a receiver and the placement to start it for; may be repeated."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="This host, as its agent names it (default: its hostname).")] = None,
    spare: Annotated[  # noqa: FBT002
        bool, typer.Option("--spare", help="Load everything, then wait until the agent names the receivers.")
    ] = False,
) -> None:
    """Run receivers until each has been stopped, was fenced, or failed; the exit code says which."""
    from receiver_runtime.agent.spare_process import load, wait_for_work  # noqa: PLC0415
    from receiver_runtime.process.process_control import parse_receiver  # noqa: PLC0415  other commands need none of it
    from receiver_runtime.process.receiver_process import run  # noqa: PLC0415

    settings = Settings()
    try:
        receivers = [parse_receiver(value) for value in receiver or []]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if spare:
        load()
        begin = wait_for_work(0)
        if begin is None:
            return
        receivers = list(begin.receivers)
    code = run(
        receivers,
        database_url=settings.require_database_url(),
        block_store=settings.block_store_roots,
        block_key=settings.block_key,
        keys_for_reading=settings.block_keys_for_reading,
        host=host,
    )
    raise typer.Exit(int(code))

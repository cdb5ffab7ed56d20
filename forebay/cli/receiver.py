"""`forebay receiver`: one receiver process, as the agent starts it (hidden: nobody runs it by hand)."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestration.settings import Settings


def receiver(
    receiver: Annotated[
        list[str] | None,
        typer.Option(help="RECEIVER_ID:ASSIGNMENT: which, and the placement it is started for; may be repeated."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="As its agent calls this host; its own name unless given.")] = None,
    spare: Annotated[  # noqa: FBT002
        bool, typer.Option("--spare", help="Load everything, and wait for the agent to say which receivers.")
    ] = False,
) -> None:
    """Run receivers until each was told to stop, was fenced, or failed; the exit code says which."""
    from receiver_runtime.process_control import parse_receiver  # noqa: PLC0415  other commands need none of it
    from receiver_runtime.receiver_process import run  # noqa: PLC0415
    from receiver_runtime.spare_process import load, wait_for_work  # noqa: PLC0415

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
        receivers, database_url=settings.require_database_url(), block_store=settings.block_store_roots, host=host
    )
    raise typer.Exit(int(code))

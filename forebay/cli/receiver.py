"""`forebay receiver`: one receiver process, as the agent starts it (hidden: nobody runs it by hand)."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestration.settings import Settings


def receiver(
    receiver: Annotated[
        list[str],
        typer.Option(help="RECEIVER_ID:ASSIGNMENT: which, and the placement it is started for; may be repeated."),
    ],
) -> None:
    """Run receivers until each was told to stop, was fenced, or failed; the exit code says which."""
    from receiver_runtime.process_control import parse_receiver  # noqa: PLC0415  other commands need none of it
    from receiver_runtime.receiver_process import run  # noqa: PLC0415

    try:
        receivers = [parse_receiver(value) for value in receiver]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    settings = Settings()
    code = run(receivers, database_url=settings.require_database_url(), block_store=settings.block_store_roots)
    raise typer.Exit(int(code))

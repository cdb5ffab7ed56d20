"""`forebay receiver`: one receiver process, as the agent starts it (hidden: nobody runs it by hand)."""

from __future__ import annotations

from typing import Annotated

import typer

from orchestration.settings import Settings


def receiver(
    receiver_id: Annotated[int, typer.Option(help="Which receiver.")],
    assignment: Annotated[int, typer.Option(help="The placement for which this process was started.")],
) -> None:
    """Run one receiver until it is told to stop, is fenced, or fails; the exit code says which."""
    from receiver_runtime.receiver_process import run  # noqa: PLC0415  other commands need none of it

    settings = Settings()
    code = run(
        receiver_id=receiver_id,
        assignment=assignment,
        database_url=settings.require_database_url(),
        block_store=str(settings.block_store_root),
    )
    raise typer.Exit(int(code))

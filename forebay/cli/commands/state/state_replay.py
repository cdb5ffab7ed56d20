"""Run an output with a state again from a batch on: `forebay batches replay --forward`, and going on with it."""

from __future__ import annotations

import uuid
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.commands.batches.batch_bisect import declared_pipeline
from forebay.cli.commands.batches.batch_times import PipelineName  # noqa: TC001  Typer reads it
from forebay.cli.instance import names
from forebay.cli.instance.database import database_url, driver_log
from forebay.cli.services.running_module import UNLESS_GIVEN
from forebay.cli.terminal.confirmation import Yes, confirm
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.failures import CommandError
from forebay.cli.terminal.spark_output import spark_output_in, without_stack
from orchestration.declarations.settings import Settings
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.state_replays import (
    batches_left,
    begin_state_replay,
    forward_cost,
    resume_state_replay,
    state_replays,
    undo_state_replay,
)
from tracker_store.schema.declarations import PipelineDeclaration
from tracker_store.schema.states import StateReplayState

if TYPE_CHECKING:
    from datetime import datetime

    import sqlalchemy as sa

    from tracker_store.batches.state_replays import StateReplay

APPLICATION = "forebay state"
OutputName = Annotated[
    str, typer.Argument(metavar="OUTPUT", help="The output with the state.", autocompletion=names.outputs)
]
Module = Annotated[str | None, typer.Option(help=f"The module that declares it; {UNLESS_GIVEN}.")]


def replay_from(pipeline: str, from_time: datetime, outputs: list[str], *, module: str | None, yes: bool) -> bool:
    """Begin a replay forward, after a question, and run it here; return whether it came to its end."""
    console = Console(highlight=False, soft_wrap=True)
    with driver_log(console, application_name=APPLICATION) as connection:
        row = get_pipeline(connection, pipeline)
        stateful = [
            name for name, output in PipelineDeclaration.of(row.declaration).outputs.items() if output.has_state
        ]
        chosen = outputs or stateful
        if len(chosen) != 1 or chosen[0] not in stateful:
            message = (
                f"--forward runs one output with a state: give --output, one of {', '.join(stateful)}"
                if stateful
                else f"pipeline {pipeline} has no output with a state: replay its batches without --forward"
            )
            raise CommandError(message)
        [output] = chosen
        cost = forward_cost(connection, pipeline_id=row.pipeline_id, output=output, from_time=from_time)
        console.print(
            f"{cost.batches:,} batch(es) of output {output}, from {from_time.isoformat()} on: "
            f"{cost.records:,} records, {cost.bytes:,} bytes. New batches of it wait until the last of these is "
            "committed.",
            markup=False,
        )
        confirm("Run them again?", yes=yes)
        replay_id = begin_state_replay(connection, pipeline_id=row.pipeline_id, output=output, from_time=from_time)
        return _carry_on(console, connection, pipeline, replay_id, module)


def resume(
    pipeline: PipelineName,
    output: OutputName,
    module: Module = None,
) -> None:
    """Go on with a replay of an output's state that was stopped, failed or killed, in this process.

    Its results so far stay. For example:

        forebay state resume visits totals
    """
    console = Console(highlight=False, soft_wrap=True)
    with driver_log(console, application_name=APPLICATION) as connection:
        found = _unfinished(connection, pipeline, output)
        if found.state is StateReplayState.STOPPED:
            resume_state_replay(connection, found.replay_id)
        is_done = _carry_on(console, connection, pipeline, found.replay_id, module)
    raise typer.Exit(0 if is_done else 1)


def undo(
    pipeline: PipelineName,
    output: OutputName,
    module: Module = None,
    yes: Yes = False,  # noqa: FBT002
) -> None:
    """Undo the newest replay of an output's state: each batch gets the result and the state again that it had.

    The results are computed again, by the code as it is now, from the state that each batch had read. So declare the
    function as it was before, if it was changed. For example:

        forebay state undo visits totals
    """
    console = Console(highlight=False, soft_wrap=True)
    with driver_log(console, application_name=APPLICATION) as connection:
        row = get_pipeline(connection, pipeline)
        found = next(iter(state_replays(connection, pipeline_id=row.pipeline_id, output=output)), None)
        if found is None:
            message = f"the state of output {output} was never replayed: there is nothing to undo"
            raise CommandError(message)
        if found.state is not StateReplayState.UNDOING:
            confirm(f"Undo replay {found.replay_id}, from {found.from_time.isoformat()} on?", yes=yes)
            undo_state_replay(connection, found.replay_id)
        is_done = _carry_on(console, connection, pipeline, found.replay_id, module)
    raise typer.Exit(0 if is_done else 1)


def _unfinished(connection: sa.Connection, pipeline: str, output: str) -> StateReplay:
    row = get_pipeline(connection, pipeline)
    for found in state_replays(connection, pipeline_id=row.pipeline_id, output=output):
        if found.is_unfinished:
            return found
    message = f"no replay of the state of output {output} is unfinished: there is nothing to go on with"
    raise CommandError(message)


def _carry_on(console: Console, connection: sa.Connection, pipeline: str, replay_id: int, module: str | None) -> bool:
    from orchestration.replays.state_forward import replay_forward  # noqa: PLC0415  loads the sinks
    from orchestration.spark.session.session import spark_session  # noqa: PLC0415  loads Spark

    settings = Settings()
    settings = settings.with_database_url(database_url(settings))
    declared = declared_pipeline(pipeline, module)
    total = batches_left(connection, replay_id)
    path = settings.home.absolute() / "logs" / f"replay-{pipeline}.log"
    console.print(f"Replay {replay_id}: {total} batch(es) to run. What Spark prints: {path}", markup=False)
    with ExitStack() as stack:
        stack.enter_context(spark_output_in(path, console))
        replays = stack.enter_context(
            closing(
                replay_forward(
                    declared,
                    replay_id,
                    run_id=f"forebay state replay {uuid.uuid4()}",
                    settings=settings,
                    session=lambda: spark_session(
                        settings, application=f"forebay replay {pipeline}", configuration=declared.spark_configuration
                    ),
                )
            )
        )
        for number, replayed in enumerate(replays, start=1):
            rows = ", ".join(f"{result.rows} rows" for result in replayed.results)
            said = without_stack(replayed.error) or f"replayed: {rows} in {replayed.seconds:.1f} s"
            console.print(f"{number} of {total}: {replayed.batch_time.isoformat()} {said}", markup=False)
            if replayed.error:
                console.print(
                    "The replay is stopped. Fix the cause, and run `forebay state resume`, or `forebay state undo`.",
                    markup=False,
                )
                return False
    console.print("All of it is done.")
    return True

"""Run an output with a state again from a batch on: `forebay batches replay --forward`, and going on with it.

Dagster runs it if it runs, else this process does.
"""

from __future__ import annotations

import json
import uuid
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.commands.batches.batch_bisect import declared_pipeline
from forebay.cli.commands.batches.batch_times import TIME_HELP, PipelineName, named_batch
from forebay.cli.commands.batches.replay_following import ReplayedRow
from forebay.cli.commands.state.forward_following import ForwardRun
from forebay.cli.instance import names
from forebay.cli.instance.database import database_url, driver_log
from forebay.cli.instance.running_dagster import dagster_token, dagster_url
from forebay.cli.services.running_module import UNLESS_GIVEN
from forebay.cli.terminal.confirmation import Yes, confirm
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.failures import CommandError
from forebay.cli.terminal.spark_output import spark_output_in, without_stack
from orchestration.declarations.settings import Settings
from orchestration.replays.forward_choice import output_to_replay
from orchestration.replays.replay_choice import ReplayError
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.state_replays import (
    batches_left,
    begin_state_replay,
    forward_cost,
    resume_state_replay,
    state_replay,
    state_replays,
    stop_state_replay,
    undo_state_replay,
)
from tracker_store.schema.states import StateReplayState

if TYPE_CHECKING:
    from collections.abc import Generator
    from datetime import datetime

    import sqlalchemy as sa

    from tracker_store.batches.state_replays import StateReplay

APPLICATION = "forebay state"
OutputName = Annotated[
    str, typer.Argument(metavar="OUTPUT", help="The output with the state.", autocompletion=names.outputs)
]
Local = Annotated[bool, typer.Option("--local", help="Run in this process, even if Dagster runs.")]
Module = Annotated[str | None, typer.Option(help=f"The module that declares it; {UNLESS_GIVEN}.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]


@dataclass(frozen=True, slots=True)
class Where:
    """Say where a replay runs: `local`, in this process, even if Dagster runs; `module` declares the pipeline then."""

    local: bool
    module: str | None


def replay_from(
    pipeline: str,
    from_time: datetime,
    outputs: list[str],
    *,
    where: Where,
    yes: bool,
    as_json: bool,
    from_nothing: bool = False,
) -> bool:
    """Begin a replay forward, after a question, and run it; return whether it came to its end."""
    console = Console(highlight=False, stderr=as_json, soft_wrap=True)
    with driver_log(console, application_name=APPLICATION) as connection:
        row = get_pipeline(connection, pipeline)
        output = output_to_replay(row.name, row.declaration, outputs)
        cost = forward_cost(connection, pipeline_id=row.pipeline_id, output=output, from_time=from_time)
        console.print(
            f"{cost.batches:,} batch(es) of output {output}, from {from_time.isoformat()} on: "
            f"{cost.records:,} records, {cost.bytes:,} bytes. New batches of it wait until the last of these is "
            "committed." + (" The state before the first of them is left out." if from_nothing else ""),
            markup=False,
        )
        confirm("Run them again?", yes=yes, err=as_json)
        replay_id = begin_state_replay(
            connection, pipeline_id=row.pipeline_id, output=output, from_time=from_time, from_nothing=from_nothing
        )
        return _carry_on(console, connection, pipeline, replay_id, where, as_json=as_json)


def rebuild(
    pipeline: PipelineName,
    output: OutputName,
    from_time: Annotated[
        str, typer.Option("--from", help=f"{TIME_HELP}: the first one to run again.", autocompletion=names.batches)
    ],
    local: Local = False,  # noqa: FBT002
    module: Module = None,
    yes: Yes = False,  # noqa: FBT002
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Make an output's state again of its batches from one on, as if it had none before, and replace their results.

    It is a replay of the state that begins with nothing: for one whose stored versions are gone, or that was wrong from
    its beginning. `forebay state resume` and `undo` go on with it, or take it back. The exit code is 1 if a batch
    failed: it is stopped then.

    For example:

        forebay state rebuild visits totals --from 2026-01-31T12:00:00Z
    """
    with driver_log(Console(stderr=True), application_name=APPLICATION) as connection:
        pipeline_id = get_pipeline(connection, pipeline).pipeline_id
        first = named_batch(connection, pipeline_id, from_time, pipeline=pipeline).batch_time
    is_done = replay_from(
        pipeline, first, [output], where=Where(local, module), yes=yes, as_json=as_json, from_nothing=True
    )
    raise typer.Exit(0 if is_done else 1)


def resume(
    pipeline: PipelineName,
    output: OutputName,
    local: Local = False,  # noqa: FBT002
    module: Module = None,
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Go on with a replay of an output's state that was stopped, failed or killed.

    Dagster runs it if it runs, else, or with --local, this process. Its results so far stay. The exit code is 1 if a
    batch failed: the replay is stopped then.

    For example:

        forebay state resume visits totals
    """
    console = Console(highlight=False, stderr=as_json, soft_wrap=True)
    with driver_log(console, application_name=APPLICATION) as connection:
        found = _unfinished(connection, pipeline, output)
        if found.state is StateReplayState.STOPPED:
            resume_state_replay(connection, found.replay_id)
        is_done = _carry_on(console, connection, pipeline, found.replay_id, Where(local, module), as_json=as_json)
    raise typer.Exit(0 if is_done else 1)


def undo(
    pipeline: PipelineName,
    output: OutputName,
    local: Local = False,  # noqa: FBT002
    module: Module = None,
    yes: Yes = False,  # noqa: FBT002
    as_json: AsJson = False,  # noqa: FBT002
) -> None:
    """Undo the newest replay of an output's state: each batch gets the result and the state again that it had.

    The results are computed again, by the code as it is now, from the state that each batch had read. So declare the
    function as it was before, if it was changed. The exit code is 1 if a batch failed; the same command goes on then.

    For example:

        forebay state undo visits totals
    """
    console = Console(highlight=False, stderr=as_json, soft_wrap=True)
    with driver_log(console, application_name=APPLICATION) as connection:
        row = get_pipeline(connection, pipeline)
        found = next(iter(state_replays(connection, pipeline_id=row.pipeline_id, output=output)), None)
        if found is None:
            message = f"the state of output {output} was never replayed: there is nothing to undo"
            raise CommandError(message)
        if found.state is not StateReplayState.UNDOING:
            confirm(f"Undo replay {found.replay_id}, from {found.from_time.isoformat()} on?", yes=yes, err=as_json)
            undo_state_replay(connection, found.replay_id)
        is_done = _carry_on(console, connection, pipeline, found.replay_id, Where(local, module), as_json=as_json)
    raise typer.Exit(0 if is_done else 1)


def _unfinished(connection: sa.Connection, pipeline: str, output: str) -> StateReplay:
    row = get_pipeline(connection, pipeline)
    for found in state_replays(connection, pipeline_id=row.pipeline_id, output=output):
        if found.is_unfinished:
            return found
    message = f"no replay of the state of output {output} is unfinished: there is nothing to go on with"
    raise CommandError(message)


def _carry_on(
    console: Console, connection: sa.Connection, pipeline: str, replay_id: int, where: Where, *, as_json: bool
) -> bool:
    """Run what is left, in Dagster or here; return whether it came to its end."""
    total = batches_left(connection, replay_id)
    settings = Settings()
    url = None if where.local else dagster_url(settings)
    console.print(f"Replay {replay_id}: {total} batch(es) to run, {'in Dagster' if url else 'in this process'}.")
    if url is None:
        run = _in_process(console, pipeline, replay_id, where.module)
    else:
        run = ForwardRun(
            console, connection, url=url, token=dagster_token(settings), pipeline=pipeline, replay_id=replay_id
        ).rows()
    rows: list[ReplayedRow] = []
    try:
        with closing(run):
            for number, row in enumerate(run, start=1):
                rows.append(row)
                console.print(
                    f"{number} of {total}: {row.batch_time.isoformat()} {row.outcome}: {row.detail}", markup=False
                )
    except ReplayError:
        _stop(connection, replay_id)
        raise
    found = state_replay(connection, replay_id)
    if as_json:
        batches = [{"batch_time": r.batch_time.isoformat(), "outcome": r.outcome, "detail": r.detail} for r in rows]
        typer.echo(json.dumps({"replay": replay_id, "state": found.state, "batches": batches}))
    if found.is_unfinished:
        console.print(
            f"The replay is {found.state}. Fix the cause, and run `forebay state resume`, or `forebay state undo`.",
            markup=False,
        )
    elif not as_json:
        console.print("All of it is done.")
    return not found.is_unfinished


def _stop(connection: sa.Connection, replay_id: int) -> None:
    """Stop a replay that nothing runs: Dagster has not launched it."""
    if state_replay(connection, replay_id).state is StateReplayState.RUNNING:
        stop_state_replay(connection, replay_id)


def _in_process(console: Console, pipeline: str, replay_id: int, module: str | None) -> Generator[ReplayedRow]:
    """Run what is left in this process."""
    from orchestration.replays.state_forward import replay_forward  # noqa: PLC0415  loads the sinks
    from orchestration.spark.session.session import spark_session  # noqa: PLC0415  loads Spark

    settings = Settings()
    settings = settings.with_database_url(database_url(settings))
    declared = declared_pipeline(pipeline, module)
    path = settings.home.absolute() / "logs" / f"replay-{pipeline}.log"
    console.print(f"What Spark prints: {path}", markup=False)
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
        for replayed in replays:
            if replayed.error:
                outcome = "refused" if replayed.refused else "failed"
                yield ReplayedRow(replayed.batch_time, outcome, without_stack(replayed.error))
            else:
                written = ", ".join(f"{result.rows} rows" for result in replayed.replaced)
                yield ReplayedRow(replayed.batch_time, "replayed", f"{written} in {replayed.seconds:.1f} s")

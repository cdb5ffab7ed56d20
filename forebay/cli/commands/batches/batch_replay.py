"""`forebay batches replay`: run finished batches again, in Dagster if it runs, else in this process."""

from __future__ import annotations

import json
import uuid
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich import box
from rich.table import Table

from forebay.cli.commands.batches.batch_bisect import declared_pipeline
from forebay.cli.commands.batches.batch_times import LATEST, TIME_HELP, Outputs, PipelineName, bound_time, named_batch
from forebay.cli.commands.batches.replay_following import ReplayedRow, ReplayRun
from forebay.cli.commands.state.state_replay import Where, replay_from
from forebay.cli.instance import names
from forebay.cli.instance.database import database_url, driver_log
from forebay.cli.instance.running_dagster import dagster_token, dagster_url
from forebay.cli.services.running_module import UNLESS_GIVEN
from forebay.cli.terminal.confirmation import Yes  # noqa: TC001  Typer reads it
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.spark_output import spark_output_in, without_stack
from orchestration.declarations.settings import Settings
from orchestration.replays.replay import checked_outputs, replay_batches
from orchestration.replays.replay_choice import REPLAYABLE, ReplayChoice, batches_to_replay, check_output_names
from orchestration.replays.replay_run import ReplayRequest
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.schema.declarations import PipelineDeclaration
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from orchestration.declarations.pipeline import Pipeline


def replay(
    pipeline: PipelineName,
    batch_time: Annotated[
        str,
        typer.Argument(
            metavar="[TIME]",
            help=f"{TIME_HELP}, or {LATEST}: the newest finished batch with records, QUARANTINED or COMPLETED.",
            autocompletion=names.batches,
        ),
    ] = "",
    from_time: Annotated[
        str, typer.Option("--from", help="The first batch time of a range.", autocompletion=names.batches)
    ] = "",
    to_time: Annotated[
        str, typer.Option("--to", help="The last batch time of a range.", autocompletion=names.batches)
    ] = "",
    output: Outputs = None,
    failed_outputs_only: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            "--failed-outputs-only", help="Of quarantined batches, run only the outputs that have no result yet."
        ),
    ] = False,
    quarantined: Annotated[  # noqa: FBT002
        bool, typer.Option("--quarantined", help="Only QUARANTINED batches: of the range, or all.")
    ] = False,
    forward: Annotated[  # noqa: FBT002
        bool,
        typer.Option("--forward", help="Of an output with a state: run TIME and every later batch again, in order."),
    ] = False,
    yes: Yes = False,  # noqa: FBT002
    local: Annotated[bool, typer.Option("--local", help="Run in this process, even if Dagster runs.")] = False,  # noqa: FBT002
    module: Annotated[str | None, typer.Option(help=f"The module that declares it; {UNLESS_GIVEN}.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """Run finished batches again with the blocks that they had, and replace their outputs: no record is doubled.

    Give TIME for one batch, --from and --to for a range, or nothing for the newest completed batch with records. If
    `forebay up` runs in this home, or FOREBAY_DAGSTER_URL names a webserver, Dagster executes and shows a run of
    PIPELINE_replay, which goes on if this command is ended. Else, or with --local, this process runs the batches, with
    Spark. A QUARANTINED batch becomes COMPLETED. If an output fails, its old result stays, and so does the batch's
    state. The exit code is 1 if a batch was not replayed. If Dagster's answer to the launch is lost, the command looks
    for the run, and if Dagster stops answering, it follows the run by the driver log.

    What Spark and the functions print in this process is in the file FOREBAY_HOME/logs/replay-PIPELINE.log.

    With --failed-outputs-only nothing is replaced: of QUARANTINED batches (without times: of the newest one), the
    outputs run that have no result, and the others are not computed again.

    With --quarantined, and no times, all QUARANTINED batches run again, from the oldest on: after a fix.

    An output with a state is run again with --forward: the batch at TIME with the state that it had, and then every
    later batch with the state that the one before it leaves. Dagster, or this process, runs them, after a question. New
    batches of the output wait. Cancel the run in Dagster, or end this process, to stop it; `forebay state resume` goes
    on with it, and `forebay state undo` takes it back.

    For example:

        forebay batches replay words
        forebay batches replay words 12:00:00 --output counts
        forebay batches replay words --from 2026-01-31 --to 2026-02-01
        forebay batches replay words --failed-outputs-only
        forebay batches replay words --quarantined
        forebay batches replay words 12:00:00 --forward
    """
    if forward:
        if from_time or to_time or failed_outputs_only or quarantined:
            message = "--forward runs TIME and every later batch: it takes no --from, --to, or choice of batches"
            raise typer.BadParameter(message)
        _forward(pipeline, batch_time, output or [], where=Where(local, module), yes=yes, as_json=as_json)
    console = Console(highlight=False, stderr=as_json, soft_wrap=True)
    if batch_time and (from_time or to_time):
        message = "give TIME for one batch, or --from and --to for a range, not both"
        raise typer.BadParameter(message)
    outputs = output or []
    with driver_log(console, application_name="forebay batches replay") as connection, ExitStack() as stack:
        applied = get_pipeline(connection, pipeline)
        pipeline_id = applied.pipeline_id
        check_output_names(pipeline, declared=PipelineDeclaration.of(applied.declaration).outputs, outputs=outputs)
        first = bound_time(from_time)
        if batch_time:
            states = (BatchState.QUARANTINED,) if quarantined or failed_outputs_only else REPLAYABLE
            first = named_batch(connection, pipeline_id, batch_time, pipeline=pipeline, latest_of=states).batch_time
        choice = ReplayChoice(
            first, bound_time(to_time), failed_outputs_only=failed_outputs_only, quarantined=quarantined
        )
        times = batches_to_replay(connection, pipeline_id, choice)
        settings = Settings()
        url = None if local else dagster_url(settings)
        console.print(f"{len(times)} batch(es) to replay, {'in Dagster' if url else 'in this process'}.")
        if url is None:
            declared = declared_pipeline(pipeline, module)
            path = settings.home.absolute() / "logs" / f"replay-{pipeline}.log"
            console.print(f"What Spark prints: {path}", markup=False)
            stack.enter_context(spark_output_in(path, console))
            replays = _in_process(declared, times, outputs, failed_outputs_only=failed_outputs_only)
        else:
            request = ReplayRequest(pipeline, replace(choice, from_time=times[0], to_time=times[-1]), tuple(outputs))
            token = dagster_token(settings)
            replays = ReplayRun(
                console, connection, url=url, token=token, pipeline_id=pipeline_id, request=request, times=times
            ).rows()
        rows = []
        for number, row in enumerate(replays, start=1):
            rows.append(row)
            console.print(
                f"{number} of {len(times)}: {row.batch_time.isoformat()} {row.outcome}: {without_stack(row.detail)}",
                markup=False,
            )
    if as_json:
        listed = [
            {"batch_time": r.batch_time.isoformat(), "outcome": r.outcome, "detail": without_stack(r.detail)}
            for r in rows
        ]
        typer.echo(json.dumps({"batches": listed}))
    else:
        table = Table("batch", "outcome", box=box.SIMPLE_HEAD)
        for row in rows:
            table.add_row(f"{row.batch_time:%Y-%m-%dT%H:%M:%SZ}", row.outcome)
        console.print(table)
    raise typer.Exit(0 if all(row.outcome == "replayed" for row in rows) else 1)


def _forward(pipeline: str, batch_time: str, outputs: list[str], *, where: Where, yes: bool, as_json: bool) -> NoReturn:
    """Run the batch and every later one again, and exit."""
    if not batch_time:
        message = "--forward needs TIME, the first batch to run again"
        raise typer.BadParameter(message)
    with driver_log(Console(stderr=True), application_name="forebay batches replay") as connection:
        pipeline_id = get_pipeline(connection, pipeline).pipeline_id
        first = named_batch(connection, pipeline_id, batch_time, pipeline=pipeline, latest_of=REPLAYABLE).batch_time
    done = replay_from(pipeline, first, outputs, where=where, yes=yes, as_json=as_json)
    raise typer.Exit(0 if done else 1)


def _in_process(
    pipeline: Pipeline, times: Sequence[datetime], outputs: Sequence[str], *, failed_outputs_only: bool
) -> Iterator[ReplayedRow]:
    from orchestration.spark.session.session import spark_session  # noqa: PLC0415  loads Spark

    settings = Settings()
    settings = settings.with_database_url(database_url(settings))
    for replayed in replay_batches(
        pipeline,
        times,
        outputs=checked_outputs(pipeline, outputs),
        failed_outputs_only=failed_outputs_only,
        run_id=f"forebay batches replay {uuid.uuid4()}",
        settings=settings,
        session=lambda: spark_session(
            settings, application=f"forebay replay {pipeline.name}", configuration=pipeline.spark_configuration
        ),
    ):
        if replayed.error:
            yield ReplayedRow(replayed.batch_time, "refused" if replayed.refused else "failed", replayed.error)
        else:
            rows = ", ".join(f"{result.output} {result.rows} rows" for result in replayed.replaced)
            detail = f"{rows or 'every output had a result'} in {replayed.seconds:.1f} s"
            yield ReplayedRow(replayed.batch_time, "replayed", detail)

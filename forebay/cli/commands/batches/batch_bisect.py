"""`forebay batches bisect`: finds the records that break a batch, without writing anything."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from forebay.cli.commands.batches.batch_times import LATEST, TIME_HELP, Outputs, PipelineName, named_batch
from forebay.cli.instance import names
from forebay.cli.instance.database import database_url, driver_log
from forebay.cli.services.running_module import UNLESS_GIVEN, named_module
from forebay.cli.terminal.allocated_blocks import block_as_json
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.spark_output import spark_output_in, without_stack
from orchestration.declarations.modules import load_pipelines
from orchestration.declarations.settings import Settings
from orchestration.replays.batch_bisect import MOST_RECORDS, BatchTrial
from orchestration.replays.batch_bisect import bisect as halve
from orchestration.replays.replay import checked_outputs
from orchestration.replays.replay_choice import ReplayError
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.close_names import did_you_mean
from tracker_store.receivers.receivers import placements
from tracker_store.schema.states import BatchState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    import sqlalchemy as sa

    from orchestration.declarations.pipeline import Pipeline
    from orchestration.replays.batch_bisect import Bisection, Culprit
    from tracker_store.batches.received_block_tracker import AllocatedBlock

_MOST_SHOWN = 5
# The states of a batch that has failed and may be run again.
_FAILED = (BatchState.QUARANTINED, BatchState.FAILED, BatchState.BLOCKED)


def declared_pipeline(name: str, module: str | None) -> Pipeline:
    """Return the pipeline that the module declares. Raises ModuleMissingError, PipelineModuleError, ReplayError."""
    module = named_module(module, Settings())
    found = {pipeline.name: pipeline for pipeline in load_pipelines(module)}
    if name not in found:
        hint = did_you_mean(name, found) or "name its module by --module, or by FOREBAY_MODULE"
        message = f"module {module!r} declares no pipeline {name!r}, it has {', '.join(found)}: {hint}"
        raise ReplayError(message)
    return found[name]


def bisect(
    pipeline: PipelineName,
    batch_time: Annotated[
        str,
        typer.Argument(
            metavar="TIME",
            help=f"{TIME_HELP}, or {LATEST}: the newest batch with records that failed.",
            autocompletion=names.batches,
        ),
    ],
    output: Outputs = None,
    module: Annotated[str | None, typer.Option(help=f"The module that declares it; {UNLESS_GIVEN}.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """Find the record(s) that break a batch: run its output functions on halves of its blocks. Commits nothing.

    A block that fails is halved further, down to the record, if the failure is one record's.

    The exit code is 1 if something fails, 0 if nothing does. Runs Spark in this process. What Spark and the functions
    print, and errors with their stack traces, are in the file FOREBAY_HOME/logs/bisect-PIPELINE.log.

    For example:

        forebay batches bisect words latest
        forebay batches bisect words 2026-01-31T12:00:00Z
    """
    console = Console(highlight=False, stderr=as_json, soft_wrap=True)
    with driver_log(console, application_name="forebay batches bisect") as connection:
        pipeline_id = get_pipeline(connection, pipeline).pipeline_id
        time = named_batch(connection, pipeline_id, batch_time, pipeline=pipeline, latest_of=_FAILED).batch_time
        declared = declared_pipeline(pipeline, module)
        checked_outputs(declared, output or ())
        receivers = {place.receiver_id: f"{place.stream_name}/{place.ordinal}" for place in placements(connection)}
        path = Settings().home.absolute() / "logs" / f"bisect-{pipeline}.log"
        console.print(f"Batch {time.isoformat()} of {pipeline}. What Spark prints: {path}", markup=False)
        found, records = _search(console, connection, declared, time, output or (), path)
    if as_json:
        typer.echo(json.dumps(_plain(found, records, receivers) | {"spark_output": str(path)}))
    else:
        _show(console, found, records, receivers, path)
    raise typer.Exit(1 if found.error else 0)


def _search(
    console: Console,
    connection: sa.Connection,
    declared: Pipeline,
    time: datetime,
    outputs: Sequence[str],
    path: Path,
) -> tuple[Bisection[AllocatedBlock], Sequence[Sequence[Culprit[int]]]]:
    """Bisect the batch; print a line for each run, and leave everything that Spark prints to the file.

    Returns the blocks that fail, and for each of them the records.
    """
    from orchestration.spark.session.session import spark_session  # noqa: PLC0415  loads Spark

    settings = Settings()
    settings = settings.with_database_url(database_url(settings))
    with spark_output_in(path, console) as note:
        trial = BatchTrial(
            connection,
            declared,
            time,
            outputs=outputs,
            settings=settings,
            session=lambda: spark_session(
                settings, application=f"forebay bisect {declared.name}", configuration=declared.spark_configuration
            ),
        )

        def error_of(blocks: Sequence[AllocatedBlock]) -> str:
            said = trial.error_of(blocks)
            result = f"{len(blocks):,} block(s): {'fails' if said else 'fine'}"
            console.print(result)
            note(f"{result}\n{said}".rstrip())
            return said

        found = halve(trial.blocks, error_of)
        return found, [_search_records(console, trial, culprit.part) for culprit in found.culprits]


def _search_records(console: Console, trial: BatchTrial, blocks: Sequence[AllocatedBlock]) -> Sequence[Culprit[int]]:
    """Return the records that fail in the only block; none if there are several, or if no part of it fails alone."""
    if len(blocks) != 1:
        return []
    [block] = blocks
    console.print(f"block {block.sequence}: halving its {block.records:,} records")
    found = halve(range(block.records), lambda part: trial.error_of_records(block, part), most=MOST_RECORDS)
    return [culprit for culprit in found.culprits if len(culprit.part) < block.records or block.records == 1]


def _plain(
    found: Bisection[AllocatedBlock], records: Sequence[Sequence[Culprit[int]]], receivers: Mapping[int, str]
) -> dict[str, object]:
    return {
        "blocks": found.size,
        "runs": found.runs,
        "error": without_stack(found.error),
        "without_blocks": without_stack(found.without_any),
        "whole": found.whole,
        "culprits": [
            {
                "error": without_stack(culprit.error),
                "blocks": [block_as_json(block, receivers) for block in culprit.part],
                "records": [
                    {"first": one.part[0], "last": one.part[-1], "error": without_stack(one.error)} for one in inside
                ],
            }
            for culprit, inside in zip(found.culprits, records, strict=True)
        ],
    }


def _show(
    console: Console,
    found: Bisection[AllocatedBlock],
    records: Sequence[Sequence[Culprit[int]]],
    receivers: Mapping[int, str],
    path: Path,
) -> None:
    if not found.error:
        console.print(
            "Nothing fails: the functions process all blocks. The failure was in the sink or the cluster, or has been "
            "fixed: run `forebay batches replay`.",
        )
        return
    if found.without_any:
        console.print(
            "It fails without any record, so the code is at fault, and no block: "
            f"{without_stack(found.without_any)}\nThe whole error: {path}",
            markup=False,
        )
        return
    for culprit, inside in zip(found.culprits, records, strict=True):
        if len(culprit.part) > 1:
            console.print(f"{len(culprit.part)} blocks fail together, and neither half of them alone:")
        for block in culprit.part[:_MOST_SHOWN]:
            name = receivers.get(block.receiver_id, f"receiver {block.receiver_id}")
            console.print(
                f"{name} block {block.sequence}: {block.records:,} records, segment {block.path}, "
                f"offset {block.handle.offset}",
                style="bold red",
                markup=False,
            )
            console.print(f"  its records: forebay blocks records {name} {block.sequence}", markup=False)
        if len(culprit.part) > _MOST_SHOWN:
            console.print(f"… and {len(culprit.part) - _MOST_SHOWN} more (--json shows all)")
        for one in inside:
            line = one.part[0] + 1
            which = f"line {line}" if len(one.part) == 1 else f"lines {line} to {one.part[-1] + 1}, together"
            console.print(f"  of these, {which}: {without_stack(one.error)}", markup=False)
        if not inside:
            console.print(f"  {without_stack(culprit.error)}", markup=False)
    if not found.whole:
        console.print("There are more: with this many failing blocks, the code is probably at fault.")
    console.print(f"The whole errors: {path}", markup=False)

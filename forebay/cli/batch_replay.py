"""`forebay batches replay`: run finished batches again, in Dagster if it runs, else in this process."""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from forebay.cli.batch_bisect import declared_pipeline
from forebay.cli.console import Console
from forebay.cli.dagster_home import URL_FILE, kept_token
from forebay.cli.database import database_url, driver_log
from forebay.cli.services.supervisor_lock import lock_holder
from orchestration.batch_schedule import sensor_name
from orchestration.replay import ReplayError, batches_to_replay, checked_outputs, parsed_time, replay_batches
from orchestration.settings import Settings
from orchestration.tracker.dagster_client import DagsterClient, DagsterError
from tracker_store import batches as store
from tracker_store.pipelines import get_pipeline
from tracker_store.states import AttemptState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    import sqlalchemy as sa

    from orchestration.pipeline import Pipeline

POLL_SECONDS = 0.5
# A person waits for the answer. A busy machine takes long, and no answer would leave open whether there is a run.
ANSWER_SECONDS = 60.0
_FINISHED = ("SUCCESS", "FAILURE", "CANCELED")


class _Row:
    """One batch of the result table."""

    def __init__(self, batch_time: datetime, outcome: str, detail: str = "") -> None:
        self.batch_time = batch_time
        self.outcome = outcome
        self.detail = detail


def dagster_url(settings: Settings) -> str | None:
    """Return FOREBAY_DAGSTER_URL, else the webserver's URL of the `forebay up` that runs in this home, else None."""
    if settings.dagster_url is not None:
        return settings.dagster_url.reveal()
    file = settings.home / "dagster" / URL_FILE
    return file.read_text(encoding="utf-8") if lock_holder(settings.home) is not None and file.exists() else None


def dagster_token(settings: Settings) -> str | None:
    """Return the token of the webserver at `dagster_url`, or None if it needs none."""
    if settings.dagster_token is not None or settings.dagster_url is not None:
        return settings.webserver_token
    return kept_token(settings.home / "dagster")


def replay(
    pipeline: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline's name.")],
    batch_time: Annotated[str, typer.Argument(metavar="[TIME]", help="One batch, as 2026-01-31T12:00:00Z (UTC).")] = "",
    from_time: Annotated[str, typer.Option("--from", help="The first batch time of a range.")] = "",
    to_time: Annotated[str, typer.Option("--to", help="The last batch time of a range.")] = "",
    output: Annotated[list[str] | None, typer.Option(help="Only this output; may be given several times.")] = None,
    failed_outputs_only: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            "--failed-outputs-only", help="Of quarantined batches, run only the outputs that have no result yet."
        ),
    ] = False,
    local: Annotated[bool, typer.Option("--local", help="Run in this process, even if Dagster runs.")] = False,  # noqa: FBT002
    module: Annotated[
        str | None, typer.Option(help="The module that declares it; FOREBAY_MODULE unless given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """Run finished batches again with the blocks that they had, and replace their outputs: no record is doubled.

    Give TIME for one batch, --from and --to for a range, or nothing for the newest completed batch. If `forebay up`
    runs in this home, or FOREBAY_DAGSTER_URL names a webserver, Dagster executes and shows a run of PIPELINE_replay,
    which goes on if this command is ended. Else, or with --local, this process runs the batches, with Spark. A
    QUARANTINED batch becomes COMPLETED. If an output fails, its old result stays, and so does the batch's state. The
    exit code is 1 if a batch was not replayed.

    With --failed-outputs-only nothing is replaced: of QUARANTINED batches (without times: of the newest one), the
    outputs run that have no result, and the others are not computed again.
    """
    console = Console(highlight=False, stderr=as_json, soft_wrap=True)
    if batch_time and (from_time or to_time):
        message = "give TIME for one batch, or --from and --to for a range, not both"
        raise typer.BadParameter(message)
    outputs = output or []
    with driver_log(console, application_name="forebay batches replay") as connection:
        pipeline_id = get_pipeline(connection, pipeline).pipeline_id
        times = batches_to_replay(
            connection,
            pipeline_id,
            from_time=parsed_time(batch_time or from_time),
            to_time=parsed_time(to_time),
            failed_outputs_only=failed_outputs_only,
        )
        url = None if local else dagster_url(Settings())
        console.print(f"{len(times)} batch(es) to replay, {'in Dagster' if url else 'in this process'}.")
        replays = (
            _in_process(declared_pipeline(pipeline, module), times, outputs, failed_outputs_only=failed_outputs_only)
            if url is None
            else _in_dagster(
                console, connection, url, pipeline, pipeline_id, times, outputs, failed_outputs_only=failed_outputs_only
            )
        )
        rows = []
        for number, row in enumerate(replays, start=1):
            rows.append(row)
            console.print(
                f"{number} of {len(times)}: {row.batch_time.isoformat()} {row.outcome}: {row.detail}", markup=False
            )
    if as_json:
        listed = [{"batch_time": r.batch_time.isoformat(), "outcome": r.outcome, "detail": r.detail} for r in rows]
        typer.echo(json.dumps({"batches": listed}))
    else:
        table = Table("batch", "outcome", box=box.SIMPLE_HEAD)
        for row in rows:
            table.add_row(f"{row.batch_time:%Y-%m-%dT%H:%M:%SZ}", row.outcome)
        console.print(table)
    raise typer.Exit(0 if all(row.outcome == "replayed" for row in rows) else 1)


def _in_process(
    pipeline: Pipeline, times: Sequence[datetime], outputs: Sequence[str], *, failed_outputs_only: bool
) -> Iterator[_Row]:
    from orchestration.spark.session import spark_session  # noqa: PLC0415  loads Spark

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
            yield _Row(replayed.batch_time, "refused" if replayed.refused else "failed", replayed.error)
        else:
            rows = ", ".join(f"{result.output} {result.rows} rows" for result in replayed.replaced)
            detail = f"{rows or 'every output had a result'} in {replayed.seconds:.1f} s"
            yield _Row(replayed.batch_time, "replayed", detail)


def _in_dagster(
    console: Console,
    connection: sa.Connection,
    url: str,
    pipeline: str,
    pipeline_id: int,
    times: Sequence[datetime],
    outputs: Sequence[str],
    *,
    failed_outputs_only: bool,
) -> Iterator[_Row]:
    """Launch a run of the replay job; yield each batch when its attempt has ended, and the rest when the run has."""
    client = DagsterClient(url, token=dagster_token(Settings()), timeout_seconds=ANSWER_SECONDS)
    config: dict[str, object] = {
        "from_time": times[0].isoformat(),
        "to_time": times[-1].isoformat(),
        "outputs": list(outputs),
    }
    if failed_outputs_only:
        # A code location of the previous version does not know it, and would refuse every replay.
        config["failed_outputs_only"] = True
    try:
        sensors = client.batch_sensors()
        if sensor_name(pipeline) not in sensors:
            message = f"Dagster at {url} has no pipeline {pipeline!r}: is its code loaded? --local replays it here"
            raise ReplayError(message)
        run_id = client.launch_job(
            sensors[sensor_name(pipeline)],
            f"{pipeline}_replay",
            {"ops": {f"{pipeline}__replay": {"config": config}}},
            {},
        )
        console.print(f"Run {run_id}: {url}/runs/{run_id}", markup=False)
        left = list(times)
        while left:
            finished = client.run_status(run_id) in _FINISHED
            for batch_time in list(left):
                row = _ended(connection, pipeline_id, batch_time, run_id)
                if row is not None:
                    left.remove(batch_time)
                    yield row
            if finished:
                break
            time.sleep(POLL_SECONDS)
    except DagsterError as error:
        message = f"Dagster at {url}: {type(error).__doc__} ({error}); --local replays in this process"
        raise ReplayError(message) from error
    for batch_time in left:
        yield _Row(batch_time, "refused", f"the run's log says why: {url}/runs/{run_id}")


def _ended(connection: sa.Connection, pipeline_id: int, batch_time: datetime, run_id: str) -> _Row | None:
    for attempt in store.attempts_of_batch(connection, pipeline_id, batch_time):
        if attempt.run_id == run_id and attempt.state is not AttemptState.RUNNING:
            done = attempt.state is AttemptState.SUCCEEDED
            return _Row(batch_time, "replayed" if done else "failed", attempt.error or f"attempt {attempt.attempt}")
    return None

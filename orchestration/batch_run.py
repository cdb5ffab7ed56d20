"""Runs one attempt at one batch, or a replay of it: claim, read, compute, write, commit, publish, complete.

Knows nothing of Dagster, so that a test can run and kill it alone. The driver log makes sure that each batch time
takes effect once: every statement that matters checks the attempt's number under the batch's lock, and an output
that an earlier attempt has committed is published again, not computed again.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import structlog

from orchestration.attempt_failure import failure_of
from orchestration.batch import Batch
from orchestration.batch_inputs import read_batch_inputs, stream_of
from orchestration.lost_blocks import LostBlocks, find_lost_blocks, report_lost_blocks
from orchestration.noted_replicas import report_noted_replicas
from orchestration.output_run import run_output
from orchestration.patience import patiently
from orchestration.publishing import publish, publish_what_is_left
from orchestration.spark.sinks.sink import OutputAttempt
from tracker_store import batches, outputs
from tracker_store.engine import connect, create_engine
from tracker_store.errors import BatchHeldError, DriverLogError
from tracker_store.input_metadata import record_input_metadata
from tracker_store.pipelines import get_pipeline
from tracker_store.processes import ProcessExpiredError, deregister_process, heartbeat, register_process
from tracker_store.retry import FIRST
from tracker_store.states import ProcessKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    import sqlalchemy as sa
    from pyspark.sql import DataFrame, SparkSession

    from orchestration.batch_inputs import BatchInputs
    from orchestration.pipeline import Output, Pipeline, Stream, Window
    from orchestration.settings import Settings

HEARTBEAT_SECONDS = 1.0
RECORD_SECONDS = 10.0

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class OutputResult:
    """Hold the committed result of one output after the run; `attempt` may be an earlier one that had committed it.

    `lost_records`, in `lost_blocks`, count the whole batch: see ``lost_blocks``.
    """

    output: str
    attempt: int
    location: str
    rows: int | None
    lost_blocks: int = 0
    lost_records: int = 0


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Hold a claimed attempt: the outputs that it commits (`outputs`), and all that are due (`due`)."""

    pipeline_id: int
    batch_time: datetime
    number: int
    run_id: str
    outputs: Sequence[Output]
    due: Sequence[Output]
    is_replay: bool = False


def run_batch(
    pipeline: Pipeline,
    *,
    batch_time: datetime,
    attempt: int,
    run_id: str,
    settings: Settings,
    session: Callable[[], SparkSession],
) -> list[OutputResult]:
    """Run attempt number `attempt` of the batch; return each output's result.

    Calls `session` after the claim, so that a run that may not run starts no Spark.
    Raises BatchHeldError when another run holds the batch, and whatever the user's function raises, after recording
    the attempt as failed.
    """
    due = [output for output in pipeline.outputs.values() if output.is_due(batch_time)]

    def claim(connection: sa.Connection, pipeline_id: int, process_id: int) -> _Attempt:
        batches.claim_attempt(
            connection,
            pipeline_id=pipeline_id,
            batch_time=batch_time,
            attempt=attempt,
            run_id=run_id,
            process_id=process_id,
        )
        return _Attempt(pipeline_id, batch_time, attempt, run_id, due, due)

    return _carry_out(pipeline, batch_time, claim, settings=settings, session=session)


def replay_batch(
    pipeline: Pipeline,
    *,
    batch_time: datetime,
    outputs: Sequence[str] = (),
    run_id: str,
    settings: Settings,
    session: Callable[[], SparkSession],
) -> list[OutputResult]:
    """Run a finished batch again, with the blocks that it was given then, and replace `outputs` (all unless named).

    Leaves out an output that is not due in this batch. A failure leaves the batch, and the outputs that were not
    replaced yet, as they were. Raises as `run_batch`, and BlocksNotRetainedError before it writes anything.
    """
    due = [output for output in pipeline.outputs.values() if output.is_due(batch_time)]
    chosen = [output for output in due if not outputs or output.name in outputs]
    windows = [window.length for output in chosen for window in output.windows]

    def claim(connection: sa.Connection, pipeline_id: int, process_id: int) -> _Attempt:
        number = batches.claim_replay(
            connection,
            pipeline_id=pipeline_id,
            batch_time=batch_time,
            run_id=run_id,
            process_id=process_id,
            reach=max(windows, default=timedelta(0)),
        )
        return _Attempt(pipeline_id, batch_time, number, run_id, chosen, due, is_replay=True)

    return _carry_out(pipeline, batch_time, claim, settings=settings, session=session)


def _carry_out(
    pipeline: Pipeline,
    batch_time: datetime,
    claim: Callable[[sa.Connection, int, int], _Attempt],
    *,
    settings: Settings,
    session: Callable[[], SparkSession],
) -> list[OutputResult]:
    engine = create_engine(settings.require_database_url(), application_name=f"forebay batch {pipeline.name}")
    spark = _Spark(session)
    try:
        with _heartbeats(engine, name=f"{pipeline.name} {batch_time.isoformat()}") as process_id:
            with connect(engine) as connection:
                attempt = claim(connection, get_pipeline(connection, pipeline.name).pipeline_id, process_id)
            log.info(
                "batch claimed",
                pipeline=pipeline.name,
                batch_time=batch_time.isoformat(),
                attempt=attempt.number,
                replay=attempt.is_replay,
            )
            try:
                return _run_outputs(engine, pipeline, attempt, settings=settings, session=spark.session)
            # An interrupt comes from outside and ends this process or its run: the tracker sees that and records LOST.
            except (Exception, SystemExit) as error:
                _record_failure(engine, pipeline, attempt, error, spark)
                raise
            finally:
                with _logged("could not report what was found of replicas"), connect(engine) as connection:
                    report_noted_replicas(connection, settings.block_store_roots)
    finally:
        engine.dispose()


class _Spark:
    """Make the session of an attempt when it asks for it, and keep it."""

    def __init__(self, make: Callable[[], SparkSession]) -> None:
        self._make = make
        self._made: SparkSession | None = None

    def session(self) -> SparkSession:
        self._made = self._make()
        return self._made

    def how_ended(self) -> str | None:
        """Return how the session ended; None while it lives, if there is none, or if it is a Connect server's."""
        from orchestration.spark.session import how_ended  # noqa: PLC0415  loads pyspark

        made = self._made
        if made is None or type(made).__module__.startswith("pyspark.sql.connect"):
            return None
        try:
            return how_ended(made)
        except Exception as error:  # noqa: BLE001  any error here: Spark gives no answer
            return f"Spark gives no answer ({type(error).__name__})"


def _record_failure(
    engine: sa.Engine, pipeline: Pipeline, attempt: _Attempt, error: BaseException, spark: _Spark
) -> None:
    """Record why the attempt failed. If that fails too, the tracker records LOST: this process's heartbeat stops."""
    failure = failure_of(error, spark.how_ended)
    fail = partial(
        batches.fail_attempt,
        pipeline_id=attempt.pipeline_id,
        batch_time=attempt.batch_time,
        attempt=attempt.number,
        run_id=attempt.run_id,
        error=failure.message,
        failure=failure.kind,
        max_attempts=pipeline.max_attempts,
        max_lost_attempts=pipeline.settings.max_lost_attempts,
        # This run still has events to write: the process that launches the next attempt ends it in Dagster if need be.
        least_pause=FIRST,
    )
    with _logged("could not record that the attempt failed"):
        # A commit that failed for the same reason has waited already: don't wait as long again.
        patiently(engine, fail, "the attempt's failure", seconds=RECORD_SECONDS)


def _run_outputs(
    engine: sa.Engine,
    pipeline: Pipeline,
    attempt: _Attempt,
    *,
    settings: Settings,
    session: Callable[[], SparkSession],
) -> list[OutputResult]:
    pipeline_id, batch_time = attempt.pipeline_id, attempt.batch_time
    with connect(engine) as connection:
        # A replay replaces what other attempts committed, but not what it committed itself in an earlier launch.
        committed = {
            commit.output: commit
            for commit in outputs.commits_of_batch(connection, pipeline_id, batch_time)
            if not attempt.is_replay or commit.attempt == attempt.number
        }
        attempts = batches.attempts_of_batch(connection, pipeline_id, batch_time)
        runs = {row.attempt: row.run_id for row in attempts}
        began_at = next((row.started_at for row in attempts if row.attempt == attempt.number), None)
        batch, lost, inputs = _batch(connection, pipeline, attempt, settings=settings)
    results: list[OutputResult] = []
    for output in attempt.outputs:
        commit = committed.get(output.name)
        if commit is None:
            written = run_output(
                engine,
                output,
                OutputAttempt(
                    pipeline.name, pipeline_id, output.name, batch_time, attempt.number, attempt.run_id, runs, began_at
                ),
                partial(output_result, output, batch, inputs, settings=settings, session=session),
                replaces=attempt.is_replay,
            )
            results.append(
                OutputResult(output.name, attempt.number, written.location, written.rows, lost.blocks, lost.records)
            )
        else:
            results.append(
                OutputResult(output.name, commit.attempt, commit.location, commit.rows, lost.blocks, lost.records)
            )
        publish(engine, pipeline_id, output, results[-1].location, batch_time=batch_time)
    patiently(engine, partial(_complete, attempt), "the batch's completion")
    with connect(engine) as connection:
        report_lost_blocks(connection, lost, pipeline=pipeline.name, batch_time=batch_time)
    publish_what_is_left(engine, pipeline, pipeline_id)
    return results


def _complete(attempt: _Attempt, connection: sa.Connection) -> None:
    names = [output.name for output in attempt.outputs]
    if attempt.is_replay:
        batches.complete_replay(
            connection,
            pipeline_id=attempt.pipeline_id,
            batch_time=attempt.batch_time,
            attempt=attempt.number,
            outputs=names,
            due=[output.name for output in attempt.due],
        )
    else:
        batches.complete_batch(
            connection,
            pipeline_id=attempt.pipeline_id,
            batch_time=attempt.batch_time,
            attempt=attempt.number,
            outputs=names,
        )


def _batch(
    connection: sa.Connection,
    pipeline: Pipeline,
    attempt: _Attempt,
    *,
    settings: Settings,
) -> tuple[Batch, LostBlocks, BatchInputs]:
    pipeline_id, batch_time = attempt.pipeline_id, attempt.batch_time
    row = batches.get_batch(connection, pipeline_id, batch_time)
    if row is None:
        raise BatchHeldError(f"pipeline {pipeline.name!r} has no batch at {batch_time.isoformat()}")
    inputs = read_batch_inputs(
        connection, pipeline, pipeline_id, batch_time, attempt.outputs, block_store=settings.block_store_roots
    )
    with _logged("the positions of its sources are not recorded"):
        record_input_metadata(connection, pipeline_id, batch_time)
    lost = find_lost_blocks(
        connection, settings.block_store_roots, chain.from_iterable([*inputs.blocks.values(), *inputs.windows.values()])
    )
    batch = Batch(
        pipeline=pipeline.name,
        time=batch_time,
        attempt=attempt.number,
        records=row.records,
        _blocks=inputs.blocks,
        lost_blocks=lost.blocks,
        lost_records=lost.records,
    )
    return batch, lost, inputs


def output_result(
    output: Output, batch: Batch, inputs: BatchInputs, *, settings: Settings, session: Callable[[], SparkSession]
) -> DataFrame:
    """Return the result of an output's function for the batch."""
    spark = session()
    arguments = {
        parameter: _read(spark, entry, batch, inputs, settings)
        for parameter, entry in zip(output.parameters, output.inputs, strict=True)
    }
    if output.wants_batch:
        return output.function(**arguments, batch=batch)  # type: ignore[no-any-return]
    return output.function(**arguments)  # type: ignore[no-any-return]


def _read(
    session: SparkSession, entry: Stream | Window, batch: Batch, inputs: BatchInputs, settings: Settings
) -> DataFrame:
    from orchestration.spark.allocation import encode_allocation, location_of  # noqa: PLC0415  loads pyspark
    from orchestration.spark.block_reader import ALLOCATION, BLOCK_KEYS, spark_schema  # noqa: PLC0415  loads pyspark
    from orchestration.spark.data_source import FORMAT  # noqa: PLC0415  loads pyspark

    stream = stream_of(entry)
    return (
        session.read.format(FORMAT)
        .schema(spark_schema(inputs.columns[stream.name]))
        .option("pipeline", batch.pipeline)
        .option("batch_time", batch.time.isoformat())
        .option("stream", stream.name)
        .option("block_store", settings.block_store_roots)
        .option(BLOCK_KEYS, ",".join(map(str, settings.block_key_references)))
        .option(ALLOCATION, encode_allocation(map(location_of, inputs.blocks_of(entry)), inputs.expected))
        .load()
    )


@contextmanager
def _heartbeats(engine: sa.Engine, *, name: str) -> Iterator[int]:
    """Register a process, raise its heartbeat every second until the context ends, and yield its id."""
    with connect(engine) as connection:
        process_id = register_process(
            connection, kind=ProcessKind.BATCH_RUN, name=name, host=socket.gethostname(), pid=os.getpid()
        )
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(HEARTBEAT_SECONDS):
            try:
                with connect(engine) as connection:
                    heartbeat(connection, process_id=process_id)
            except ProcessExpiredError:
                # The attempt's number fences its next statement on the batch; nothing to stop here.
                log.warning("declared dead by the tracker", process_id=process_id)
                return
            except DriverLogError as error:
                log.warning("heartbeat failed, trying again", error=str(error))

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield process_id
    finally:
        stop.set()
        thread.join()
        with _logged("could not sign off"), connect(engine) as connection:
            deregister_process(connection, process_id)


@contextmanager
def _logged(failure: str) -> Iterator[None]:
    """Log an error of the driver log instead of raising it: it must not hide why the run ends."""
    try:
        yield
    except DriverLogError as error:
        log.warning(failure, error=str(error))

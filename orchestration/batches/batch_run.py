"""Runs one attempt at one batch, or a replay of it: claim, read, compute, write, commit, publish, complete.

Knows nothing of Dagster, so that a test can run and kill it alone. The driver log makes sure that each batch time
takes effect once: every statement that matters checks the attempt's number under the batch's lock, and an output
that an earlier attempt has committed is published again, not computed again.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import structlog

from orchestration.batches.attempt_failure import failure_of
from orchestration.batches.attempt_outputs import AttemptOutputs, OutputResult, OutputsFailedError
from orchestration.batches.batch_heartbeat import heartbeats
from orchestration.batches.batch_inputs import read_batch_inputs, stream_of
from orchestration.batches.lost_blocks import LostBlocks, find_lost_blocks, report_lost_blocks
from orchestration.batches.noted_replicas import report_noted_replicas
from orchestration.batches.output_run import run_output
from orchestration.batches.publishing import publish, publish_what_is_left
from orchestration.batches.stateful.state_function import checked_pair, keys_of
from orchestration.batches.stateful.state_run import StateRun
from orchestration.batches.unavailable_store import BLOCK_STORE
from orchestration.declarations.batch import Batch
from orchestration.declarations.pipeline import BATCH_PARAMETER, STATE_PARAMETER, Window
from orchestration.declarations.sink import OutputAttempt
from orchestration.spark.statement_retry import retry_statement
from tracker_store.batches import batch_outputs, batches
from tracker_store.batches.input_metadata import record_input_metadata
from tracker_store.batches.outputs import commits_of_batch
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.retry import FIRST, PAUSES
from tracker_store.connection.engine import connect, create_engine
from tracker_store.connection.errors import BatchHeldError, DriverLogError
from tracker_store.connection.outage import SURVIVED
from tracker_store.schema.states import AttemptState, BatchState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    import sqlalchemy as sa
    from pyspark.sql import DataFrame, SparkSession

    from orchestration.batches.attempt_outputs import FailedOutput
    from orchestration.batches.batch_inputs import BatchInputs
    from orchestration.declarations.pipeline import Output, Pipeline, Stream
    from orchestration.declarations.settings import Settings
    from orchestration.declarations.sink import Column
    from orchestration.spark.output_threads import OutputThreads
    from tracker_store.batches.batches import AttemptRow
    from tracker_store.batches.outputs import OutputCommit
    from tracker_store.batches.received_block_tracker import AllocatedBlock
    from tracker_store.schema.batch_calendar import DecidedTimes

RECORD_SECONDS = 10.0

log = structlog.get_logger(__name__)


def _unreported(_: OutputResult) -> None:
    """Report no result."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """Hold a claimed attempt: the outputs that it commits (`outputs`), and all that are due (`due`).

    `replaces`: a replay that replaces what earlier attempts have committed. `forward`: the replay forward of a state
    that it is part of.
    """

    pipeline_id: int
    batch_time: datetime
    number: int
    run_id: str
    outputs: Sequence[Output]
    due: Sequence[Output]
    is_replay: bool = False
    replaces: bool = False
    forward: int | None = None


def run_batch(
    pipeline: Pipeline,
    *,
    batch_time: datetime,
    attempt: int,
    run_id: str,
    settings: Settings,
    session: Callable[[], SparkSession],
    on_committed: Callable[[OutputResult], None] = _unreported,
) -> list[OutputResult]:
    """Run attempt number `attempt` of the batch; return each output's result.

    Each output runs, unless an earlier attempt has committed it, whatever another one did (``attempt_outputs``).
    `on_committed` is called with each result as soon as readers see it, in this thread; it must not raise.

    Calls `session` after the claim, so that a run that may not run starts no Spark.
    Raises BatchHeldError when another run holds the batch. After recording the attempt as failed, raises
    OutputsFailedError if any of several outputs failed, and what the user's function raised if there is only one.
    """

    def claim(connection: sa.Connection, pipeline_id: int, process_id: int) -> _Attempt:
        due, _ = _due_outputs(connection, pipeline, pipeline_id, batch_time)
        batches.claim_attempt(
            connection,
            pipeline_id=pipeline_id,
            batch_time=batch_time,
            attempt=attempt,
            run_id=run_id,
            process_id=process_id,
        )
        return _Attempt(pipeline_id, batch_time, attempt, run_id, due, due)

    return _carry_out(pipeline, batch_time, claim, settings=settings, session=session, on_committed=on_committed)


def replay_batch(
    pipeline: Pipeline,
    *,
    batch_time: datetime,
    outputs: Sequence[str] = (),
    failed_outputs_only: bool = False,
    forward: int | None = None,
    process_id: int | None = None,
    run_id: str,
    settings: Settings,
    session: Callable[[], SparkSession],
    on_committed: Callable[[OutputResult], None] = _unreported,
) -> list[OutputResult]:
    """Run a finished batch again, with the blocks that it was given then, and replace `outputs` (all unless named).

    With `failed_outputs_only`, replaces nothing: runs only those that have no result. Leaves out an output that is not
    due in this batch. A failure leaves the batch, and the outputs that were not replaced yet, as they were. `forward`
    is the replay forward of the only one of `outputs`, which has a state, and `process_id` this process, if it has a
    heartbeat already. Raises as `run_batch`, and BlocksNotRetainedError and StatefulReplayError before it writes
    anything.
    """

    def claim(connection: sa.Connection, pipeline_id: int, process_id: int) -> _Attempt:
        due, decided = _due_outputs(connection, pipeline, pipeline_id, batch_time)
        chosen = [output for output in due if not outputs or output.name in outputs]
        kept = commits_of_batch(connection, pipeline_id, batch_time) if failed_outputs_only else []
        has_result = {commit.output for commit in kept}
        computed = [output for output in chosen if output.name not in has_result]
        windows = [batch_time - window.begin(batch_time, decided) for output in computed for window in output.windows]
        number = batches.claim_replay(
            connection,
            pipeline_id=pipeline_id,
            batch_time=batch_time,
            run_id=run_id,
            process_id=process_id,
            reach=max(windows, default=timedelta(0)),
            stateful=[output.name for output in computed if output.state is not None],
            forward=forward,
        )
        return _Attempt(
            pipeline_id,
            batch_time,
            number,
            run_id,
            chosen,
            due,
            is_replay=True,
            replaces=not failed_outputs_only,
            forward=forward,
        )

    return _carry_out(
        pipeline,
        batch_time,
        claim,
        settings=settings,
        session=session,
        on_committed=on_committed,
        process_id=process_id,
    )


def _due_outputs(
    connection: sa.Connection, pipeline: Pipeline, pipeline_id: int, batch_time: datetime
) -> tuple[list[Output], DecidedTimes | None]:
    """Return the outputs that are due in a batch, and what the pipeline's calendar decided with it."""
    decided = None if pipeline.calendar is None else batches.decided_times(connection, pipeline_id, batch_time)
    return [output for output in pipeline.outputs.values() if output.is_due(batch_time, decided)], decided


def _carry_out(
    pipeline: Pipeline,
    batch_time: datetime,
    claim: Callable[[sa.Connection, int, int], _Attempt],
    *,
    settings: Settings,
    session: Callable[[], SparkSession],
    on_committed: Callable[[OutputResult], None],
    process_id: int | None = None,
) -> list[OutputResult]:
    engine = create_engine(
        settings.require_database_url(),
        application_name=f"forebay batch {pipeline.name}",
        # The heartbeat, and each output that is publishing.
        pool_size=1 + pipeline.settings.concurrent_outputs,
    )
    spark = _Spark(session)
    try:
        beating = (
            heartbeats(engine, name=f"{pipeline.name} {batch_time.isoformat()}")
            if process_id is None
            else nullcontext(process_id)
        )
        with beating as process:
            with connect(engine) as connection:
                attempt = claim(connection, get_pipeline(connection, pipeline.name).pipeline_id, process)
            log.info(
                "batch claimed",
                pipeline=pipeline.name,
                batch_time=batch_time.isoformat(),
                attempt=attempt.number,
                replay=attempt.is_replay,
            )
            try:
                return _run_outputs(
                    engine, pipeline, attempt, settings=settings, spark=spark, on_committed=on_committed
                )
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

    def shared(self) -> Callable[[], SparkSession]:
        """Make the session in the calling thread; return what gives it to several threads."""
        made = self.session()
        return lambda: made

    def threads(self) -> OutputThreads | None:
        """Return what outputs need to run in threads on the session; None before it is made."""
        from orchestration.spark.output_threads import OutputThreads  # noqa: PLC0415  loads pyspark

        return None if self._made is None else OutputThreads(self._made)

    def how_ended(self) -> str | None:
        """Return how the session ended; None while it lives, if there is none, or if it is a Connect server's."""
        from orchestration.spark.session.session import how_ended  # noqa: PLC0415  loads pyspark

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
    failure = error.failure if isinstance(error, OutputsFailedError) else failure_of(error, spark.how_ended)
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
        pauses=[max(pause, FIRST) for pause in PAUSES[failure.kind]],
    )
    with _logged("could not record that the attempt failed"):
        # A commit that failed for the same reason has waited already: don't wait as long again.
        state = retry_statement(engine, fail, "the attempt's failure", seconds=RECORD_SECONDS)
        if state is BatchState.QUARANTINED and not attempt.is_replay:
            with connect(engine) as connection:
                row = get_pipeline(connection, pipeline.name)
                found = batch_outputs.outputs_of_batch(connection, row, attempt.batch_time)
            log.error(
                "batch quarantined",
                pipeline=pipeline.name,
                batch_time=attempt.batch_time.isoformat(),
                attempt=attempt.number,
                outputs={output.output: output.state.value for output in found},
                detail=batch_outputs.partial_commit(found) or "none of its outputs has a result",
            )


def _run_outputs(
    engine: sa.Engine,
    pipeline: Pipeline,
    attempt: _Attempt,
    *,
    settings: Settings,
    spark: _Spark,
    on_committed: Callable[[OutputResult], None],
) -> list[OutputResult]:
    pipeline_id, batch_time = attempt.pipeline_id, attempt.batch_time
    with connect(engine) as connection:
        # A replay replaces what other attempts committed, but not what it committed itself in an earlier launch.
        committed = {
            commit.output: commit
            for commit in commits_of_batch(connection, pipeline_id, batch_time)
            if not attempt.replaces or commit.attempt == attempt.number
        }
        attempts = batches.attempts_of_batch(connection, pipeline_id, batch_time)
        to_compute = _in_order([output for output in attempt.outputs if output.name not in committed], attempts)
        batch, lost, inputs = _batch(connection, pipeline, attempt, to_compute, settings=settings)
    runs = {row.attempt: row.run_id for row in attempts}
    began_at = next((row.started_at for row in attempts if row.attempt == attempt.number), None)
    at_once = min(pipeline.settings.concurrent_outputs, len(to_compute))
    session = spark.session if at_once <= 1 else spark.shared()

    def run(output: Output) -> OutputResult:
        started = time.monotonic()
        commit = committed.get(output.name)
        if commit is None:
            of_attempt = OutputAttempt(
                pipeline.name, pipeline_id, output.name, batch_time, attempt.number, attempt.run_id, runs, began_at
            )
            computed: list[DataFrame] = []
            state = (
                None
                if output.state is None
                else StateRun(engine, output, of_attempt, settings, inputs.expected, attempt.forward)
            )

            def compute() -> DataFrame:
                computed.append(output_result(output, batch, inputs, settings=settings, session=session, state=state))
                return computed[0]

            try:
                written = run_output(engine, output, of_attempt, compute, replaces=attempt.replaces, state=state)
            finally:
                if state is not None:
                    state.close()
            publish(engine, pipeline_id, output, written.location, batch_time=batch_time)
            seconds = time.monotonic() - started
            return OutputResult(
                output.name,
                attempt.number,
                written.location,
                written.rows,
                lost.blocks,
                lost.records,
                seconds=seconds,
                refused=written.refused,
                columns=_with_sources(written.columns, computed, output),
                state=None if state is None else state.changed,
            )
        publish(engine, pipeline_id, output, commit.location, batch_time=batch_time)
        return _committed_before(commit, lost, runs)

    results = AttemptOutputs(
        outputs=[*(output for output in attempt.outputs if output.name in committed), *to_compute],
        run=run,
        needs=lambda output: [] if output.name in committed else _needs(output, inputs),
        judge=lambda error: failure_of(error, spark.how_ended),
        on_committed=on_committed,
        on_failed=partial(_record_failed_output, engine, attempt),
    ).run_all(spark.threads() if at_once > 1 else None, at_once=at_once)
    retry_statement(engine, partial(_complete, attempt, results), "the batch's completion")
    with connect(engine) as connection:
        report_lost_blocks(connection, lost, pipeline=pipeline.name, batch_time=batch_time)
    publish_what_is_left(engine, pipeline, pipeline_id)
    by_name = {result.output: result for result in results}
    return [by_name[output.name] for output in attempt.outputs]


def _with_sources(columns: tuple[Column, ...], computed: Sequence[DataFrame], output: Output) -> tuple[Column, ...]:
    """Return the columns with their sources, once readers see the result: a first plan may take half a second."""
    if not columns or not computed:
        return columns
    from orchestration.spark.column_lineage import with_sources  # noqa: PLC0415  loads pyspark

    return with_sources(columns, computed[0], {stream.name for stream in output.streams}, output.column_sources)


def _needs(output: Output, inputs: BatchInputs) -> list[tuple[str, ...]]:
    """Return the places without which the output can't be computed and committed."""
    place = output.sink.place(output.sink.declaration())
    reads_blocks = any(inputs.blocks_of(entry) for entry in output.inputs)
    return [*([BLOCK_STORE] if reads_blocks else []), *([] if place is None else [place.key])]


def _in_order(outputs: Sequence[Output], attempts: Sequence[AttemptRow]) -> list[Output]:
    """Return the outputs as declared; after a second LOST attempt, another one first in each attempt.

    An output that kills its process would otherwise hold up those after it until the batch is quarantined.
    """
    lost = sum(row.state is AttemptState.LOST for row in attempts)
    first = max(0, lost - 1) % max(1, len(outputs))
    return [*outputs[first:], *outputs[:first]]


def _committed_before(commit: OutputCommit, lost: LostBlocks, runs: Mapping[int, str]) -> OutputResult:
    return OutputResult(
        commit.output,
        commit.attempt,
        commit.location,
        commit.rows,
        lost.blocks,
        lost.records,
        committed_by=runs.get(commit.attempt, ""),
    )


def _record_failed_output(engine: sa.Engine, attempt: _Attempt, failed: FailedOutput) -> None:
    """Record why one output failed. If that fails, the attempt's own error still names it."""
    with _logged("could not record that an output failed"), connect(engine) as connection:
        batch_outputs.fail_output(
            connection,
            pipeline_id=attempt.pipeline_id,
            batch_time=attempt.batch_time,
            attempt=attempt.number,
            output=failed.output,
            failure=failed.failure.kind,
            error=failed.failure.message,
        )


def _complete(attempt: _Attempt, results: Sequence[OutputResult], connection: sa.Connection) -> None:
    if attempt.is_replay:
        batches.complete_replay(
            connection,
            pipeline_id=attempt.pipeline_id,
            batch_time=attempt.batch_time,
            attempt=attempt.number,
            outputs=[result.output for result in results if attempt.replaces or result.committed_by is None],
            due=[output.name for output in attempt.due],
        )
    else:
        batches.complete_batch(
            connection,
            pipeline_id=attempt.pipeline_id,
            batch_time=attempt.batch_time,
            attempt=attempt.number,
            outputs=[output.name for output in attempt.outputs],
        )


def _batch(
    connection: sa.Connection,
    pipeline: Pipeline,
    attempt: _Attempt,
    to_compute: Sequence[Output],
    *,
    settings: Settings,
) -> tuple[Batch, LostBlocks, BatchInputs]:
    pipeline_id, batch_time = attempt.pipeline_id, attempt.batch_time
    row = batches.get_batch(connection, pipeline_id, batch_time)
    if row is None:
        raise BatchHeldError(f"pipeline {pipeline.name!r} has no batch at {batch_time.isoformat()}")
    inputs = read_batch_inputs(
        connection, pipeline, pipeline_id, batch_time, to_compute, block_store=settings.block_store_roots
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
    output: Output,
    batch: Batch,
    inputs: BatchInputs,
    *,
    settings: Settings,
    session: Callable[[], SparkSession],
    state: StateRun | None = None,
) -> DataFrame:
    """Return the result of an output's function for the batch; with a state, write the version that it makes."""
    spark = session()
    if output.event is not None:
        assert state is not None
        return _event_result(output, batch, inputs, settings=settings, session=spark, state=state)
    arguments = {
        parameter: _frame(spark, output, entry, batch, inputs, settings)
        for parameter, entry in zip(output.parameters, output.inputs, strict=True)
    }
    extra: dict[str, Any] = {BATCH_PARAMETER: batch} if output.wants_batch else {}
    if state is None:
        return output.function(**arguments, **extra)  # type: ignore[no-any-return]
    returned = output.function(
        **arguments, **{STATE_PARAMETER: state.read(spark, keys_of(output, list(arguments.values())))}, **extra
    )
    result, changes = checked_pair(returned, f"output {output.name!r} of pipeline {batch.pipeline!r}")
    state.write(spark, changes)
    return result


def _event_result(
    output: Output,
    batch: Batch,
    inputs: BatchInputs,
    *,
    settings: Settings,
    session: SparkSession,
    state: StateRun,
) -> DataFrame:
    """Return the result of an output by event time, as `output_result`."""
    from orchestration.batches.stateful.event_batch import EventBatch  # noqa: PLC0415  loads pyspark

    assert output.event is not None
    frames = [
        _frame(session, output, entry, batch, inputs, settings, numbered=place in output.event.times)
        for place, entry in enumerate(output.inputs)
    ]
    sources = {
        place: [f"receiver {block.receiver_id}" for block in inputs.blocks_of(output.inputs[place])]
        for place in output.event.times
    }
    event = EventBatch(output, frames, sources, state.progress(), batch.time, after=state.restored())
    state.follow(event)
    extra: dict[str, Any] = {BATCH_PARAMETER: batch} if output.wants_batch else {}
    computed = event.compute(state.read(session, event.keys()), extra)
    state.write(session, computed.changes)
    state.replaced = computed.replaced
    return computed.result


def _frame(
    session: SparkSession,
    output: Output,
    entry: Stream | Window,
    batch: Batch,
    inputs: BatchInputs,
    settings: Settings,
    *,
    numbered: bool = False,
) -> DataFrame:
    def read(blocks: Iterable[AllocatedBlock]) -> DataFrame:
        return _read(session, stream_of(entry), blocks, batch, inputs, settings, numbered=numbered)

    if not isinstance(entry, Window) or entry.new_column is None:
        return read(inputs.blocks_of(entry))
    from orchestration.spark.reading.new_records import marked  # noqa: PLC0415  loads pyspark

    new, earlier = inputs.parted(output.name, entry)
    return marked(read(new), read(earlier), entry.new_column)


def _read(
    session: SparkSession,
    stream: Stream,
    blocks: Iterable[AllocatedBlock],
    batch: Batch,
    inputs: BatchInputs,
    settings: Settings,
    *,
    numbered: bool,
) -> DataFrame:
    from orchestration.spark.reading.allocation import encode_allocation, location_of  # noqa: PLC0415  loads pyspark
    from orchestration.spark.reading.block_reader import ALLOCATION, BLOCK_KEYS, RECORDS  # noqa: PLC0415  loads pyspark
    from orchestration.spark.reading.data_source import FORMAT  # noqa: PLC0415  loads pyspark
    from orchestration.spark.reading.record_numbers import NUMBERED, NUMBERS  # noqa: PLC0415  with them
    from orchestration.spark.reading.spark_types import spark_schema  # noqa: PLC0415  with them

    some = {} if inputs.records is None else {RECORDS: "{}:{}".format(*inputs.records)}
    columns = spark_schema(inputs.columns[stream.name])
    if numbered:
        some[NUMBERED] = "true"
        columns = f"{columns}, {NUMBERS}"
    return (
        session.read.format(FORMAT)
        .options(**some)
        .schema(columns)
        .option("pipeline", batch.pipeline)
        .option("batch_time", batch.time.isoformat())
        .option("stream", stream.name)
        .option("block_store", settings.block_store_roots)
        .option(BLOCK_KEYS, ",".join(map(str, settings.block_key_references)))
        .option(ALLOCATION, encode_allocation(map(location_of, blocks), inputs.expected))
        .load()
    )


@contextmanager
def _logged(failure: str) -> Iterator[None]:
    """Log any error of the driver log instead of raising it: the batch goes on, or ends for its own reason."""
    try:
        yield
    except SURVIVED as error:
        log.warning(failure, error=str(error), exc_info=not isinstance(error, DriverLogError))

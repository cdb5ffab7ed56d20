"""Finds the records that break a batch: runs its output functions on halves of its blocks, then of a block's records.

Writes and commits nothing: it computes each result in full and discards it (Spark's `noop` format), so it does not
find what only a sink refuses.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from orchestration.batches.batch_inputs import read_batch_inputs
from orchestration.batches.unavailable_store import unavailable_store
from orchestration.declarations.batch import Batch
from orchestration.declarations.sink import OutputAttempt
from tracker_store.batches import batches
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.connection.errors import BatchHeldError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    import sqlalchemy as sa
    from pyspark.sql import SparkSession

    from orchestration.batches.batch_inputs import BatchInputs
    from orchestration.declarations.pipeline import Output, Pipeline
    from orchestration.declarations.settings import Settings
    from tracker_store.batches.received_block_tracker import AllocatedBlock

# With this many culprits, the cause is all of the data, or the code: stop looking.
MOST_CULPRITS = 10
# Of a block that fails, this many records are looked for: each costs some twenty runs.
MOST_RECORDS = 3

Key = tuple[int, int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Culprit(Generic[T]):
    """Hold blocks, or records, with which the batch fails, though neither half of them fails alone: usually one."""

    part: Sequence[T]
    error: str


@dataclass(slots=True)
class Bisection(Generic[T]):
    """Hold what was found in `size` parts. `without_any`: the error without any record, if there is one even then."""

    size: int
    error: str = ""
    without_any: str = ""
    culprits: list[Culprit[T]] = field(default_factory=list)
    runs: int = 0
    whole: bool = True


def bisect(parts: Sequence[T], error_of: Callable[[Sequence[T]], str], *, most: int = MOST_CULPRITS) -> Bisection[T]:
    """Halve `parts` down to those for which `error_of` returns an error (not ""). `whole`: no culprit was left out.

    It takes about 2 * log2(n) runs to find the only culprit of n parts.
    """
    found: Bisection[T] = Bisection(len(parts))

    def run(part: Sequence[T]) -> str:
        found.runs += 1
        return error_of(part)

    def search(part: Sequence[T], error: str) -> None:
        if len(found.culprits) >= most:
            found.whole = False
            return
        if len(part) == 1:
            found.culprits.append(Culprit(part, error))
            return
        middle = len(part) // 2
        halves = [(half, run(half)) for half in (part[:middle], part[middle:])]
        if not any(said for _, said in halves):
            found.culprits.append(Culprit(part, error))
        for half, said in halves:
            if said:
                search(half, said)

    found.error = run(parts)
    if not found.error:
        return found
    found.without_any = run(parts[:0])
    if not found.without_any and parts:
        search(parts, found.error)
    return found


class BatchTrial:
    """Runs a batch's output functions on some of its blocks."""

    def __init__(
        self,
        connection: sa.Connection,
        pipeline: Pipeline,
        batch_time: datetime,
        *,
        outputs: Sequence[str] = (),
        settings: Settings,
        session: Callable[[], SparkSession],
    ) -> None:
        """Take those of `outputs` (all unless named) that are due. Raises BatchHeldError if there is no such batch."""
        self._settings = settings
        self._session = session
        pipeline_id = get_pipeline(connection, pipeline.name).pipeline_id
        decided = None if pipeline.calendar is None else batches.decided_times(connection, pipeline_id, batch_time)
        self._outputs = [
            output
            for output in pipeline.outputs.values()
            if output.is_due(batch_time, decided) and (not outputs or output.name in outputs)
        ]
        row = batches.get_batch(connection, pipeline_id, batch_time)
        if row is None:
            raise BatchHeldError(f"pipeline {pipeline.name!r} has no batch at {batch_time.isoformat()}")
        self._pipeline_id, self._engine = pipeline_id, connection.engine
        self._inputs = read_batch_inputs(
            connection, pipeline, pipeline_id, batch_time, self._outputs, block_store=settings.block_store_roots
        )
        self._batch = Batch(
            pipeline=pipeline.name,
            time=batch_time,
            attempt=row.attempt,
            records=row.records,
            _blocks=self._inputs.blocks,
        )
        entries = [entry for output in self._outputs for entry in output.inputs]
        found: dict[Key, AllocatedBlock] = {
            (block.receiver_id, block.sequence): block for entry in entries for block in self._inputs.blocks_of(entry)
        }
        #: The blocks that the outputs read, those of windows included, in the order of (receiver, sequence).
        self.blocks: Sequence[AllocatedBlock] = [found[key] for key in sorted(found)]

    def error_of(self, blocks: Sequence[AllocatedBlock]) -> str:
        """Return the error of the first output that fails on exactly these blocks; empty if none fails.

        Raises the error that means that the block store can't be reached.
        """
        return self._error_on(self._inputs.only({(block.receiver_id, block.sequence) for block in blocks}))

    def error_of_records(self, block: AllocatedBlock, records: Sequence[int]) -> str:
        """Return the same of some following records of one block, by their numbers from 0."""
        if not records:
            return self.error_of([])
        inputs = self._inputs.only({(block.receiver_id, block.sequence)})
        return self._error_on(replace(inputs, records=(records[0], records[-1] + 1)))

    def _error_on(self, inputs: BatchInputs) -> str:
        for output in self._outputs:
            try:
                self._compute(output, inputs)
            except Exception as error:  # the user's function may raise anything
                if unavailable_store(error):
                    raise
                return f"{output.name}: {type(error).__name__}: {error}"
        return ""

    def _compute(self, output: Output, inputs: BatchInputs) -> None:
        from orchestration.batches.batch_run import output_result  # noqa: PLC0415  loads the sinks
        from orchestration.batches.stateful.state_run import StateTrial  # noqa: PLC0415  the same

        state = None
        if output.state is not None:
            state = StateTrial(self._engine, output, self._attempt(output), self._settings, inputs.expected)
        try:
            result = output_result(
                output, self._batch, inputs, settings=self._settings, session=self._session, state=state
            )
            result.write.format("noop").mode("overwrite").save()
        finally:
            if state is not None:
                state.close()

    def _attempt(self, output: Output) -> OutputAttempt:
        """Return an attempt that was never claimed: it reads the state, and writes nothing."""
        batch = self._batch
        return OutputAttempt(batch.pipeline, self._pipeline_id, output.name, batch.time, batch.attempt, run_id="")

"""Finds the blocks that break a batch: runs its output functions on halves of them, and writes and commits nothing.

A result is computed whole and thrown away (Spark's `noop` format), so what only a sink refuses is not found here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestration.batch import Batch
from orchestration.batch_inputs import read_batch_inputs
from orchestration.store_away import store_away
from tracker_store import batches
from tracker_store.errors import BatchHeldError
from tracker_store.pipelines import get_pipeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    import sqlalchemy as sa
    from pyspark.sql import SparkSession

    from orchestration.batch_inputs import BatchInputs
    from orchestration.pipeline import Output, Pipeline
    from orchestration.settings import Settings
    from tracker_store.received_block_tracker import AllocatedBlock

# After so many culprits the data as a whole is at fault, or the code.
MOST_CULPRITS = 10

Key = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Culprit:
    """Blocks with which the batch fails, and none of whose halves fails alone: mostly one block."""

    blocks: Sequence[AllocatedBlock]
    error: str


@dataclass(slots=True)
class Bisection:
    """What was found. `without_blocks`: what the functions say to no records at all, where that fails already."""

    blocks: int
    error: str = ""
    without_blocks: str = ""
    culprits: list[Culprit] = field(default_factory=list)
    runs: int = 0
    whole: bool = True


def bisect(
    blocks: Sequence[AllocatedBlock], error_of: Callable[[Sequence[AllocatedBlock]], str], *, most: int = MOST_CULPRITS
) -> Bisection:
    """Halve `blocks` down to those that `error_of` (empty: none) names an error for. `whole`: no culprit was left out.

    A block that is the only culprit of n is found in about 2 * log2(n) runs.
    """
    found = Bisection(len(blocks))

    def run(part: Sequence[AllocatedBlock]) -> str:
        found.runs += 1
        return error_of(part)

    def search(part: Sequence[AllocatedBlock], error: str) -> None:
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

    found.error = run(blocks)
    if not found.error:
        return found
    found.without_blocks = run([])
    if not found.without_blocks and blocks:
        search(blocks, found.error)
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
        """Of the `outputs` (all unless named) that are due. Raises BatchHeldError where there is no such batch."""
        self._pipeline = pipeline
        self._settings = settings
        self._session = session
        self._outputs = [
            output
            for output in pipeline.outputs.values()
            if output.is_due(batch_time) and (not outputs or output.name in outputs)
        ]
        pipeline_id = get_pipeline(connection, pipeline.name).pipeline_id
        row = batches.get_batch(connection, pipeline_id, batch_time)
        if row is None:
            raise BatchHeldError(f"pipeline {pipeline.name!r} has no batch at {batch_time.isoformat()}")
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
        #: What the outputs read, windows and all, in the order of (receiver, sequence).
        self.blocks: Sequence[AllocatedBlock] = [found[key] for key in sorted(found)]

    def error_of(self, blocks: Sequence[AllocatedBlock]) -> str:
        """What an output says to these blocks and no others; empty where all are content.

        Raises what says that the block store can't be reached.
        """
        only = {(block.receiver_id, block.sequence) for block in blocks}
        inputs = self._inputs.only(only)
        for output in self._outputs:
            try:
                self._compute(output, inputs)
            except Exception as error:  # the user's function may raise anything
                if store_away(error):
                    raise
                return f"{output.name}: {type(error).__name__}: {error}"
        return ""

    def _compute(self, output: Output, inputs: BatchInputs) -> None:
        from orchestration.batch_run import output_result  # noqa: PLC0415  which loads the sinks

        result = output_result(output, self._batch, inputs, settings=self._settings, session=self._session)
        result.write.format("noop").mode("overwrite").save()

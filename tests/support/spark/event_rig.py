"""Provide a driver log and a block store for outputs by event time: streams of several receivers, whose columns grow.

Each step of a batch is a real one: blocks are stored and registered, allocated, read by Spark, and committed.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import sqlalchemy as sa

from forebay import Pipeline, Stream
from forebay.sources import CustomSource
from orchestration.batches.batch_run import replay_batch, run_batch
from orchestration.declarations.apply import apply
from orchestration.declarations.settings import Settings
from receiver_runtime.block_path.block_handler import BlockHandler
from receiver_runtime.block_path.registration.registered_through import RegisteredThrough
from receiver_runtime.block_path.write_ahead_log import WriteAheadLog
from receiver_runtime.block_store.frames.columns import columns_of, fingerprint_of
from receiver_runtime.block_store.frames.frame import SourceRule
from receiver_runtime.block_store.stores.stores import open_block_store
from receiver_runtime.reporting.driver_log import DriverLog
from receiver_runtime.reporting.receiver_driver_log import ReceiverDriverLog
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from tests.support.driver_log.log import claim_anew
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker
from tracker_store.blocks.blocks import add_blocks
from tracker_store.blocks.stream_schemas import register_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from pathlib import Path

    from orchestration.batches.attempt_outputs import OutputResult

HOUR = timedelta(hours=1)


def stream(name: str, *, receivers: int = 1) -> Stream:
    """Declare a stream whose receivers' package is not here: its columns are those that are registered."""
    return Stream(name, CustomSource(receiver=f"not_here:{name.title()}"), receivers=receivers)


class EventRig:
    """A driver log and block store, and one pipeline with a batch an hour, on a day that is over."""

    def __init__(self, engine: sa.Engine, connection: sa.Connection, url: str, home: Path) -> None:
        self.engine = engine
        self.connection = connection
        self.settings = Settings(home=home, database_url=url)
        self._launches = 0

    def apply(self, pipeline: Pipeline) -> None:
        """Declare the pipeline."""
        apply(self.connection, [pipeline])
        self.pipeline = pipeline
        found = get_pipeline(self.connection, pipeline.name)
        self.id = found.pipeline_id
        if not hasattr(self, "begin"):
            self.now = found.last_batch_time
            #: The batch time before the first one.
            self.begin = found.last_batch_time - 2 * timedelta(days=1)

    def receive(self, name: str, rows: Sequence[dict[str, Any]], schema: pa.Schema, *, receiver: int = 0) -> None:
        """Store and register one block of a stream's receiver, which registers its columns as at its start."""
        of_stream = (
            "SELECT r.id FROM forebay.receivers r JOIN forebay.streams s ON s.id = r.stream_id WHERE s.name = :s"
        )
        receiver_id = sorted(self.connection.execute(sa.text(of_stream), {"s": name}).scalars())[receiver]
        columns = columns_of(schema)
        register_schema(self.connection, receiver_id=receiver_id, fingerprint=fingerprint_of(columns), columns=columns)
        claimed = claim_anew(self.connection, receiver_id)
        log = WriteAheadLog(
            open_block_store(self.settings.block_store_roots),
            ReceiverDriverLog(DriverLog(self.engine), claim=claimed),
            source_rule=SourceRule.NOT_SENT_AGAIN,
            registered_through=RegisteredThrough(claimed.sequence),
            settings=ReceiverSettings(),
        )
        handler = BlockHandler(log, schema)
        batch = pa.RecordBatch.from_pylist(list(rows), schema=schema)
        add_blocks(self.connection, [handler.store_block([batch], sequence=claimed.sequence + 1)])
        handler.close()

    def allocate(self, hour: int) -> datetime:
        """Allocate what was received so far to the batch of an hour, and that of each hour before; return its time."""
        time = self.begin + hour * HOUR
        self.connection.execute(
            sa.text("UPDATE forebay.pipelines SET last_batch_time = :before WHERE id = :pipeline"),
            {"before": time - HOUR, "pipeline": self.id},
        )
        self.connection.execute(
            sa.text("UPDATE forebay.blocks SET added_at = :at WHERE added_at > :now"),
            {"at": time - timedelta(minutes=1), "now": self.now},
        )
        ReceivedBlockTracker(self.connection, self.id).allocate_blocks_to_batch(time)
        return time

    def run_id(self) -> str:
        """Return the id of a run that is to be launched."""
        self._launches += 1
        return f"run{self._launches}"

    def run(
        self, time: datetime, attempt: int = 1, *, session: Callable[[], Any], run_id: str = ""
    ) -> list[OutputResult]:
        """Run an attempt at a batch."""
        return run_batch(
            self.pipeline,
            batch_time=time,
            attempt=attempt,
            run_id=run_id or self.run_id(),
            settings=self.settings,
            session=session,
        )

    def replay(self, time: datetime, *outputs: str, run_id: str = "", **options: Any) -> list[OutputResult]:  # noqa: ANN401
        """Run a finished batch again; `options`: of ``replay_batch``."""
        return replay_batch(
            self.pipeline,
            batch_time=time,
            outputs=outputs,
            run_id=run_id or self.run_id(),
            settings=self.settings,
            **options,
        )

    def batches(self) -> list[tuple[Any, ...]]:
        """Return the batches, each with its state, attempt and records."""
        rows = self.connection.execute(
            sa.text(
                "SELECT batch_time, state, attempt, records FROM forebay.batches WHERE pipeline_id = :p ORDER BY 1"
            ),
            {"p": self.id},
        )
        return [tuple(row) for row in rows]

"""Provide a driver log and block store with blocks, and a pipeline `words` whose batches can run on real Spark."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import sqlalchemy as sa

from forebay import ParquetSink, Pipeline, Stream
from forebay.sources import SocketText
from orchestration.batches.batch_run import replay_batch, run_batch
from orchestration.declarations.apply import apply
from orchestration.declarations.settings import Settings
from orchestration.spark.session.session import spark_session
from receiver_runtime.block_store.frames.encryption import BlockKey, FrameEncryptor
from receiver_runtime.block_store.frames.frame import encode_frame
from receiver_runtime.block_store.frames.payload import encode_batches
from receiver_runtime.block_store.stores.stores import open_block_store
from receiver_runtime.sources.fields.secret import Secret
from tests.support.driver_log.log import claim_anew
from tests.support.receivers.frame_fields import block_fields
from tracker_store.batches import batches
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.batches.received_block_tracker import ReceivedBlockTracker
from tracker_store.blocks.blocks import BlockHandle, NewBlock, add_blocks
from tracker_store.blocks.segments import open_segment
from tracker_store.receivers.receivers import placements
from tracker_store.retention.cleanup import clean_up_receiver
from tracker_store.schema.declarations import PipelineDeclaration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import SparkSession

    from orchestration.batches.attempt_outputs import OutputResult
    from tracker_store.schema.states import BatchState

SCHEMA = pa.schema([("value", pa.string())])


@contextmanager
def local_spark(home: Path) -> Iterator[SparkSession]:
    """Yield a session for a module's tests, and stop it at the end."""
    made = spark_session(Settings(home=home, spark_master="local[2]"), application="tests")
    yield made
    made.stop()


class System:
    """A driver log and block store with blocks in them, and a pipeline to run on them."""

    def __init__(
        self,
        connection: sa.Connection,
        url: str,
        directory: Path,
        session: SparkSession,
        *,
        block_store: str | None = None,
        block_keys: Sequence[str] = (),
    ) -> None:
        self.connection = connection
        self.settings = Settings(home=directory, database_url=url, block_store=block_store)
        self.use_keys(*block_keys)
        self.output = directory / "output"
        self.session = session
        self._begin: datetime | None = None
        self._store = open_block_store(self.settings.block_store_roots)

    def use_keys(self, *references: str) -> None:
        """Set the keys of encrypted blocks, as a restart with other settings does: the first one encrypts."""
        keys = [Secret(reference) for reference in references]
        self.settings = self.settings.model_copy(
            update={"block_key": keys[0] if keys else None, "block_keys_for_reading": tuple(keys[1:])}
        )

    def declare(
        self,
        function: Callable[..., Any],
        sink: ParquetSink | None = None,
        **settings: Any,  # noqa: ANN401
    ) -> Pipeline:
        lines = Stream("lines", SocketText(host="127.0.0.1", port=9999))
        pipeline = Pipeline("words", interval="1h", **settings)
        pipeline.output(inputs=[lines], sink=sink or ParquetSink(self.output), name="counts")(function)
        apply(self.connection, [pipeline])
        return pipeline

    def receive(self, *blocks: Sequence[str], durability: str = "durable") -> None:
        """Store and register blocks of lines, all in one segment."""
        [placement] = placements(self.connection)
        claimed = claim_anew(self.connection, placement.receiver_id)
        path = f"{placement.receiver_id}/{claimed.epoch}.segment"
        segment_id = open_segment(
            self.connection,
            receiver_id=placement.receiver_id,
            epoch=claimed.epoch,
            path=path,
            source_rule="not_sent_again",
            durability=durability,
        )
        writer = self._store.create_segment(path)
        key = self.settings.block_key
        encryptor = None if key is None else FrameEncryptor(BlockKey.read(key))
        offset = 0
        for sequence, lines in enumerate(blocks, start=claimed.sequence + 1):
            batch = pa.record_batch([pa.array(lines, pa.string())], schema=SCHEMA)
            frame = encode_frame(
                encode_batches(SCHEMA, [batch]),
                block_fields(
                    receiver_id=placement.receiver_id, epoch=claimed.epoch, sequence=sequence, records=len(lines)
                ),
                encryptor=encryptor,
            )
            writer.append(frame)
            handle = BlockHandle(segment_id, offset, frame.length, frame.crc32c)
            add_blocks(
                self.connection,
                [NewBlock(placement.receiver_id, claimed.epoch, sequence, len(lines), frame.length, handle)],
            )
            offset += frame.length
        writer.sync()
        writer.close()

    def allocate(self, hour: int, *, with_windows: bool = False) -> datetime:
        """Allocate the blocks received so far to the batch of an hour in the past; return its batch time.

        `with_windows`: as the tracker does, a batch without blocks is to run if a window that ends with it has any.
        """
        pipeline = get_pipeline(self.connection, "words")
        self._begin = self._begin or pipeline.last_batch_time - timedelta(days=1)
        time = self._begin + timedelta(hours=hour)
        self.connection.execute(
            sa.text("UPDATE forebay.pipelines SET last_batch_time = :t"), {"t": time - timedelta(hours=1)}
        )
        self.connection.execute(
            sa.text(
                "UPDATE forebay.blocks SET added_at = :t WHERE sequence >= coalesce((SELECT max(next_sequence) "
                "FROM forebay.cursors), 1)"
            ),
            {"t": time - timedelta(minutes=1)},
        )
        windows = PipelineDeclaration.of(pipeline.declaration).deciding_windows if with_windows else ()
        ReceivedBlockTracker(self.connection, pipeline.pipeline_id).allocate_blocks_to_batch(time, windows=windows)
        return time

    def run(self, pipeline: Pipeline, time: datetime, attempt: int) -> list[OutputResult]:
        return run_batch(
            pipeline,
            batch_time=time,
            attempt=attempt,
            run_id=f"run{attempt}",
            settings=self.settings,
            session=lambda: self.session,
        )

    def replay(self, pipeline: Pipeline, time: datetime, *outputs: str, run_id: str = "replay") -> list[OutputResult]:
        return replay_batch(
            pipeline,
            batch_time=time,
            outputs=outputs,
            run_id=run_id,
            settings=self.settings,
            session=lambda: self.session,
        )

    def state(self, time: datetime) -> tuple[BatchState, int]:
        batch = batches.get_batch(self.connection, get_pipeline(self.connection, "words").pipeline_id, time)
        assert batch is not None
        return batch.state, batch.attempt

    def clean_up(self) -> int:
        """Clean up as if every retention had passed; return how many blocks were deleted."""
        self.connection.execute(sa.text("UPDATE forebay.pipelines SET retention = interval '0'"))
        now = self.connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
        [placement] = placements(self.connection)
        return clean_up_receiver(
            self.connection, receiver_id=placement.receiver_id, threshold=now, max_rows=1000
        ).blocks

    def published(self) -> list[str]:
        if not self.output.exists():
            return []
        table = ds.dataset(self.output, partitioning="hive", format="parquet").to_table()
        return sorted(table["value"].to_pylist()) if table.num_rows else []

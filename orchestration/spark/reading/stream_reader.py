"""Define `spark.readStream.format("forebay")`: a streaming query on the driver log, with a named reader's cursor.

Owns Spark's interface of a streaming source. Offsets are the next sequence by receiver; a checkpoint holds them, so
each record is read once per query. `commit` moves the reader's cursor; clean-up may delete the blocks before it. It
writes to the driver log only by `attach_reader` and `move_reader`. Tasks only read files.

Options: `stream` and `reader` name the stream and the reader; `start` (earliest, latest) is where a new reader begins;
`maxBlocksPerTrigger` and `maxRecordsPerTrigger` limit a trigger. The planner's process holds one connection.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from orchestration.spark.reading.allocation import location_of
from orchestration.spark.reading.block_reader import ForebayReader, partitions_of
from tracker_store.batches.readers import ReaderStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    import sqlalchemy as sa
    from pyspark.sql.datasource import InputPartition

    from tracker_store.batches.readers import AttachedReader, Positions

Answer = TypeVar("Answer")

MAX_BLOCKS = "maxblockspertrigger"
MAX_RECORDS = "maxrecordspertrigger"

# How long a trigger waits for an unavailable driver log before the query fails.
RETRY_SECONDS = 60.0


class ForebayStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read a stream for the format: plan from the driver log and a checkpoint's offsets, read blocks like a batch."""

    def __init__(self, options: dict[str, str], schema: pa.Schema | None = None) -> None:
        """Check the format's options, without connecting. Raises ValueError if one is wrong."""
        self._options = options
        self._files = ForebayReader(options, schema)
        start = options.get("start", "earliest")
        if start not in get_args(ReaderStart):
            raise ValueError(f"option start={start!r}: use one of {', '.join(get_args(ReaderStart))}")
        self._limits = {name: _limit(options, name) for name in (MAX_BLOCKS, MAX_RECORDS)}
        self._engine: sa.Engine | None = None
        self._reader: AttachedReader | None = None
        self._target: Positions | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Return the reader's position, where a query without a checkpoint begins."""
        reader = self._attached(None)
        return _offset(reader.stream_id, reader.positions)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """Return the limit in the options; if there are two, the engine gets one, and `latestOffset` applies both."""
        blocks, records = self._limits[MAX_BLOCKS], self._limits[MAX_RECORDS]
        if records is not None:
            return ReadMaxRows(records)
        return ReadAllAvailable() if blocks is None else ReadMaxFiles(blocks)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Return the offset up to which there is something to read; `start` itself if there is nothing."""
        from tracker_store.batches.readers import next_positions  # noqa: PLC0415  tasks need no SQLAlchemy

        reader = self._attached(start)
        positions = _positions(start)
        limits = {} if isinstance(limit, ReadAllAvailable) else self._limits
        reached = self._asked(
            lambda connection: next_positions(
                connection,
                reader.reader_id,
                positions,
                max_blocks=limits.get(MAX_BLOCKS),
                max_records=limits.get(MAX_RECORDS),
            )
        )
        if self._target is not None:
            reached = {
                receiver: max(positions.get(receiver, 1), min(position, self._target.get(receiver, 1)))
                for receiver, position in reached.items()
                if receiver in positions or receiver in self._target
            }
        # Spark compares offsets as text.
        return start if reached == positions else _offset(reader.stream_id, reached)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  Spark's name
        """Fix the end of this query at the newest blocks: it reads nothing that is added later."""
        self._target = self._newest(self._attached(None))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name
        """Return the offset of the newest block of each receiver, for the query's progress."""
        if self._reader is None:
            return None
        return _offset(self._reader.stream_id, self._newest(self._reader))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return one partition per group of blocks, as for a batch."""
        from receiver_runtime.block_store.roots import root_names  # noqa: PLC0415
        from tracker_store.batches.readers import blocks_between  # noqa: PLC0415
        from tracker_store.blocks.block_stores import attached_identities  # noqa: PLC0415  tasks need no SQLAlchemy

        reader = self._attached(start)
        blocks, expected = self._asked(
            lambda connection: (
                blocks_between(connection, reader.reader_id, _positions(start), _positions(end)),
                attached_identities(connection, root_names(self._options["block_store"])),
            )
        )
        return partitions_of([location_of(block) for block in blocks], expected=expected)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the record batches of the partition's blocks, in order."""
        return self._files.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Move the reader's cursor to `end`: Spark never reads earlier blocks again, not even after a restart."""
        from tracker_store.batches.readers import move_reader  # noqa: PLC0415  tasks need no SQLAlchemy

        reader = self._attached(end)
        self._asked(lambda connection: move_reader(connection, reader.reader_id, _positions(end)))

    def stop(self) -> None:
        """Close the connection; the reader stays, and with it the blocks that it has not read."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for the tasks: they only read files, so connection and password are left out."""
        options = {name: value for name, value in self._options.items() if name != "database_url"}
        return {**vars(self), "_options": options, "_engine": None}

    def _newest(self, reader: AttachedReader) -> Positions:
        from tracker_store.batches.readers import newest_positions  # noqa: PLC0415  tasks need no SQLAlchemy

        return self._asked(lambda connection: newest_positions(connection, reader.reader_id))

    def _attached(self, offset: dict[str, Any] | None) -> AttachedReader:
        """Return the reader, created or found at the first call; a removed one is created at the given `offset`."""
        from tracker_store.batches.readers import attach_reader  # noqa: PLC0415
        from tracker_store.connection.errors import READER_POSITION, DriverLogError  # noqa: PLC0415  tasks need no SQLAlchemy

        if self._reader is None:
            self._reader = self._asked(
                lambda connection: attach_reader(
                    connection,
                    name=self._options["reader"],
                    stream=self._options["stream"],
                    start="latest" if self._options.get("start") == "latest" else "earliest",
                    positions=None if offset is None else _positions(offset),
                )
            )
        if offset is not None and offset["stream"] != self._reader.stream_id:
            raise DriverLogError(
                f"reader {self._options['reader']!r}: the checkpoint is of another stream than "
                f"{self._options['stream']!r} is now (was it removed and applied again?)",
                READER_POSITION,
            )
        return self._reader

    def _asked(self, call: Callable[[sa.Connection], Answer]) -> Answer:
        """Return the result of `call`, with retries for RETRY_SECONDS: every call is idempotent."""
        from orchestration.spark.reading.batch_reader import planner_engine  # noqa: PLC0415  as above
        from orchestration.spark.statement_retry import retry_statement  # noqa: PLC0415  tasks need no SQLAlchemy

        if self._engine is None:
            self._engine = planner_engine(self._options.get("database_url"))
        return retry_statement(self._engine, call, "plan a streaming query's batch", seconds=RETRY_SECONDS)


def _limit(options: dict[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"option {name}={value!r}: give a whole number from 1")
    return int(value)


def _offset(stream_id: int, positions: Positions) -> dict[str, Any]:
    return {"stream": stream_id, "receivers": {str(receiver): positions[receiver] for receiver in sorted(positions)}}


def _positions(offset: dict[str, Any]) -> Positions:
    return {int(receiver): position for receiver, position in offset["receivers"].items()}

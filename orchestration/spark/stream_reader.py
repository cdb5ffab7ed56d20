"""`spark.readStream.format("forebay")`: a streaming query on the driver log, by a named reader's cursor.

Owns what Spark asks a streaming source: offsets are the next sequence by receiver; a checkpoint holds them, and so
makes each record come out once per query; `commit` moves the reader's cursor, before which clean-up may take blocks
away. Never writes to the log but by `attach_reader` and `move_reader`. Tasks read files and nothing else.

Options: `stream` and `reader` name the two; `start` (earliest, latest) is where a new reader begins;
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

from orchestration.spark.allocation import location_of
from orchestration.spark.block_reader import ForebayReader, ReadOptionError, partitions_of
from tracker_store.readers import ReaderStart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    import sqlalchemy as sa
    from pyspark.sql.datasource import InputPartition

    from tracker_store.readers import AttachedReader, Positions

Answer = TypeVar("Answer")

MAX_BLOCKS = "maxblockspertrigger"
MAX_RECORDS = "maxrecordspertrigger"

# A driver log that is away for less is not noticed, but by the trigger that waits.
PATIENCE_SECONDS = 60.0


class ForebayStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans on the driver log, from a checkpoint's offsets; reads as a batch does."""

    def __init__(self, options: dict[str, str], schema: pa.Schema | None = None) -> None:
        """`options` are the format's; raises ReadOptionError where one is wrong. Asks nobody yet."""
        self._options = options
        self._files = ForebayReader(options, schema)
        start = options.get("start", "earliest")
        if start not in get_args(ReaderStart):
            raise ReadOptionError(f"option start={start!r}: use one of {', '.join(get_args(ReaderStart))}")
        self._limits = {name: _limit(options, name) for name in (MAX_BLOCKS, MAX_RECORDS)}
        self._engine: sa.Engine | None = None
        self._reader: AttachedReader | None = None
        self._target: Positions | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Where the reader is; a query without a checkpoint begins there."""
        reader = self._attached(None)
        return _offset(reader.stream_id, reader.positions)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  Spark's name
        """The limit by the options; of two the engine hears of one, and `latestOffset` keeps both."""
        blocks, records = self._limits[MAX_BLOCKS], self._limits[MAX_RECORDS]
        if records is not None:
            return ReadMaxRows(records)
        return ReadAllAvailable() if blocks is None else ReadMaxFiles(blocks)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802  Spark's name
        """Up to where there is something to read; `start` itself where there is nothing."""
        from tracker_store.readers import next_positions  # noqa: PLC0415  tasks need no SQLAlchemy

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
        """What is added from now on is not read by this query."""
        self._target = self._newest(self._attached(None))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  Spark's name
        """The newest block of each receiver, for the query's progress."""
        if self._reader is None:
            return None
        return _offset(self._reader.stream_id, self._newest(self._reader))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One partition per group of blocks, as for a batch."""
        from receiver_runtime.block_store.roots import root_names  # noqa: PLC0415
        from tracker_store.block_stores import attached_identities  # noqa: PLC0415  tasks need no SQLAlchemy
        from tracker_store.readers import blocks_between  # noqa: PLC0415

        reader = self._attached(start)
        blocks, expected = self._asked(
            lambda connection: (
                blocks_between(connection, reader.reader_id, _positions(start), _positions(end)),
                attached_identities(connection, root_names(self._options["block_store"])),
            )
        )
        return partitions_of(map(location_of, blocks), expected=expected)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The record batches of the partition's blocks, in order."""
        return self._files.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark asks for nothing before `end` any more, not after a restart either: let it go."""
        from tracker_store.readers import move_reader  # noqa: PLC0415  tasks need no SQLAlchemy

        reader = self._attached(end)
        self._asked(lambda connection: move_reader(connection, reader.reader_id, _positions(end)))

    def stop(self) -> None:
        """Close the connection; the reader stays, and so does what it has not read."""
        if self._engine is not None:
            self._engine.dispose()
            self._engine = None

    def __getstate__(self) -> dict[str, Any]:
        """What travels to the tasks: they read files, so connection and password stay with the planner."""
        options = {name: value for name, value in self._options.items() if name != "database_url"}
        return {**vars(self), "_options": options, "_engine": None}

    def _newest(self, reader: AttachedReader) -> Positions:
        from tracker_store.readers import newest_positions  # noqa: PLC0415  tasks need no SQLAlchemy

        return self._asked(lambda connection: newest_positions(connection, reader.reader_id))

    def _attached(self, offset: dict[str, Any] | None) -> AttachedReader:
        """The reader, made or found at the first call; one that was removed goes on at the checkpoint's `offset`."""
        from tracker_store.errors import ReaderPositionError  # noqa: PLC0415  tasks need no SQLAlchemy
        from tracker_store.readers import attach_reader  # noqa: PLC0415

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
            raise ReaderPositionError(
                f"reader {self._options['reader']!r}: the checkpoint is of another stream than "
                f"{self._options['stream']!r} is now (was it removed and applied again?)"
            )
        return self._reader

    def _asked(self, call: Callable[[sa.Connection], Answer]) -> Answer:
        """`call`'s answer, in time: each may be asked again, whatever became of it."""
        from orchestration.patience import patiently  # noqa: PLC0415  tasks need no SQLAlchemy
        from orchestration.spark.batch_reader import planner_engine  # noqa: PLC0415  as above

        if self._engine is None:
            self._engine = planner_engine(self._options.get("database_url"))
        return patiently(self._engine, call, "plan a streaming query's batch", seconds=PATIENCE_SECONDS)


def _limit(options: dict[str, str], name: str) -> int | None:
    value = options.get(name)
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise ReadOptionError(f"option {name}={value!r}: give a whole number from 1")
    return int(value)


def _offset(stream_id: int, positions: Positions) -> dict[str, Any]:
    return {"stream": stream_id, "receivers": {str(receiver): positions[receiver] for receiver in sorted(positions)}}


def _positions(offset: dict[str, Any]) -> Positions:
    return {int(receiver): position for receiver, position in offset["receivers"].items()}

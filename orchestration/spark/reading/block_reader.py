"""Read blocks in Spark: the planner gets their locations as an option or from the driver log; tasks only read files.

Each block's checksum is verified. Python workers load this module, so it loads neither Dagster nor SQLAlchemy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from orchestration.spark.reading.allocation import BlockLocation, decode_allocation, location_of
from orchestration.spark.reading.record_numbers import NUMBERED, numbered
from receiver_runtime.block_store.frames.columns import fitted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from receiver_runtime.block_store.stores.interface import BlockStore

#: The option with the references to the keys of encrypted blocks, separated by commas; never a key.
BLOCK_KEYS = "block_keys"
#: The option in which a batch's run passes on the block locations that it has read from the driver log.
ALLOCATION = "allocation"
#: The option that leaves out all but some records of each block, as FIRST:END, by their numbers from 0.
RECORDS = "records"
# Options that tasks don't get: one contains the driver log's password, the other may be long.
_OF_THE_PLANNER = ("database_url", ALLOCATION)

# Several small blocks make one task: starting a task costs more than reading a few MiB.
PARTITION_BYTES = 32 * 1024 * 1024
# What a block counts besides its bytes, for opening and checking it: else a task of a few MiB may have 100,000 blocks.
BLOCK_COST_BYTES = 16 * 1024
# The most tasks of one input: Spark's driver keeps a few KiB for each, and starts them one after the other.
MOST_PARTITIONS = 10_000


@dataclass
class BlockPartition(InputPartition):
    """Name the blocks of one task.

    `expected` are the identities of the block store's roots, by name: see ``open_block_store``. `first`: the number of
    the first of the blocks, of all that are read.
    """

    blocks: list[BlockLocation]
    expected: Mapping[str, Sequence[str]] = field(default_factory=dict)
    first: int = 0

    def __init__(
        self, blocks: list[BlockLocation], expected: Mapping[str, Sequence[str]] | None = None, first: int = 0
    ) -> None:
        super().__init__(0)
        self.blocks = blocks
        self.expected = expected or {}
        self.first = first


def partitions_of(
    locations: Sequence[BlockLocation],
    target_bytes: int = PARTITION_BYTES,
    *,
    block_cost: int = BLOCK_COST_BYTES,
    most: int = MOST_PARTITIONS,
    expected: Mapping[str, Sequence[str]] | None = None,
) -> list[BlockPartition]:
    """Group blocks, in order, into tasks of about `target_bytes`, at least one block each.

    A block counts its stored bytes and `block_cost`. An input that would have more than about `most` tasks gets larger
    ones.
    """
    costs = [length + block_cost for _, _, length, _, _ in locations]
    target = max(target_bytes, sum(costs) // most)
    partitions: list[BlockPartition] = []
    size = 0
    for number, (location, cost) in enumerate(zip(locations, costs, strict=True)):
        if not partitions or size + cost > target:
            partitions.append(BlockPartition([], expected, number))
            size = 0
        partitions[-1].blocks.append(location)
        size += cost
    return partitions


class ForebayReader(DataSourceReader):
    """Read a batch for the format: plan from the driver log, read from the block store."""

    def __init__(self, options: dict[str, str], schema: pa.Schema | None = None) -> None:
        """Take the format's checked options. Blocks of any version are fitted to `schema`; None: read unchanged."""
        self._options = options
        self._schema = schema

    def __getstate__(self) -> dict[str, object]:
        """Return the state for the tasks: they only read files, so the planner's options are left out."""
        options = {name: value for name, value in self._options.items() if name not in _OF_THE_PLANNER}
        return {"_options": options, "_schema": self._schema}

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per group of blocks; a stream without blocks in the batch has one empty partition."""
        if ALLOCATION in self._options:
            locations, expected = decode_allocation(self._options[ALLOCATION])
        else:
            locations, expected = self._ask()
        return partitions_of(locations, expected=expected) or [BlockPartition([])]

    def _ask(self) -> tuple[list[BlockLocation], dict[str, list[str]]]:
        from orchestration.spark.reading.batch_reader import blocks_of_input  # noqa: PLC0415  tasks need no SQLAlchemy

        window = self._options.get("window_seconds")
        blocks, expected = blocks_of_input(
            self._options.get("database_url"),
            block_store=self._options["block_store"],
            pipeline=self._options["pipeline"],
            batch_time=datetime.fromisoformat(self._options["batch_time"]),
            stream=self._options["stream"],
            window=None if window is None else timedelta(seconds=float(window)),
        )
        return [location_of(block) for block in blocks], expected

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of the partition's blocks, in order.

        A block that was never synced and is lost is skipped: the batch's run counts it (``lost_blocks``).
        """
        from receiver_runtime.block_store.frames.encryption import BlockKeys  # noqa: PLC0415
        from receiver_runtime.block_store.stores.replica_notes import NotingListener  # noqa: PLC0415
        from receiver_runtime.block_store.stores.stores import open_block_store  # noqa: PLC0415
        from receiver_runtime.sources.fields.secret import Secret  # noqa: PLC0415

        if not isinstance(partition, BlockPartition):
            message = f"a partition of another reader: {type(partition).__name__}"
            raise TypeError(message)
        noted = NotingListener()
        # A key never travels: each worker reads it where it runs.
        keys = BlockKeys([Secret(text) for text in self._options.get(BLOCK_KEYS, "").split(",") if text])
        store = open_block_store(self._options["block_store"], expected=partition.expected, listener=noted, keys=keys)
        try:
            yield from self._read(store, partition)
        finally:
            noted.leave(store)

    def _read(self, store: BlockStore, partition: BlockPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415  only workers need it

        from receiver_runtime.block_store.frames.errors import BlockCorruptError, BlockMissingError  # noqa: PLC0415

        is_numbered = NUMBERED in self._options
        schema = self._schema
        if is_numbered and schema is not None:
            schema = pa.schema(list(schema)[:-2])
        for number, (path, offset, length, crc32c, ephemeral) in enumerate(partition.blocks, partition.first):
            try:
                batches = store.read_batches(path, offset, length, crc32c)
            except (BlockMissingError, BlockCorruptError) as error:
                # Exactly the blocks that the run counts as lost.
                if ephemeral and (isinstance(error, BlockMissingError) or store.crash_may_spoil):
                    continue
                raise
            first = 0
            if RECORDS in self._options:
                first, end = map(int, self._options[RECORDS].split(":"))
                batches = _some(batches, first, end)
            rows = batches if schema is None else map(fitted(schema), batches)
            yield from numbered(rows, number, first) if is_numbered else rows


def _some(batches: Iterable[pa.RecordBatch], first: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield the records of a block from number `first` to before `end`."""
    at = 0
    for batch in batches:
        begin, length = max(first - at, 0), min(end - at, batch.num_rows) - max(first - at, 0)
        if length > 0:
            yield batch.slice(begin, length)
        at += batch.num_rows

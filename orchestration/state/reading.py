"""Read a state in Spark: the rows of the keys that occur in a batch, and those of the keys that have expired.

Each bucket is read by one task, from the frames of the versions that are needed; a bucket in which no key occurs, and
none may have expired, is not read. Tasks only read the block store. It writes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestration.state.state_frame import Chain, by_bucket, may_expire
from orchestration.state.state_schema import IS_EXPIRED, StateSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from orchestration.state.state_frame import StateFrame
    from orchestration.state.state_segments import StatePlace

# Rows of a batch for Spark.
_BATCH_ROWS = 65_536


def read_state(
    session: SparkSession,
    schema: StateSchema,
    chain: Sequence[Sequence[StateFrame]],
    keys: DataFrame | None,
    *,
    batch_time: datetime,
    buckets: int,
    roots: str,
    block_keys: str,
    expected: Mapping[str, Sequence[str]],
) -> DataFrame:
    """Return the state of the keys that occur and of those that have expired: the state's columns and ``is_expired``.

    A state with groups is read by group: those that occur, and those of which a key has expired.

    Args:
        session: runs the tasks when the result is used; each use reads the state again.
        schema: the state's columns.
        chain: the frames of the versions that are needed, the oldest version first.
        keys: has the columns of the key, or of the group, and may have others; a key may occur several times. None:
            every key.
        batch_time: a key has expired if its time is not after it.
        buckets: of the state.
        roots: of the block store, as its setting has them.
        block_keys: references to the keys of encrypted frames, separated by commas.
        expected: the identities of the block store's roots, by name: see ``open_block_store``.

    Raises StateError if `keys` lacks a column, or has one of a type that could lose a part of its values.
    """
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  tasks load what they need

    from orchestration.state.bucketed_rows import by_task, hashed_rows, marks  # noqa: PLC0415
    from orchestration.state.matched_columns import matched_columns  # noqa: PLC0415
    from orchestration.state.state_segments import StatePlace  # noqa: PLC0415

    frames = by_bucket(chain)
    looked_at = [bucket for bucket in frames if keys is None or may_expire(frames[bucket], batch_time)]
    rows = marks(session, looked_at, schema.group)
    if keys is not None:
        columns = matched_columns(keys, schema.group, "the keys", exactly=False)
        # Before there is a state, what occurs is not computed.
        if frames:
            rows = hashed_rows(keys, columns, key=len(schema.group), buckets=buckets).distinct().unionAll(rows)
    place = StatePlace(roots, block_keys, expected)
    reader = _BucketReader(place, schema, frames, batch_time, takes_all=keys is None)
    types = [kind for _, kind in schema.columns] + ["BOOLEAN"]
    found = by_task(session, rows, buckets).mapInArrow(
        reader.task(), ", ".join(f"c{number} {kind}" for number, kind in enumerate(types))
    )
    names = [name for name, _ in schema.columns] + [IS_EXPIRED]
    return found.select(*(F.col(f"c{number}").alias(name) for number, name in enumerate(names)))


@dataclass(frozen=True, slots=True)
class _BucketReader:
    """Read the buckets of a task."""

    place: StatePlace
    schema: StateSchema
    frames: Chain
    batch_time: datetime
    takes_all: bool

    def task(self) -> Any:  # noqa: ANN401  a function on iterators, as Spark takes it
        """Return the function that each task runs."""

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from self._read(batches)

        return read

    def _read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415

        from orchestration.state.bucketed_rows import buckets_of  # noqa: PLC0415
        from orchestration.state.local_frames import bucket_copies  # noqa: PLC0415
        from orchestration.state.state_rows import all_rows, frame_schema, rows_of_groups, rows_of_keys  # noqa: PLC0415

        whole = frame_schema(self.schema)
        of_keys = pa.schema([whole.field(number) for number in range(1 + len(self.schema.group))])
        store = self.place.open()
        for bucket in buckets_of(batches, of_keys):
            frames = self.frames.get(bucket.bucket)
            if frames is None:
                continue
            folder = frames[-1].path.rpartition("/")[0]
            copies = bucket_copies(self.place, store, whole, folder, bucket.bucket, begins=not self.takes_all)
            tables = copies.read(frames)
            copies.delete_others(frames)
            if self.takes_all:
                found = all_rows(self.schema, tables, self.batch_time)
            else:
                with_expired = may_expire(frames, self.batch_time)
                rows = rows_of_keys if self.schema.grouped_by is None else rows_of_groups
                found = rows(self.schema, tables, bucket.rows, self.batch_time, with_expired=with_expired)
            for table in found:
                named = table.rename_columns([f"c{number}" for number in range(table.num_columns)])
                yield from named.to_batches(max_chunksize=_BATCH_ROWS)

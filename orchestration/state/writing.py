"""Write a version of a state in Spark: the changes of a batch, by bucket, into the version's folder.

Each bucket is written by one task. A task writes its frames to a segment of its own and answers with their handles once
they are durable. Spark passes on one answer of each task, so that of a task that ran twice, or was killed, one segment
counts; the others are in the folder until it is deleted. It writes nothing else, and decides nothing about versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestration.state.state_frame import (
    Chain,
    StateError,
    StateFrame,
    by_bucket,
    is_full_due,
    next_expiry,
    time_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime, timedelta

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from orchestration.state.bucketed_rows import BucketRows
    from orchestration.state.state_schema import StateSchema
    from orchestration.state.state_segments import StatePlace, StateSegment
    from receiver_runtime.block_store.stores.interface import BlockStore

# A task's answer: a row for each bucket that it looked at; without a path, nothing was written of it.
_NUMBERS = ("bucket", "place", "length", "crc32c", "row_count", "next_expiry", "changed", "deleted", "live")
_ANSWER = ", ".join([*(f"{name} BIGINT" for name in _NUMBERS), "is_full BOOLEAN", "path STRING", "error STRING"])


@dataclass(frozen=True, slots=True)
class WrittenState:
    """Describe a version that was written, all of it durable.

    Attributes:
        frames: what was written, by bucket; a bucket without a frame is as it was.
        changed: keys that got a value.
        deleted: keys that were deleted, the expired ones among them.
        keys: that have a value now; None: not known without reading more.
        bytes: of the frames.
        next_expiry: the first time at which a key may expire; None: none does.
    """

    frames: tuple[StateFrame, ...]
    changed: int
    deleted: int
    keys: int | None
    bytes: int
    next_expiry: datetime | None


def write_state(
    session: SparkSession,
    schema: StateSchema,
    changes: DataFrame,
    chain: Sequence[Sequence[StateFrame]],
    *,
    ordinal: int,
    buckets: int,
    folder: str,
    batch_time: datetime,
    attempt: int,
    clock: datetime | None = None,
    ttl: timedelta | None,
    roots: str,
    block_keys: str,
    expected: Mapping[str, Sequence[str]],
    encrypts: bool = True,
    min_replicas: int = 1,
) -> WrittenState:
    """Write what `changes` make of the state that `chain` holds; return when all of it is durable.

    A row without a value deletes its key. A key that has expired is deleted unless it has a row.

    Args:
        session: runs the tasks.
        schema: the state's columns.
        changes: has exactly these columns, and a key at most once.
        chain: the frames of the versions that were read, the oldest version first.
        ordinal: of the new version; which buckets are written full goes by it.
        buckets: of the state, the same for all of its versions.
        folder: in the block store, of this attempt alone.
        batch_time: of the version.
        attempt: at the batch; each key that it changes says so.
        clock: a key has expired if its time is not after it; None: after the batch time.
        ttl: how long after their last change keys expire; None: they don't.
        roots: of the block store, as its setting has them.
        block_keys: references to the keys of encrypted frames, separated by commas, the one that encrypts first.
        expected: the identities of the block store's roots, by name: see ``open_block_store``.
        encrypts: whether frames are encrypted by the first key; without keys they never are.
        min_replicas: how many replicas must have each frame.

    Raises StateError for columns, keys or values that the state can't have, and what Spark raises for a task that
    failed.
    """
    from orchestration.state.bucketed_rows import by_task, hashed_rows, marks  # noqa: PLC0415  tasks load what they need
    from orchestration.state.matched_columns import matched_columns  # noqa: PLC0415
    from orchestration.state.state_segments import StatePlace  # noqa: PLC0415

    frames = by_bucket(chain)
    full = {
        bucket for bucket in range(buckets) if is_full_due(bucket, ordinal, frames.get(bucket, ()), clock or batch_time)
    }
    columns = matched_columns(changes, schema.columns, "the changes", exactly=True)
    rows = hashed_rows(changes, columns, key=len(schema.group), buckets=buckets)
    if looked_at := full & frames.keys():
        rows = rows.unionAll(marks(session, looked_at, schema.columns))
    place = StatePlace(roots, block_keys, expected, encrypts, min_replicas)
    writer = _BucketWriter(
        place,
        schema,
        {bucket: frames.get(bucket, ()) for bucket in full},
        batch_time,
        attempt,
        clock or batch_time,
        ttl,
        folder,
        ordinal,
    )
    answers = by_task(session, rows, buckets).mapInArrow(writer.task(), _ANSWER).collect()
    if error := next((answer["error"] for answer in answers if answer["error"] is not None), None):
        raise StateError(error)
    seen = [answer["bucket"] for answer in answers]
    if len(set(seen)) < len(seen):
        raise StateError(f"{folder}: two tasks have written the same bucket: {sorted(seen)}")
    return _written(frames, answers)


def _written(before: Chain, answers: Iterable[Any]) -> WrittenState:
    written, live = [], {}
    changed = deleted = 0
    for answer in answers:
        changed += answer["changed"]
        deleted += answer["deleted"]
        live[answer["bucket"]] = answer["live"]
        if answer["path"] is not None:
            expiry = answer["next_expiry"]
            written.append(
                StateFrame(
                    bucket=answer["bucket"],
                    path=answer["path"],
                    offset=answer["place"],
                    length=answer["length"],
                    crc32c=answer["crc32c"],
                    rows=answer["row_count"],
                    is_full=answer["is_full"],
                    next_expiry=None if expiry is None else time_of(expiry),
                )
            )
    written.sort(key=lambda frame: frame.bucket)
    after = by_bucket([*([frame] for frames in before.values() for frame in frames), written])
    known = all(bucket in live and live[bucket] is not None for bucket in after)
    return WrittenState(
        frames=tuple(written),
        changed=changed,
        deleted=deleted,
        keys=sum(live[bucket] for bucket in after) if known else None,
        bytes=sum(frame.length for frame in written),
        next_expiry=next_expiry(frame for frames in after.values() for frame in frames),
    )


@dataclass(frozen=True, slots=True)
class _BucketWriter:
    """Write the buckets of a task. `full`: the frames of those that are written full, which are read for it."""

    place: StatePlace
    schema: StateSchema
    full: Chain
    batch_time: datetime
    attempt: int
    clock: datetime
    ttl: timedelta | None
    folder: str
    ordinal: int

    def task(self) -> Any:  # noqa: ANN401  a function on iterators, as Spark takes it
        """Return the function that each task runs."""

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            yield from self._write(batches)

        return write

    def _write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415

        from orchestration.state.bucketed_rows import buckets_of  # noqa: PLC0415
        from orchestration.state.state_rows import changes_schema, frame_schema  # noqa: PLC0415
        from orchestration.state.state_segments import StateSegment  # noqa: PLC0415

        whole = frame_schema(self.schema)
        given = changes_schema(self.schema)
        store = self.place.open()
        segment = StateSegment(store, self.place, self.folder, self.ordinal)
        try:
            answers = [self._answer(store, segment, bucket, whole) for bucket in buckets_of(batches, given)]
            segment.sync()
        except StateError as error:
            # It is the same however often the task runs, and Spark would hide its text in a stack.
            answers = [{"bucket": -1, "error": str(error)}]
        finally:
            segment.close()
        if answers:
            columns = [*((name, pa.int64()) for name in _NUMBERS), ("is_full", pa.bool_())]
            texts = [("path", pa.string()), ("error", pa.string())]
            yield pa.RecordBatch.from_pylist(answers, schema=pa.schema(columns + texts))

    def _answer(self, store: BlockStore, segment: StateSegment, bucket: BucketRows, whole: pa.Schema) -> dict[str, Any]:
        """Take what is written of one bucket into the segment; return the row of the answer."""
        from orchestration.state.local_frames import bucket_copies  # noqa: PLC0415
        from orchestration.state.state_rows import next_frame  # noqa: PLC0415

        is_full = bucket.bucket in self.full
        number = bucket.bucket
        copies = bucket_copies(self.place, store, whole, self.folder, number, begins=False)
        tables = copies.read(self.full.get(number, ()))
        made = next_frame(
            self.schema,
            tables,
            bucket.rows,
            batch_time=self.batch_time,
            attempt=self.attempt,
            ttl=self.ttl,
            is_full=is_full,
            clock=self.clock,
        )
        answer = {
            "bucket": bucket.bucket,
            "is_full": is_full,
            "next_expiry": made.next_expiry,
            "changed": made.changed,
            "deleted": made.deleted,
            "live": made.live,
        }
        if made.rows is None:
            return answer
        offset, length, crc32c = segment.append(number, made.rows)
        copies.keep(segment.path, offset, crc32c, made.rows)
        rows = made.rows.num_rows
        return {**answer, "path": segment.path, "place": offset, "length": length, "crc32c": crc32c, "row_count": rows}

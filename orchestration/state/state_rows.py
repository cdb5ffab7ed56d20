"""Merge the rows of a bucket's frames, find those of some keys, and make the next frame of them: all in Arrow, in bulk.

A frame's rows have the columns of ``frame_schema``, each key at most once, and are in the order of ``HASH``, so that
some keys' rows are found by a binary search. A later frame's row of a key replaces the earlier ones. Keys are compared
by their values: two of one hash stay two. Pure: reads and writes nothing, and loads no Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orchestration.state.state_frame import StateError, microseconds
from orchestration.state.state_schema import EXPIRES_AT, IS_EXPIRED, StateSchema
from receiver_runtime.block_store.frames.columns import arrow_schema
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Spark's xxhash64 of the columns of the key's group.
HASH = "_hash"
#: The time at which the key expires, by its ttl or its own time, whichever comes first.
EXPIRES = "_expires_at"
#: Whether the key is deleted; its value is then null.
DELETED = "_deleted"
#: The version that changed the key last: the time of its batch, and the attempt that wrote it.
CHANGED_AT, CHANGED_BY = "_changed_at", "_changed_by"

_TIME = pa.timestamp("us", "UTC")
# What Python's times can hold. Nothing lives so long that a later time matters.
_FIRST, _LAST = microseconds(datetime.min.replace(tzinfo=UTC)), microseconds(datetime.max.replace(tzinfo=UTC))
_LONGEST_KEY = 200  # characters of a key in a message
# A frame with more rows than this for each key that is looked for is searched, and not read: a search costs about as
# much as a look at as many rows.
_LARGE = 16

Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class NextFrame:
    """Hold what a version writes of a bucket.

    Attributes:
        rows: of the frame; None: there is nothing to write.
        is_full: whether they are all of the bucket.
        changed: keys that got a value.
        deleted: keys that were deleted, the expired ones among them.
        live: keys that the bucket has now; None: not known.
        next_expiry: the first time at which one of the rows expires, in microseconds since 1970.
    """

    rows: pa.Table | None
    is_full: bool
    changed: int
    deleted: int
    live: int | None
    next_expiry: int | None


def frame_schema(schema: StateSchema) -> pa.Schema:
    """Return the columns of a frame."""
    columns = list(arrow_schema(schema.arrow_columns()))
    changed = [pa.field(CHANGED_AT, _TIME), pa.field(CHANGED_BY, pa.int32())]
    expires = [pa.field(EXPIRES, _TIME), pa.field(DELETED, pa.bool_())]
    return pa.schema([pa.field(HASH, pa.int64()), *columns, *changed, *expires])


def changes_schema(schema: StateSchema) -> pa.Schema:
    """Return the columns that ``next_frame`` takes: those of a frame that are given, not derived."""
    return pa.schema(list(frame_schema(schema))[: 1 + len(schema.columns)])


def all_rows(
    schema: StateSchema, frames: Sequence[pa.Table], batch_time: datetime, *, more: Sequence[str] = ()
) -> list[pa.Table]:
    """Return every live row of a bucket as ``rows_of_keys`` does; `more`: and these columns of a frame."""
    if len(frames) <= 1:
        return _given(schema, frames, batch_time, more)
    whole = pa.concat_tables(frames)
    return _given(schema, [whole.take(pa.array(newest_rows(schema, whole)))], batch_time, more)


def rows_of_keys(
    schema: StateSchema,
    frames: Sequence[pa.Table],
    keys: pa.Table | None,
    batch_time: datetime,
    *,
    with_expired: bool,
) -> list[pa.Table]:
    """Return the live rows of some keys, and those of all expired keys, in the state's columns and ``IS_EXPIRED``.

    Costs a binary search for each key and frame, and a look at each time of expiry only if ``with_expired``.

    Args:
        schema: the state's columns.
        frames: of one bucket, oldest first.
        keys: with ``HASH`` and the key's columns; a key may be there several times. None: no keys.
        batch_time: a key expires when its time is not after it.
        with_expired: whether expired keys are looked for.
    """
    wanted = [] if keys is None else [_hashes(keys)]
    if with_expired:
        wanted += [_hashes(frame)[_are_expired(frame, batch_time)] for frame in frames]
    hashes = np.unique(np.concatenate(wanted)) if wanted else np.empty(0, np.int64)
    if not hashes.size or not frames:
        return []
    found = _rows_of_hashes(frames, hashes)
    found = found.take(pa.array(newest_rows(schema, found)))
    # Keys of the same hash that were not asked for are among them.
    is_wanted = _are_among(schema, found, keys)
    if with_expired:
        is_wanted |= _are_expired(found, batch_time)
    return _given(schema, [found if is_wanted.all() else found.filter(pa.array(is_wanted))], batch_time)


def _rows_of_hashes(frames: Sequence[pa.Table], hashes: Rows) -> pa.Table:
    """Return the rows that have one of some hashes, which are in order and each there once; the oldest frame's first.

    A large frame is searched, and only the found rows are read of it; small ones are looked through together.
    """
    found, small = [], list(frames)
    while small and small[0].num_rows > _LARGE * hashes.size:
        frame = small.pop(0)
        found.append(frame.take(pa.array(_positions(_hashes(frame), hashes))))
    if small:
        together = pa.concat_tables(small)
        is_wanted = pc.is_in(pa.array(_hashes(together)), value_set=pa.array(hashes))
        found.append(together.take(pa.array(np.flatnonzero(is_wanted))))
    return pa.concat_tables(found)


def _are_among(schema: StateSchema, rows: pa.Table, keys: pa.Table | None) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each row, each of another key, whether its key is among some, where a key may be several times."""
    is_among = np.zeros(rows.num_rows, np.bool_)
    if keys is None or not keys.num_rows:
        return is_among
    ordered = np.argsort(_hashes(keys), kind="stable")
    hashes, names = _hashes(keys)[ordered], schema.key_names
    at = np.minimum(np.searchsorted(hashes, _hashes(rows)), hashes.size - 1)
    has_hash = hashes[at] == _hashes(rows)
    is_among |= has_hash & _are_equal(rows.select(names), keys.select(names).take(pa.array(ordered[at])))
    if (left := np.flatnonzero(has_hash & ~is_among)).size:
        # The first key of the hash is another one; there may be more.
        same = keys.filter(pa.array(np.isin(_hashes(keys), _hashes(rows)[left])))
        grouped = _grouped([rows.take(pa.array(left)).select(names), same.select(names)], found_in=1)
        is_among[left[_numbers(grouped.filter(grouped["asked_max"])["row_max"].drop_null())]] = True
    return is_among


def rows_of_groups(
    schema: StateSchema, frames: Sequence[pa.Table], groups: pa.Table, batch_time: datetime, *, with_expired: bool
) -> list[pa.Table]:
    """Return the live rows of some groups, and those of each group of which a key has expired, as ``rows_of_keys``.

    `groups` has ``HASH`` and the columns of a group, which may be there several times.
    """
    wanted = [_hashes(groups)]
    if with_expired:
        wanted += [_hashes(frame)[_are_expired(frame, batch_time)] for frame in frames]
    hashes = np.unique(np.concatenate(wanted))
    if not hashes.size or not frames:
        return []
    found = _rows_of_hashes(frames, hashes)
    rows = found.take(pa.array(newest_rows(schema, found)))
    rows = rows.filter(pc.invert(rows[DELETED])).combine_chunks()
    asked = [groups.select(schema.group_names)]
    if with_expired:
        asked.append(rows.select(schema.group_names).filter(pa.array(_are_expired(rows, batch_time))))
    return _given(schema, [rows.take(_rows_of(rows.select(schema.group_names), asked))], batch_time)


def _rows_of(rows: pa.Table, asked: Sequence[pa.Table]) -> pa.Array:
    """Return the numbers of the rows that are equal to one of the asked ones, nulls too."""
    names = [f"k{column}" for column in range(rows.num_columns)]
    tables: list[pa.Table] = []
    for table in [rows, *asked]:
        is_asked = bool(tables)
        numbers = pa.nulls(table.num_rows, pa.int64()) if is_asked else pa.array(np.arange(table.num_rows))
        named = table.rename_columns(names).append_column("row", numbers)
        tables.append(named.append_column("asked", pa.repeat(pa.scalar(is_asked), table.num_rows)))
    grouped = pa.concat_tables(tables).group_by(names, use_threads=False).aggregate([("row", "list"), ("asked", "max")])
    of_groups = grouped.filter(grouped["asked_max"])["row_list"].combine_chunks()
    return pc.drop_null(pc.list_flatten(of_groups))


def next_frame(
    schema: StateSchema,
    frames: Sequence[pa.Table],
    changes: pa.Table,
    *,
    batch_time: datetime,
    attempt: int,
    ttl: timedelta | None,
    is_full: bool,
    clock: datetime | None = None,
) -> NextFrame:
    """Return what a version writes of a bucket.

    Args:
        schema: the state's columns.
        frames: the bucket's, oldest first; they are not looked at unless ``is_full``.
        changes: ``HASH`` and the state's columns; a row without a value deletes its key.
        batch_time: of the version.
        attempt: of the version.
        ttl: how long after their last change keys expire.
        is_full: whether all rows are written; expired keys without a change are deleted then.
        clock: a key has expired if its time is not after it; None: after the batch time.

    Raises StateError if a key occurs twice.
    """
    _check_keys(schema, changes)
    delta = _as_frame(schema, changes, batch_time, attempt, ttl)
    deletions = int(pc.sum(delta[DELETED]).as_py() or 0)
    changed = delta.num_rows - deletions
    if not is_full:
        rows = _sorted(delta) if delta.num_rows else None
        return NextFrame(rows, is_full, changed, deletions, None, _first_expiry(delta))
    whole = pa.concat_tables([*frames, _sorted(delta)])
    newest = newest_rows(schema, whole)
    is_live = ~whole[DELETED].to_numpy()[newest]
    is_expired = _are_expired(whole, clock or batch_time)[newest] & is_live & (newest < whole.num_rows - delta.num_rows)
    expired = int(is_expired.sum())
    rows = whole.take(pa.array(newest[is_live & ~is_expired])).combine_chunks()
    count = rows.num_rows
    if not count and frames:
        # A frame has a row: a deleted one says that there is no other.
        rows = _deleted_row(schema, next(table for table in [*frames, delta] if table.num_rows))
    written = rows if rows.num_rows else None
    return NextFrame(written, is_full, changed, deletions + expired, count, _first_expiry(rows))


def newest_rows(schema: StateSchema, whole: pa.Table) -> Rows:
    """Return the last row of each key, in the order of ``HASH``, of frames that follow one another, the oldest first.

    Rows of one hash are next to each other in that order, so that almost no key is compared with another one.
    """
    hashes = _hashes(whole)
    # Merges the frames, each of which is in order.
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]
    older = np.flatnonzero(hashes[1:] == hashes[:-1])
    if not older.size:
        return order
    is_newest = np.ones(order.size, np.bool_)
    is_newest[older] = False
    keys = whole.select(schema.key_names)
    is_same = _are_equal(keys.take(pa.array(order[older])), keys.take(pa.array(order[older + 1])))
    if not is_same.all():
        of_several = np.flatnonzero(np.isin(hashes, hashes[older[~is_same]]))
        grouped = _grouped([keys.take(pa.array(order[of_several]))], found_in=1)
        is_newest[of_several] = False
        is_newest[of_several[_numbers(grouped["row_max"])]] = True
    return order[is_newest]


def _are_equal(one: pa.Table, other: pa.Table) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return for each row whether two tables have the same values in it; a null is a value."""
    found = np.ones(one.num_rows, np.bool_)
    for left, right in zip(one.columns, other.columns, strict=True):
        is_equal = pc.fill_null(pc.equal(left, right), False)  # noqa: FBT003  a value
        if left.null_count and right.null_count:
            is_equal = pc.or_(is_equal, pc.and_(pc.is_null(left), pc.is_null(right)))
        found &= is_equal.to_numpy()
    return found


def _grouped(keys: Sequence[pa.Table], *, found_in: int) -> pa.Table:
    """Return each key once: `row_max`, its last row in the first tables, `asked_max`, whether a later one has it."""
    tables, first = [], 0
    for number, table in enumerate(keys):
        named = table.rename_columns([f"k{column}" for column in range(table.num_columns)])
        is_found = number < found_in
        rows = pa.array(np.arange(first, first + table.num_rows)) if is_found else pa.nulls(table.num_rows, pa.int64())
        asked = pa.repeat(pa.scalar(not is_found), table.num_rows)
        tables.append(named.append_column("row", rows).append_column("asked", asked))
        first += table.num_rows if is_found else 0
    columns = [name for name in tables[0].column_names if name not in ("row", "asked")]
    return pa.concat_tables(tables).group_by(columns, use_threads=False).aggregate([("row", "max"), ("asked", "max")])


def _given(
    schema: StateSchema, tables: Iterable[pa.Table], batch_time: datetime, more: Sequence[str] = ()
) -> list[pa.Table]:
    """Return the rows that are not deleted as a state is given, with `more` columns."""
    found = []
    for table in tables:
        live = table.filter(pc.invert(table[DELETED]))
        if live.num_rows:
            given = live.select(schema.names).append_column(IS_EXPIRED, pa.array(_are_expired(live, batch_time)))
            for name in more:
                given = given.append_column(name, live[name])
            found.append(given)
    return found


def _positions(hashes: Rows, wanted: Rows) -> Rows:
    """Return the positions at which sorted hashes have one of the wanted ones, each of which is wanted once."""
    if wanted.size > hashes.size:
        # The shorter one is searched for in the longer one.
        at = np.searchsorted(wanted, hashes)
        return np.flatnonzero(wanted[np.minimum(at, wanted.size - 1)] == hashes)
    begin, end = np.searchsorted(hashes, wanted, "left"), np.searchsorted(hashes, wanted, "right")
    counts = end - begin
    before = np.cumsum(counts) - counts
    return np.repeat(begin - before, counts) + np.arange(counts.sum())


def _check_keys(schema: StateSchema, changes: pa.Table) -> None:
    """Raise StateError if a key occurs twice."""
    names = [f"k{number}" for number in range(len(schema.key))]
    counted = changes.select(schema.key_names).rename_columns(names).group_by(names, use_threads=False)
    counts = counted.aggregate([([], "count_all")])
    if counts.num_rows == changes.num_rows:
        return
    row = counts.filter(pc.greater(counts["count_all"], 1)).slice(0, 1)
    raise StateError(
        f"the changes have {row['count_all'][0].as_py()} rows of the key ({shown_key(schema, row)}): a key has one "
        "value, so group by the key, or drop all rows but one"
    )


def shown_key(schema: StateSchema, row: pa.Table) -> str:
    """Return the key of a row for a message; its columns are the first ones."""
    values = (column[0] for column in row.columns)
    return shortened(
        ", ".join(f"{name}={value!s}" for name, value in zip(schema.key_names, values, strict=False)), _LONGEST_KEY
    )


def _as_frame(
    schema: StateSchema, changes: pa.Table, batch_time: datetime, attempt: int, ttl: timedelta | None
) -> pa.Table:
    """Return changes as a frame's rows, in their own order."""
    is_deleted = pa.chunked_array([pa.repeat(pa.scalar(True), changes.num_rows)])  # noqa: FBT003  a value
    for name, _ in schema.value:
        is_deleted = pc.and_(is_deleted, pc.is_null(changes[name]))
    none = pa.scalar(None, pa.int64())
    # As numbers: Arrow finds the least of those, and not of times with a zone.
    expires = changes[EXPIRES_AT].cast(pa.int64()) if schema.has_expires_at else none
    if ttl is not None:
        expires = pc.min_element_wise(expires, microseconds(batch_time) + ttl // timedelta(microseconds=1))
    expires = pc.if_else(is_deleted, none, expires).cast(_TIME)
    made = {
        CHANGED_AT: pa.repeat(pa.scalar(batch_time, _TIME), changes.num_rows),
        CHANGED_BY: pa.repeat(pa.scalar(attempt, pa.int32()), changes.num_rows),
        EXPIRES: expires,
        DELETED: is_deleted,
    }
    for name, column in made.items():
        changes = changes.append_column(name, column)
    return changes


def _deleted_row(schema: StateSchema, table: pa.Table) -> pa.Table:
    """Return the first row of a frame as one of a deleted key."""
    row, kept = table.slice(0, 1), {HASH, *schema.key_names, CHANGED_AT, CHANGED_BY}
    columns = [row[field.name] if field.name in kept else pa.nulls(1, field.type) for field in table.schema]
    return pa.table([*columns[:-1], pa.array([True])], schema=table.schema)


def _sorted(table: pa.Table) -> pa.Table:
    return table.take(pa.array(np.argsort(_hashes(table), kind="stable")))


def _first_expiry(table: pa.Table) -> int | None:
    first = pc.min(table[EXPIRES].cast(pa.int64())).as_py()
    return None if first is None or first > _LAST else max(first, _FIRST)


def _hashes(table: pa.Table) -> Rows:
    return _numbers(table[HASH])


def _are_expired(table: pa.Table, batch_time: datetime) -> np.ndarray[Any, np.dtype[np.bool_]]:
    now = pa.scalar(microseconds(batch_time), pa.int64())
    is_expired = pc.fill_null(pc.less_equal(table[EXPIRES].cast(pa.int64()), now), False)  # noqa: FBT003  a value
    found: np.ndarray[Any, np.dtype[np.bool_]] = is_expired.to_numpy()
    return found


def _numbers(column: pa.ChunkedArray) -> Rows:
    # One piece is not copied: of a mapped file only what is searched is read.
    found: Rows = column.chunk(0).to_numpy() if column.num_chunks == 1 else column.to_numpy()
    return found

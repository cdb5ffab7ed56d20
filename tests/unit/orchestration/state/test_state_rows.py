"""Test the merge of a bucket's frames against a dictionary: any versions, deletions, expiries and full frames."""

from __future__ import annotations

import datetime as dt
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.state import state_rows
from orchestration.state.state_frame import StateError, time_of
from orchestration.state.state_rows import (
    CHANGED_AT,
    CHANGED_BY,
    DELETED,
    EXPIRES,
    HASH,
    all_rows,
    changes_schema,
    frame_schema,
    next_frame,
    rows_of_keys,
)
from orchestration.state.state_schema import StateSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SCHEMA = StateSchema.parse(key="user STRING, day INT", value="n BIGINT, tags ARRAY<STRING>, expires_at TIMESTAMP")
WHOLE = frame_schema(SCHEMA)
GIVEN = changes_schema(SCHEMA)
START = datetime(2026, 1, 1, tzinfo=UTC)

Key = tuple[str | None, int | None]
Value = tuple[int | None, list[str] | None, datetime | None]
NOTHING: Value = (None, None, None)


def hash_of(key: Key) -> int:
    """Return a hash that few keys have for themselves, so that several keys of one hash are common."""
    return sum(map(ord, key[0] or "")) % 3 - 1


def rows(changes: Iterable[tuple[Key, Value]]) -> pa.Table:
    made = [
        {HASH: hash_of(key), "user": key[0], "day": key[1], "n": value[0], "tags": value[1], "expires_at": value[2]}
        for key, value in changes
    ]
    return pa.Table.from_pylist(made, schema=GIVEN)


def keys_of(keys: Iterable[Key]) -> pa.Table:
    made = [{HASH: hash_of(key), "user": key[0], "day": key[1]} for key in keys]
    return pa.Table.from_pylist(made, schema=pa.schema([GIVEN.field(number) for number in range(3)]))


def found(tables: Sequence[pa.Table]) -> dict[Key, tuple[Value, bool]]:
    listed = [row for table in tables for row in table.to_pylist()]
    made = {
        (row["user"], row["day"]): ((row["n"], row["tags"], row["expires_at"]), row["is_expired"]) for row in listed
    }
    assert len(made) == len(listed), "each key once"
    return made


keys = st.tuples(st.sampled_from(["a", "b", "c", "d", "dd", None]), st.sampled_from([1, 2, None]))
values = st.one_of(
    st.just(NOTHING),
    st.tuples(
        st.one_of(st.none(), st.integers(-3, 3)),
        st.one_of(st.none(), st.lists(st.sampled_from(["x", "", "y"]), max_size=2)),
        st.one_of(st.none(), st.integers(-1, 8).map(lambda hours: START + timedelta(hours=hours))),
    ),
)
versions = st.lists(
    st.tuples(st.dictionaries(keys, values, max_size=6), st.booleans(), st.lists(keys, max_size=4)),
    min_size=1,
    max_size=8,
)


class Model:
    """Do with a dictionary what the frames of one bucket do."""

    def __init__(self, ttl: timedelta | None) -> None:
        self.state: dict[Key, tuple[Value, datetime | None]] = {}
        self.changed: dict[Key, tuple[datetime, int]] = {}
        self.ttl = ttl

    def expired(self, now: datetime) -> set[Key]:
        return {key for key, (_, time) in self.state.items() if time is not None and time <= now}

    def change(self, changes: Mapping[Key, Value], now: datetime, attempt: int) -> None:
        self.changed |= dict.fromkeys(changes, (now, attempt))
        for key in self.expired(now) - changes.keys():
            del self.state[key]
        for key, value in changes.items():
            if value == NOTHING:
                self.state.pop(key, None)
                continue
            times = [value[2], None if self.ttl is None else now + self.ttl]
            self.state[key] = value, min((time for time in times if time is not None), default=None)

    def next_expiry(self) -> datetime | None:
        return min((time for _, time in self.state.values() if time is not None), default=None)


@given(versions, st.one_of(st.none(), st.integers(1, 5).map(lambda hours: timedelta(hours=hours))))
def test_any_versions_are_what_a_dictionary_makes_of_them(
    history: list[tuple[dict[Key, Value], bool, list[Key]]], ttl: timedelta | None
) -> None:
    model = Model(ttl)
    frames: list[pa.Table] = []
    expiries: list[datetime | None] = []
    for number, (changes, in_turn, asked) in enumerate(history):
        now = START + timedelta(hours=number)
        bound = min((time for time in expiries if time is not None), default=None)
        may_expire = bound is not None and bound <= now

        given = {key: (value, key in model.expired(now)) for key, (value, _) in model.state.items()}
        assert found(all_rows(SCHEMA, frames, now)) == given
        wanted = {*asked, *model.expired(now)}
        read = found(rows_of_keys(SCHEMA, frames, keys_of(asked), now, with_expired=may_expire))
        assert read == {key: row for key, row in given.items() if key in wanted}
        with mock.patch.object(state_rows, "_LARGE", 0):
            # As in frames that are large.
            assert read == found(rows_of_keys(SCHEMA, frames, keys_of(asked), now, with_expired=may_expire))
        assert found(rows_of_keys(SCHEMA, frames, None, now, with_expired=may_expire)) == {
            key: row for key, row in given.items() if key in model.expired(now)
        }

        is_full = in_turn or not frames or may_expire
        expired = model.expired(now) - changes.keys()
        made = next_frame(
            SCHEMA, frames, rows(changes.items()), batch_time=now, attempt=number + 1, ttl=ttl, is_full=is_full
        )
        model.change(changes, now, number + 1)
        deletions = sum(value == NOTHING for value in changes.values())
        assert (made.changed, made.deleted) == (len(changes) - deletions, deletions + len(expired))
        assert made.live == (len(model.state) if is_full else None)
        if made.rows is None:
            # Only where there is nothing to say; an empty frame can't be written.
            assert not changes or (not frames and not model.state)
            continue
        assert made.rows.schema.equals(WHOLE)
        assert made.rows.num_rows
        assert made.rows[HASH].to_pylist() == sorted(made.rows[HASH].to_pylist())
        if is_full:
            frames, expiries = [], []
        frames.append(made.rows)
        expiries.append(None if made.next_expiry is None else time_of(made.next_expiry))
        bound = min((time for time in expiries if time is not None), default=None)
        exact = model.next_expiry()
        assert bound == exact if is_full else exact is None or (bound is not None and bound <= exact)
    left = [
        row for table in all_rows(SCHEMA, frames, START, more=(CHANGED_AT, CHANGED_BY)) for row in table.to_pylist()
    ]
    assert {(row["user"], row["day"]): (row[CHANGED_AT], row[CHANGED_BY]) for row in left} == {
        key: model.changed[key] for key in model.state
    }


def test_a_key_that_comes_twice_is_named() -> None:
    changes = rows([(("a", 1), (1, None, None)), (("b", None), (2, None, None)), (("b", None), NOTHING)])
    for is_full in (False, True):
        with pytest.raises(StateError, match=r"2 rows of the key \(user=b, day=None\)"):
            next_frame(SCHEMA, [], changes, batch_time=START, attempt=1, ttl=None, is_full=is_full)


def test_a_bucket_whose_keys_are_all_deleted_keeps_one_row_that_says_so() -> None:
    first = next_frame(
        SCHEMA, [], rows([(("a", 1), (1, [], None))]), batch_time=START, attempt=1, ttl=None, is_full=True
    ).rows
    made = next_frame(SCHEMA, [first], rows([(("a", 1), NOTHING)]), batch_time=START, attempt=1, ttl=None, is_full=True)
    assert made.rows is not None
    assert (made.rows.num_rows, made.rows[DELETED].to_pylist(), made.live) == (1, [True], 0)
    assert all_rows(SCHEMA, [made.rows], START) == []
    unknown = next_frame(SCHEMA, [], rows([(("a", 1), NOTHING)]), batch_time=START, attempt=1, ttl=None, is_full=True)
    assert (unknown.rows, unknown.deleted, unknown.live) == (None, 1, 0)


def test_times_that_python_has_not_are_kept_as_they_are() -> None:
    far, early = 2**62, -(2**62)
    changes = rows([(("a", 1), (1, None, START)), (("b", 1), (1, None, START))])
    times = pa.array([far, early]).cast(pa.timestamp("us", "UTC"))
    changes = changes.set_column(changes.column_names.index("expires_at"), GIVEN.field("expires_at"), times)
    made = next_frame(SCHEMA, [], changes, batch_time=START, attempt=1, ttl=None, is_full=True)
    assert made.rows is not None
    assert sorted(made.rows["expires_at"].cast(pa.int64()).to_pylist()) == [early, far]
    assert made.next_expiry is not None
    assert time_of(made.next_expiry) == datetime.min.replace(tzinfo=UTC)
    [read] = rows_of_keys(SCHEMA, [made.rows], None, START, with_expired=True)
    assert read["user"].to_pylist() == ["b"]
    only_far = next_frame(SCHEMA, [], changes.slice(0, 1), batch_time=START, attempt=1, ttl=None, is_full=True)
    assert only_far.next_expiry is None


def test_keys_of_every_type_are_compared_by_their_values() -> None:
    schema = StateSchema.parse(
        key="a BOOLEAN, b TINYINT, c BINARY, d DATE, e TIMESTAMP, f TIMESTAMP_NTZ, g DECIMAL(20, 2)", value="n INT"
    )
    row: dict[str, Any] = {
        HASH: 1,
        "a": True,
        "b": 1,
        "c": b"\xff",
        "d": dt.date(2026, 1, 1),
        "e": START,
        "f": START.replace(tzinfo=None),
        "n": 1,
    }
    given = changes_schema(schema)
    table = pa.Table.from_pylist([{**row, "g": None}, {**row, "g": None, "b": None}], schema=given)
    table = table.set_column(7, given.field(7), pa.array(["1.00", "1.00"]).cast(pa.decimal128(20, 2)))
    made = next_frame(schema, [], table, batch_time=START, attempt=1, ttl=None, is_full=True)
    assert made.live == 2
    assert made.rows is not None
    [read] = rows_of_keys(schema, [made.rows], table.slice(0, 1).select(given.names[:8]), START, with_expired=False)
    assert read["b"].to_pylist() == [1]
    assert pc.all(pc.is_null(made.rows[EXPIRES])).as_py()

"""Test which columns a state can have, and the forms in which schema and frames are kept."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from orchestration.state.state_frame import (
    FULL_EVERY_VERSIONS,
    StateFrame,
    by_bucket,
    is_full_due,
    may_expire,
    next_expiry,
)
from orchestration.state.state_schema import StateSchema
from receiver_runtime.sources.records.ddl import DdlError, parse_ddl, parse_spark_types

TIME = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def test_a_type_has_one_spelling_however_it_is_written() -> None:
    schema = StateSchema.parse(
        key="user string, `of a.day` DATE, price dec(5, 2)",
        value="n LONG, expires_at timestamp, tags ARRAY<STRUCT<`x y`: int, z: MAP<STRING, DOUBLE>>>",
    )
    assert schema.key == (("user", "STRING"), ("of a.day", "DATE"), ("price", "DECIMAL(5, 2)"))
    assert schema.value == (
        ("n", "BIGINT"),
        ("expires_at", "TIMESTAMP"),
        ("tags", "ARRAY<STRUCT<`x y`: INT, `z`: MAP<STRING, DOUBLE>>>"),
    )
    assert schema.has_expires_at
    assert schema == StateSchema(schema.key, schema.value)
    assert schema.arrow_columns()[-1] == ("tags", "list<item: struct<x y: int32, z: map<string, double>>>")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("user DOUBLE", "n INT", "column user DOUBLE: no key can be of this type: 0.0 and -0.0 are equal"),
        ("user FLOAT", "n INT", "column user FLOAT"),
        ("user MAP<STRING, INT>", "n INT", "a map's entries have no order"),
        ("user ARRAY<INT>", "n INT", "make a column of each part"),
        ("user STRUCT<a: INT>", "n INT", "make a column of each part"),
        ("_user STRING", "n INT", "'_user': names that begin with '_'"),
        ("user STRING", "_deleted BOOLEAN", "'_deleted': names that begin with '_'"),
        ("user STRING", "n INT, User INT", "the columns 'user' and 'User' have one name"),
        ("user STRING", "user INT", "the columns 'user' and 'user' have one name"),
        ("user STRING", "IS_expired BOOLEAN", "a state is given with a column is_expired"),
        ("expires_at TIMESTAMP", "n INT", "a key can't be its own time of expiry"),
        ("user STRING", "n INT, expires_at DATE", "write it as expires_at TIMESTAMP"),
        ("user STRING", "n INT, Expires_At TIMESTAMP", "write it as expires_at TIMESTAMP"),
        ("user STRING", "n INT NOT NULL", "'n' can't be NOT NULL here"),
        ("user", "n INT", "the end where a type"),
        ("user STRING", "", "a column's name"),
    ],
)
def test_columns_that_no_state_can_have_are_refused_by_name(key: str, value: str, said: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        StateSchema.parse(key=key, value=value)
    assert said in str(caught.value)


def test_a_state_has_a_key_and_a_value() -> None:
    with pytest.raises(ValueError, match="a state's key has no column"):
        StateSchema((), (("n", "INT"),))
    with pytest.raises(ValueError, match="a state's value has no column"):
        StateSchema((("n", "INT"),), ())


@pytest.mark.parametrize("kind", ["BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "STRING", "BINARY", "DATE"])
def test_each_of_these_types_may_be_a_keys(kind: str) -> None:
    assert StateSchema.parse(key=f"k {kind}", value="n INT").key == (("k", kind),)


def test_types_in_sparks_spelling_are_those_of_arrows() -> None:
    ddl = "a TINYINT, b MAP<DATE, ARRAY<DECIMAL(38, 38)>>, c TIMESTAMP_NTZ, `d``e` FLOAT, f BINARY"
    written = ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in parse_spark_types(ddl))
    assert parse_ddl(written) == parse_ddl(ddl)
    with pytest.raises(DdlError):
        parse_spark_types("a INT NOT NULL")


def frame(bucket: int, version: int, *, full: bool = False, expiry: datetime | None = None) -> StateFrame:
    return StateFrame(bucket, f"state/1/o/{version}/a.segment", 7, 99, 0xFFFF_FFFF, 3, full, expiry)


@pytest.mark.parametrize("expiry", [None, TIME, datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)])
def test_a_frame_survives_the_driver_log(expiry: datetime | None) -> None:
    kept = frame(3, 1, full=True, expiry=expiry)
    assert StateFrame.of_row(json.loads(json.dumps(kept.to_row()))) == kept


def test_a_bucket_begins_at_its_newest_full_frame() -> None:
    chain = [
        [frame(0, 1, full=True), frame(1, 1, full=True)],
        [frame(0, 2)],
        [frame(0, 3, full=True), frame(2, 3, full=True)],
        [frame(0, 4), frame(1, 4)],
    ]
    assert by_bucket(chain) == {
        0: (frame(0, 3, full=True), frame(0, 4)),
        1: (frame(1, 1, full=True), frame(1, 4)),
        2: (frame(2, 3, full=True),),
    }
    assert by_bucket([]) == {}


def test_a_bucket_is_written_full_in_turn_at_first_and_where_a_key_may_have_expired() -> None:
    frames = [frame(5, 1, full=True, expiry=TIME), frame(5, 2)]
    before, at = TIME - timedelta(microseconds=1), TIME
    turns = [n for n in range(100) if is_full_due(5, n, frames, before)]
    assert turns == [5, 5 + FULL_EVERY_VERSIONS, 5 + 2 * FULL_EVERY_VERSIONS]
    assert [is_full_due(5 + 32, n, frames, before) for n in (4, 5, 6)] == [False, True, False]
    assert is_full_due(5, 1, frames, at)
    assert is_full_due(5, 1, [], before)
    assert (next_expiry(frames), next_expiry([])) == (TIME, None)
    assert (may_expire(frames, at), may_expire(frames, before)) == (True, False)

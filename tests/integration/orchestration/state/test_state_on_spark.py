"""Test a state that Spark reads and writes in the block store: versions, columns, replicas, encryption, damage."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812  as everyone writes it

from forebay import State, update_state_by_key
from orchestration.state import whole_state
from orchestration.state.matched_columns import matched_columns
from orchestration.state.reading import read_state
from orchestration.state.state_folder import delete_folder
from orchestration.state.state_frame import StateError, StateFrame, by_bucket
from orchestration.state.state_schema import StateSchema
from orchestration.state.state_segments import StatePlace
from orchestration.state.writing import WrittenState, _BucketWriter, write_state
from receiver_runtime.block_store.stores.stores import open_block_store
from tests.support.receivers.block_keys import files_with, key_file

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SCHEMA = StateSchema.parse(
    key="user STRING, `of a.day` DATE", value="n BIGINT, tags ARRAY<STRUCT<`x y`: STRING>>, expires_at TIMESTAMP"
)
COLUMNS = "user STRING, `of a.day` DATE, n BIGINT, tags ARRAY<STRUCT<`x y`: STRING>>, expires_at TIMESTAMP"
START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
BUCKETS = 5

Row = tuple[Any, ...]


@dataclass
class Versions:
    """The versions of one state, in one place."""

    session: SparkSession
    roots: str
    block_keys: str = ""
    schema: StateSchema = SCHEMA
    min_replicas: int = 1
    chain: list[tuple[StateFrame, ...]] = field(default_factory=list)

    def write(self, changes: DataFrame, time: datetime, *, ttl: timedelta | None = None) -> WrittenState:
        ordinal = len(self.chain) + 1
        written = write_state(
            self.session,
            self.schema,
            changes,
            self.chain,
            ordinal=ordinal,
            buckets=BUCKETS,
            folder=f"state/1/totals/{ordinal}-1",
            batch_time=time,
            attempt=1,
            ttl=ttl,
            roots=self.roots,
            block_keys=self.block_keys,
            expected={},
            min_replicas=self.min_replicas,
        )
        self.chain.append(tuple(StateFrame.of_row(frame.to_row()) for frame in written.frames))
        return written

    def read(self, keys: DataFrame | None, time: datetime) -> DataFrame:
        return read_state(
            self.session,
            self.schema,
            self.chain,
            keys,
            batch_time=time,
            buckets=BUCKETS,
            roots=self.roots,
            block_keys=self.block_keys,
            expected={},
        )


def changes(session: SparkSession, rows: list[Row]) -> DataFrame:
    return session.createDataFrame(rows, COLUMNS)


def found(state: DataFrame) -> dict[str, Row]:
    rows = state.collect()
    made = {row["user"]: (row["n"], row["is_expired"]) for row in rows}
    assert len(made) == len(rows)
    return made


def test_versions_of_a_state_with_replicas_and_encryption(session: SparkSession, tmp_path: Path) -> None:
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    key = key_file(tmp_path / "key")
    state = Versions(session, f"{tmp_path / 'one'},{tmp_path / 'two'}", block_keys=key, min_replicas=2)
    day = START.date()
    first = changes(
        session,
        [(f"user {n}", day, n, [("a secret",)], START + HOUR if n < 3 else None) for n in range(40)]
        + [(None, None, 7, None, None)],
    )
    assert state.read(first, START).columns == ["user", "of a.day", "n", "tags", "expires_at", "is_expired"]
    assert found(state.read(first, START)) == {}
    written = state.write(first, START, ttl=5 * HOUR)
    assert (written.changed, written.deleted, written.keys, written.next_expiry) == (41, 0, 41, START + HOUR)
    assert written.bytes == sum(path.stat().st_size for path in (tmp_path / "two").rglob("*.segment"))
    assert [frame.is_full for frame in written.frames] == [True] * BUCKETS
    assert files_with(tmp_path, [b"a secret"]) == []

    asked = first.where("user IN ('user 2', 'user 9') OR user IS NULL").unionAll(
        changes(session, [("nobody", day, None, None, None), ("user 9", None, None, None, None)])
    )
    wanted = {"user 2": (2, False), "user 9": (9, False), None: (7, False)}
    asked = asked.unionAll(asked)
    # Collected once: each use of a state reads it again.
    rows = state.read(asked, START).collect()
    assert len(rows) == len(wanted)
    read = {row["user"]: row for row in rows}
    assert {user: (row["n"], row["is_expired"]) for user, row in read.items()} == wanted
    row = read["user 2"]
    assert row["tags"] == [("a secret",)]
    assert row["of a.day"] == day
    assert row["expires_at"].timestamp() == (START + HOUR).timestamp()

    # A damaged replica does no harm while another one is whole.
    for path in (tmp_path / "one").rglob("*.segment"):
        path.write_bytes(b"damaged")
    later = START + HOUR
    expired = {f"user {n}": (n, True) for n in range(3)}
    assert found(state.read(asked, later)) == wanted | expired
    assert found(state.read(None, later)) == {f"user {n}": (n, False) for n in range(3, 40)} | expired | {
        None: (7, False)
    }

    second = changes(session, [("user 0", day, 100, None, None), ("user 9", day, None, None, None)])
    written = state.write(second, later, ttl=5 * HOUR)
    assert (written.changed, written.deleted) == (1, 3)
    assert written.next_expiry == START + 5 * HOUR
    now = {f"user {n}": (n, False) for n in range(3, 40) if n != 9} | {"user 0": (100, False), None: (7, False)}
    assert found(state.read(None, later)) == now

    # Buckets in which nothing happened have no frame, and a version may have none.
    third = state.write(changes(session, [("user 0", day, 101, None, None)]), later, ttl=5 * HOUR)
    assert len(third.frames) <= 2
    assert sum(not frame.is_full for frame in third.frames) == 1
    state.write(changes(session, []), later)
    assert found(state.read(None, later)) == now | {"user 0": (101, False)}
    assert all(len(frames) <= 4 for frames in by_bucket(state.chain).values())


def test_columns_are_matched_by_name_widened_and_never_narrowed(session: SparkSession) -> None:
    schema = StateSchema.parse(key="a BIGINT", value="b DOUBLE, c DECIMAL(12, 2), d ARRAY<STRUCT<e: BIGINT>>, f STRING")
    given = session.sql(
        "SELECT CAST(1 AS DECIMAL(10, 1)) AS C, NULL AS f, 1 AS b, array(named_struct('E', 1Y)) AS d, 2S AS A"
    )
    [row] = given.select(matched_columns(given, schema.columns, "the changes", exactly=True)).collect()
    assert [type(value).__name__ for value in row][:3] == ["int", "float", "Decimal"]
    assert (row[0], str(row[2]), row[3][0][0], row[4]) == (2, "1.00", 1, None)

    wrong = session.sql(
        "SELECT 1.5D AS a, 1L AS b, CAST(1 AS DECIMAL(12, 3)) AS c, array(named_struct('g', 1)) AS d, 1 AS F, 1 AS aa"
    )
    with pytest.raises(StateError) as caught:
        matched_columns(wrong, schema.columns, "the changes", exactly=True)
    said = str(caught.value).split("; ")
    assert said[0] == "the changes have a column 'aa', which the state has not: did you mean a?"
    assert [part.split(" of the changes is")[0] for part in said[1:]] == [f"column '{name}'" for name in "abcdF"]
    assert "column 'b' of the changes is BIGINT, and declared as DOUBLE" in str(caught.value)
    assert ".cast('BIGINT')" in said[1]
    with pytest.raises(StateError, match=r"the keys have no column 'a' \(BIGINT\)"):
        matched_columns(wrong.drop("a"), schema.key, "the keys", exactly=False)
    twice = session.sql("SELECT 1L AS a, 2L AS A, 3 AS z, 4 AS z")
    with pytest.raises(StateError, match=r"the keys have 2 columns 'a' \(BIGINT\)$"):
        matched_columns(twice, schema.key, "the keys", exactly=False)


def test_what_no_state_can_hold_is_refused_by_name(session: SparkSession, tmp_path: Path) -> None:
    state = Versions(session, str(tmp_path / "blocks"))
    row = ("one", START.date(), 1, None, None)
    with pytest.raises(StateError, match=r"^the changes have 2 rows of the key \(user=one, of a.day=2026-01-01\)"):
        state.write(changes(session, [row, row]), START)
    broken = changes(session, [row]).withColumn("user", F.expr("CAST(X'ff' AS STRING)"))
    with pytest.raises(StateError, match=r"column 'user' of the changes can't be stored.*UTF-8"):
        state.write(broken, START)
    state.write(changes(session, [row]), START)
    other = Versions(session, state.roots, schema=StateSchema.parse(key="user STRING, `of a.day` DATE", value="n INT"))
    other.chain = state.chain
    with pytest.raises(Exception, match="the state was written with the columns user string"):
        other.read(None, START).collect()


def test_a_task_that_runs_twice_writes_two_segments_of_which_either_may_count(tmp_path: Path) -> None:
    schema = StateSchema.parse(key="user STRING", value="n BIGINT")
    roots = f"{tmp_path / 'one'},{tmp_path / 'two'}"
    writer = _BucketWriter(StatePlace(roots, "", {}), schema, {3: ()}, START, 1, START, None, "state/1/totals/1-1", 1)
    rows = pa.RecordBatch.from_pylist(
        [{"bucket": 3, "hash": 1, "c0": "one", "c1": 1}, {"bucket": 4, "hash": 2, "c0": "two", "c1": 1}],
        schema=pa.schema([("bucket", pa.int32()), ("hash", pa.int64()), ("c0", pa.string()), ("c1", pa.int64())]),
    )
    runs = [pa.Table.from_batches(writer.task()([rows])).to_pylist() for _ in range(2)]
    assert [[answer["bucket"] for answer in answers] for answers in runs] == [[3, 4], [3, 4]]
    assert len({answer["path"] for answers in runs for answer in answers}) == 2
    store = open_block_store(roots)
    for answer in [*runs[0], *runs[1]]:
        [batch] = store.read_batches(answer["path"], answer["place"], answer["length"], answer["crc32c"])
        assert batch.num_rows == 1

    assert {answer["path"] for answers in runs for answer in answers} == set(store.segment_paths())
    store.create_segment("state/1/totals/1-12/a.segment").close()
    for _ in range(2):
        delete_folder(store, "state/1/totals/1-1")
        assert [path.name for path in tmp_path.glob("*/state/1/totals/*")] == ["1-12"] * 2


def test_a_key_of_a_narrower_type_meets_its_state(session: SparkSession) -> None:
    """Check with as many tasks as Spark shuffles into: small data it would put into one."""
    function = update_state_by_key(lambda rows, value: {"n": len(rows) + (0 if value is None else value["n"])})
    function.bind(State("user BIGINT", "n BIGINT"))
    records = session.createDataFrame([(number,) for number in range(20)], "User INT")
    state = session.createDataFrame(
        [(number, 10, False) for number in range(20)], "user BIGINT, n BIGINT, is_expired BOOLEAN"
    )
    setting = "spark.sql.adaptive.coalescePartitions.enabled"
    session.conf.set(setting, "false")
    try:
        result, changes = function(records, state)
        expected = [(number, 11) for number in range(20)]
        assert sorted(map(tuple, result.collect())) == sorted(map(tuple, changes.collect())) == expected
    finally:
        session.conf.unset(setting)
        function.release()


def test_a_key_that_expires_as_a_whole_state_is_taken_over_is_given_once(session: SparkSession) -> None:
    schema = StateSchema.parse(key="user STRING", value="n BIGINT, expires_at TIMESTAMP")
    columns = "user STRING, n BIGINT, expires_at TIMESTAMP"
    whole = session.createDataFrame([("a", 1, START), ("b", 2, START), ("c", 3, START + HOUR), ("d", 4, None)], columns)
    changes = session.createDataFrame([("b", 5, None)], columns)
    given = whole_state.of_keys(whole, schema, changes, START).collect()
    assert sorted((row["user"], row["is_expired"]) for row in given) == [("a", True), ("b", True)]
    left = whole_state.changed(whole, changes, schema, START).collect()
    assert sorted((row["user"], row["n"]) for row in left) == [("b", 5), ("c", 3), ("d", 4)]

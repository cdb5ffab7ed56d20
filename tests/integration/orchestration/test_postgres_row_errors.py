"""Check that what a table demands of its rows refuses those rows alone: each is in the table or put aside, once."""

from __future__ import annotations

import contextlib
import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, cast

import psycopg2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import types
from pyspark.sql.types import StructField, StructType

from forebay import EnvVar, PostgresSink
from orchestration.declarations.sink import SinkError
from orchestration.sinks.postgres.postgres_insertion import Insertion
from orchestration.sinks.refused_rows import MOST_NAMED, RefusedRowsError, readable_row, row_as_json
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark, words
from tests.integration.orchestration.target_database import TIME, Target, attempt
from tests.support.searches import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from orchestration.sinks.table_columns import Mode

_TABLE = "CREATE TABLE counts (word text, n bigint, _batch_time timestamptz)"
# Text that no compression makes short enough for an index.
_LONG = (
    "CREATE FUNCTION long() RETURNS text IMMUTABLE LANGUAGE sql AS "
    "$$SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1000) i$$"
)
_ROWS = (("a", 1), ("b", 2), ("c", 3), ("c", 4), ("A", 5), ("d", 6))
_KNOWN = "CREATE TABLE known (n bigint PRIMARY KEY); INSERT INTO known SELECT generate_series(1, 5)"
_PARENT = "ADD UNIQUE (n), ADD parent bigint GENERATED ALWAYS AS (CASE n WHEN 1 THEN 3 WHEN 2 THEN 9 END) STORED"


def _trigger(does: str, fires: str, kind: str = "") -> str:
    return (
        f"CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {does}; RETURN new; END$$;"
        f"CREATE {kind} TRIGGER no {fires} EXECUTE FUNCTION no()"
    )


# What a table's owner has made; the numbers of the rows that are refused; what is said of the first.
CASES = {
    "left out": (f"{_TABLE}; ALTER TABLE counts ADD m int DEFAULT 3 CHECK (m <> n)", [3], "column n is 3: .*check"),
    "generated": (
        f"{_TABLE}; ALTER TABLE counts ADD part bigint GENERATED ALWAYS AS (10 / (n - 2)) STORED",
        [2],
        r"the row is \{'word': 'b', 'n': 2\}: division by zero",
    ),
    "no partition": (
        f"{_TABLE} PARTITION BY LIST (n); CREATE TABLE p PARTITION OF counts FOR VALUES IN (1, 2, 3, 5, 6)",
        [4],
        r"the row is .*: no partition of .* \(Partition key of the failing row contains \(n\) = \(4\)",
    ),
    "a partition's": (
        f"{_TABLE} PARTITION BY LIST (n); CREATE TABLE p PARTITION OF counts (CHECK (n < 6)) DEFAULT",
        [6],
        "column n is 6: .*check",
    ),
    "foreign": (
        f"{_TABLE}; {_KNOWN}; ALTER TABLE counts ADD FOREIGN KEY (n) REFERENCES known",
        [6],
        "n is 6: .*foreign",
    ),
    "foreign, deferred": (
        f"{_TABLE}; {_KNOWN}; ALTER TABLE counts ADD FOREIGN KEY (n) REFERENCES known INITIALLY DEFERRED",
        [6],
        r"column n is 6: .*is not present in table",
    ),
    "its own": (
        f"{_TABLE}; ALTER TABLE counts {_PARENT}, ADD FOREIGN KEY (parent) REFERENCES counts (n)",
        [2],
        "foreign",
    ),
    "its own, deferred": (
        f"{_TABLE}; ALTER TABLE counts {_PARENT}, ADD FOREIGN KEY (parent) REFERENCES counts (n) INITIALLY DEFERRED",
        [2],
        r"the row is .*'n': 2.*\(parent\)=\(9\) is not present",
    ),
    "unique": (f"{_TABLE}; CREATE UNIQUE INDEX ON counts (word)", [4], "column word is 'c': duplicate key"),
    "unique, deferred": (f"{_TABLE}; ALTER TABLE counts ADD UNIQUE (word) INITIALLY DEFERRED", [4], "word is 'c': dup"),
    "unique, by an expression": (
        f"{_TABLE}; CREATE UNIQUE INDEX ON counts (lower(word))",
        [4, 5],
        r"the row is .*\(lower\(word\)\)=\(c\) already exists",
    ),
    "exclusion": (
        f"{_TABLE}; ALTER TABLE counts ADD EXCLUDE USING hash (word WITH =)",
        [4],
        "column word is 'c': confl",
    ),
    "long": (
        f"{_TABLE}; {_LONG}; CREATE INDEX ON counts ((CASE n WHEN 3 THEN long() END))",
        [3],
        "the row is .*index row",
    ),
    "long in GIN": (
        f"{_TABLE}; {_LONG}; CREATE INDEX ON counts USING gin ((CASE n WHEN 3 THEN ARRAY[long()] END))",
        [3],
        "the row is .*index row",
    ),
    "a trigger": (
        f"{_TABLE};" + _trigger("IF new.n = 3 THEN RAISE 'no three'; END IF", "AFTER INSERT ON counts FOR EACH ROW"),
        [3],
        "the row is .*: no three",
    ),
    "a trigger's case": (
        f"{_TABLE};" + _trigger("CASE WHEN new.n <> 3 THEN NULL; END CASE", "BEFORE INSERT ON counts FOR EACH ROW"),
        [3],
        "the row is .*: case not found",
    ),
    "a trigger's assertion": (
        f"{_TABLE};" + _trigger("ASSERT new.n <> 3, 'no three'", "BEFORE INSERT ON counts FOR EACH ROW"),
        [3],
        "the row is .*: no three",
    ),
    "a trigger's own code": (
        f"{_TABLE};"
        + _trigger(
            "IF new.n < 3 THEN RAISE 'few' USING ERRCODE = CASE new.n WHEN 1 THEN 'MY001' ELSE '21000' END; END IF",
            "BEFORE INSERT ON counts FOR EACH ROW",
        ),
        [1, 2],
        "the row is .*: few",
    ),
    "a trigger's rights and faults": (
        f"{_TABLE};"
        + _trigger(
            "IF new.n < 3 THEN RAISE 'few' USING ERRCODE = CASE new.n WHEN 1 THEN '42501' ELSE 'XX000' END; END IF",
            "BEFORE INSERT ON counts FOR EACH ROW",
        ),
        [1, 2],
        "the row is .*: few",
    ),
}


def _refused(target: Target) -> list[int]:
    return [json.loads(row)["n"] for (row,) in target.rows("SELECT refused_row FROM forebay_refused_rows ORDER BY id")]


@pytest.mark.parametrize("case", CASES)
def test_what_a_table_demands_refuses_those_rows_alone_whatever_it_is(target: Target, case: str) -> None:
    statements, numbers, said = CASES[case]
    target.rows(statements)
    with pytest.raises(RefusedRowsError, match=rf"(?s)output 'counts' .*: {len(numbers)} row\(s\) can't be.*{said}"):
        PostgresSink(EnvVar("TARGET_URL"), "counts").write(words(*_ROWS, parts=1), attempt())
    assert (target.commits(), target.counts()) == ([], [])
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", on_bad_rows="dead_letter")
    for number in (2, 3):
        written = sink.write(words(*_ROWS, parts=1), attempt(number))
        assert (written.rows, written.refused) == (len(_ROWS) - len(numbers), len(numbers))
        assert _refused(target) == numbers
        assert target.counts() == sorted(row for row in _ROWS if row[1] not in numbers)
        assert target.commits() == [(TIME, number, written.rows)]
        found = sink.committed(attempt(number + 1))
        assert found is not None
        assert found.written == written
    assert target.staging() == []


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (_trigger("RAISE 'closed'", "BEFORE INSERT ON counts"), "closed"),
        (
            _trigger("RAISE 'unbalanced'", "AFTER INSERT ON counts INITIALLY DEFERRED FOR EACH ROW", "CONSTRAINT"),
            "unbalanced",
        ),
        ("ALTER TABLE counts ADD id smallint GENERATED BY DEFAULT AS IDENTITY (START 32767)", "reached maximum value"),
        (_trigger("RAISE 'broken' USING ERRCODE = '42883'", "BEFORE INSERT ON counts FOR EACH ROW"), "broken"),
    ],
    ids=["any statement", "the whole transaction", "a sequence at its end", "each row, for what may be no row's fault"],
)
def test_what_no_row_is_to_blame_for_fails_the_batch_and_says_why(target: Target, statements: str, said: str) -> None:
    target.rows(f"{_TABLE}; {statements}")
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", on_bad_rows="dead_letter")
    with pytest.raises(SinkError, match=f"output 'counts' .*{said}"):
        sink.write(words(*_ROWS, parts=1), attempt())
    assert (target.commits(), target.counts(), target.staging()) == ([], [], [])


def test_a_lock_that_is_not_given_is_waited_for_once_though_a_row_was_refused_before(target: Target) -> None:
    locked = "PERFORM nextval('waited'); RAISE 'locked' USING ERRCODE = '55P03'"
    trigger = _trigger(f"IF new.n > 1 THEN {locked}; END IF", "BEFORE INSERT ON counts FOR EACH ROW")
    target.rows(f"{_TABLE}; CREATE SEQUENCE waited; ALTER TABLE counts ADD CHECK (n > 1); {trigger}")
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", on_bad_rows="dead_letter")
    with pytest.raises(SinkError, match=r"output 'counts' .*locked"):
        sink.write(words(*_ROWS, parts=1), attempt())
    assert target.rows("SELECT last_value FROM waited") == [(1,)]


def test_a_refused_row_does_not_keep_what_an_earlier_attempt_merged(target: Target) -> None:
    target.rows(f"{_TABLE}; ALTER TABLE counts ADD UNIQUE (word), ADD m bigint DEFAULT 5 CHECK (n < m)")
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", mode="merge", key="word", on_bad_rows="dead_letter")
    sink.write(words(("a", 1), ("b", 1)), attempt(time=TIME - timedelta(days=1)))
    sink.write(words(("b", 2), ("c", 2), ("d", 2)), attempt())
    assert sink.write(words(("a", 7), ("c", 7), ("d", 3)), attempt(2)).refused == 2
    assert target.counts() == [("a", 1), ("d", 3)]


def test_several_rows_of_a_key_are_put_aside_and_leave_what_an_earlier_batch_merged(target: Target) -> None:
    target.rows(f"{_TABLE}; ALTER TABLE counts ADD UNIQUE (word), ADD CHECK (n > 1)")
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", mode="merge", key="word", on_bad_rows="dead_letter")
    sink.write(words(("a", 2), ("d", 2)), attempt(time=TIME - timedelta(days=1)))
    sink.write(words(("b", 3), ("c", 3)), attempt())
    for number, parts in ((2, 1), (3, 2)):
        again = words(("a", 4), ("a", 5), ("b", 4), ("c", 6), ("b", 5), ("d", 1), parts=parts)
        assert sink.write(again, attempt(number)).refused == 5
        assert target.counts() == [("a", 2), ("c", 6), ("d", 2)]
        assert sorted(_refused(target)) == [1, 4, 4, 5, 5]
    fails = PostgresSink(EnvVar("TARGET_URL"), "counts", mode="merge", key="word")
    with pytest.raises(RefusedRowsError, match=r": 2 row\(s\) .*column word is 'x': several rows .* have this key"):
        fails.write(words(("x", 4), ("y", 4), ("x", 5)), attempt(4))


def test_rows_that_refer_to_each_other_are_stored_beside_one_that_is_refused_and_replayed(target: Target) -> None:
    parent = "CASE WHEN n < 10 THEN n + 10 WHEN n < 20 THEN n - 10 END"
    target.rows(f"{_TABLE}; ALTER TABLE counts ADD UNIQUE (n), ADD p bigint GENERATED ALWAYS AS ({parent}) STORED")
    target.rows("ALTER TABLE counts ADD FOREIGN KEY (p) REFERENCES counts (n) INITIALLY DEFERRED, ADD CHECK (n <> 50)")
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", on_bad_rows="dead_letter")
    rows = [*(("child", n) for n in range(1, 5)), ("bad", 50), *(("parent", n) for n in range(11, 15))]
    for number in (1, 2):
        assert sink.write(words(*rows, parts=3), attempt(number)).refused == 1
        assert _refused(target) == [50]
        assert len(target.counts()) == len(rows) - 1


def test_rows_that_refer_to_each_other_show_that_one_in_doubt_is_to_blame(target: Target) -> None:
    target.rows(f"{_TABLE}; ALTER TABLE counts ADD UNIQUE (n), ADD p bigint GENERATED ALWAYS AS (3 - n) STORED")
    trigger = "IF new.n = 3 THEN RAISE 'no three' USING ERRCODE = '42501'; END IF"
    target.rows(_trigger(trigger, "BEFORE INSERT ON counts FOR EACH ROW"))
    target.rows("ALTER TABLE counts ADD FOREIGN KEY (p) REFERENCES counts (n)")
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", on_bad_rows="dead_letter")
    assert sink.write(words(("a", 1), ("b", 2), ("c", 3), parts=1), attempt()).refused == 1
    assert (_refused(target), target.counts()) == ([3], [("a", 1), ("b", 2)])


def test_a_row_that_refers_to_one_behind_it_is_stored_beside_others_that_refer_to_none(target: Target) -> None:
    parent = "CASE WHEN n < 6 THEN 7 - n END"
    target.rows(f"{_TABLE}; ALTER TABLE counts ADD UNIQUE (n), ADD p bigint GENERATED ALWAYS AS ({parent}) STORED")
    target.rows("ALTER TABLE counts ADD FOREIGN KEY (p) REFERENCES counts (n)")
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", on_bad_rows="dead_letter")
    assert sink.write(words(("a", 0), ("a", 6), ("a", 1), ("a", 2), parts=2), attempt()).refused == 2
    assert target.counts() == [("a", 1), ("a", 6)]


def test_a_merged_row_that_another_one_makes_room_for_is_stored_whatever_their_order(target: Target) -> None:
    target.rows(f"{_TABLE}; ALTER TABLE counts ADD UNIQUE (n), ADD UNIQUE (word)")
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", mode="merge", key="n", on_bad_rows="dead_letter")
    sink.write(words(("a", 1), ("b", 3)), attempt(time=TIME - timedelta(days=1)))
    assert sink.write(words(("a", 2), ("c", 1), ("b", 4), ("c", 5), parts=1), attempt()).refused == 2
    assert target.counts() == [("a", 2), ("b", 3), ("c", 1)]


def test_a_row_is_put_aside_as_the_tasks_put_aside_theirs(target: Target) -> None:
    """Compare what Postgres gives of a row with what Arrow gives."""
    when = datetime(2026, 1, 2, 3, 4, 5, 60, UTC)
    values: dict[str, tuple[Any, Any]] = {
        "text": (types.StringType(), "ü\\ \x01"),
        "bytes": (types.BinaryType(), b"\0\xff"),
        "decimal": (types.DecimalType(38, 10), Decimal("1.5000000000")),
        "long": (types.LongType(), 2**63 - 1),
        "double": (types.DoubleType(), 1e300),
        "nan": (types.DoubleType(), math.nan),
        "infinite": (types.FloatType(), -math.inf),
        "true": (types.BooleanType(), True),
        "day": (types.DateType(), date(1, 1, 1)),
        "time": (types.TimestampType(), when),
        "first": (types.TimestampType(), datetime(1, 1, 1, tzinfo=UTC)),
        "clock": (types.TimestampNTZType(), when.replace(tzinfo=None)),
        "list": (types.ArrayType(types.LongType()), [1, None]),
        "struct": (StructType([StructField("a", types.DoubleType())]), {"a": 0.5}),
        "null": (types.DateType(), None),
        "json": (types.StringType(), '{"a": 1.10, "b": 1e400, "a": 2}'),
    }
    frame = FrameWithoutSpark(
        [tuple(value for _, value in values.values())],
        schema=StructType([StructField(name, kind) for name, (kind, _) in values.items()]),
    )
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", on_bad_rows="dead_letter")
    sink.write(cast("DataFrame", FrameWithoutSpark([], schema=frame.schema)), attempt())
    target.rows("ALTER TABLE counts ALTER json TYPE json USING json::json, ADD CONSTRAINT never CHECK (false)")
    assert sink.write(cast("DataFrame", frame), attempt(2)).refused == 1
    [(row,)] = target.rows("SELECT refused_row FROM forebay_refused_rows")
    assert json.loads(row) == json.loads(row_as_json(readable_row(frame.batch(frame._partitions[0]))))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the pieces of each statement that inserts some."""
    calls: list[int] = []
    insert = Insertion._insert_pieces

    def counted(self: Insertion, some: Sequence[Any]) -> object:
        calls.append(len(some))
        return insert(self, some)

    monkeypatch.setattr(Insertion, "_insert_pieces", counted)
    return calls


def test_a_column_may_have_a_name_that_the_search_for_refused_rows_has(target: Target, calls: list[int]) -> None:
    names = ["place", "stored", "refused", "found", "forebay", "staged", "t", "s"]
    target.rows(f"CREATE TABLE counts ({', '.join(f'{name} bigint' for name in names)}, _batch_time timestamptz)")
    target.rows("ALTER TABLE counts ADD UNIQUE (place, found), ADD CHECK (place <> 3)")
    schema = StructType([StructField(name, types.LongType()) for name in names])
    frame = cast(
        "DataFrame", FrameWithoutSpark([(number,) * len(names) for number in (*range(1, 10), 5)], schema=schema)
    )
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", mode="merge", key=["place", "found"], on_bad_rows="dead_letter")
    assert sink.write(frame, attempt()).refused == 3
    assert [row for (row,) in target.rows("SELECT place FROM counts ORDER BY 1")] == [1, 2, 4, 6, 7, 8, 9]
    # Not row by row from here.
    assert len(calls) < 6


def test_refused_rows_are_found_by_few_statements_and_not_beyond_a_bound(
    target: Target, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    target.rows(f"{_TABLE}; ALTER TABLE counts ADD m bigint DEFAULT 0 CHECK (n % 10000 <> m)")
    rows = [("x" * 100, number) for number in range(1, 40_001)]
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", on_bad_rows="dead_letter")
    assert sink.write(words(*rows, parts=3), attempt()).refused == 4
    assert len(calls) < 4 * 2 * (math.log2(len(rows)) + 2)
    calls.clear()
    many = words(*[("x", 10_000)] * 3_000, parts=1)
    with pytest.raises(RefusedRowsError, match=f"{MOST_NAMED} rows, or more, can't be stored"):
        PostgresSink(EnvVar("TARGET_URL"), "counts").write(many, attempt(2))
    assert len(calls) < 2 * (math.log2(3_000) + 2) + MOST_NAMED * 2
    # Rows that refer to rows of the table are tried again, but no more of them.
    calls.clear()
    monkeypatch.setattr("orchestration.sinks.postgres.postgres_insertion.MOST_REFUSED", 10)
    target.rows("ALTER TABLE counts DROP m, ADD UNIQUE (n), ADD p bigint REFERENCES counts (n)")
    target.rows("ALTER TABLE counts ALTER p SET DEFAULT -1")
    later = words(*((word, 100_000 + number) for word, number in rows[:3_000]), parts=1)
    with pytest.raises(RefusedRowsError, match=f"{MOST_NAMED} rows, or more, can't be stored.*foreign key"):
        PostgresSink(EnvVar("TARGET_URL"), "counts").write(later, attempt(time=TIME + timedelta(days=1)))
    assert len(calls) < 4 * (math.log2(3_000) + 2) + 4 * 10


@pytest.mark.parametrize("procedures", ["", "; DROP EXTENSION plpgsql"], ids=["by a block", "row by row"])
def test_refused_rows_are_found_without_procedures_too_and_no_savepoint_is_left(
    target: Target, procedures: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Insertion.run

    def observed(self: Insertion, pieces: Sequence[Any]) -> int:
        stored = run(self, pieces)
        for savepoint in ("page", "piece"):
            self._cursor.execute("SAVEPOINT before")
            with pytest.raises(psycopg2.errors.InvalidSavepointSpecification):
                self._cursor.execute(f"RELEASE SAVEPOINT {savepoint}")
            self._cursor.execute("ROLLBACK TO SAVEPOINT before")
        return stored

    monkeypatch.setattr(Insertion, "run", observed)
    target.rows(f"{_TABLE}; ALTER TABLE counts ADD CHECK (n % 3 <> 0){procedures}")
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", on_bad_rows="dead_letter")
    assert sink.write(words(*_ROWS, parts=1), attempt()).refused == 2
    assert _refused(target) == [3, 6]


def test_one_bad_row_before_rows_that_others_refer_to_costs_few_statements_and_is_named_alone(
    target: Target, calls: list[int]
) -> None:
    parent = "CASE WHEN n < 1000 THEN n + CASE n WHEN 77 THEN 5000 ELSE 1000 END END"
    target.rows(f"{_TABLE}; ALTER TABLE counts ADD UNIQUE (n), ADD p bigint GENERATED ALWAYS AS ({parent}) STORED")
    target.rows("ALTER TABLE counts ADD FOREIGN KEY (p) REFERENCES counts (n)")
    children = [("child", number) for number in range(1, 400)]
    rows = [*children, *(("parent", number + 1000) for _, number in children)]
    with pytest.raises(
        RefusedRowsError, match=r": 1 row\(s\) can't be stored: the row is \{'word': 'child', 'n': 77\}"
    ):
        PostgresSink(EnvVar("TARGET_URL"), "counts").write(words(*rows, parts=2), attempt())
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", on_bad_rows="dead_letter")
    calls.clear()
    assert sink.write(words(*rows, parts=2), attempt()).refused == 1
    assert _refused(target) == [77]
    assert len(target.counts()) == len(rows) - 1
    assert len(calls) < 6 * (math.log2(len(rows)) + 2)


_DEMANDS = {
    "check": "ALTER TABLE counts ADD m bigint DEFAULT 1 CHECK (n % 3 <> m)",
    "unique": "CREATE UNIQUE INDEX ON counts (word)",
    "unique, by an expression": "CREATE UNIQUE INDEX ON counts (lower(word)) WHERE n < 9",
    "unique, deferred": "ALTER TABLE counts ADD UNIQUE (word) INITIALLY DEFERRED",
    "exclusion": "ALTER TABLE counts ADD EXCLUDE USING hash (lower(word) WITH =)",
    "foreign": "ALTER TABLE counts ADD FOREIGN KEY (word) REFERENCES known INITIALLY DEFERRED",
    "its own": "ALTER TABLE counts ADD parent bigint GENERATED ALWAYS AS (CASE WHEN n < 6 THEN 7 - n END) STORED "
    "REFERENCES counts (n)",
    "its own, deferred": "ALTER TABLE counts ADD other bigint GENERATED ALWAYS AS (CASE WHEN n < 6 THEN 9 - n END) "
    "STORED REFERENCES counts (n) INITIALLY DEFERRED",
    "trigger": _trigger("IF new.word = 'b' THEN RAISE 'no b'; END IF", "AFTER INSERT OR UPDATE ON counts FOR EACH ROW"),
}


@pytest.mark.search
@pytest.mark.parametrize("mode", ["append", "overwrite", "merge"])
def test_each_row_is_in_the_table_or_put_aside_once_whatever_the_table_demands(target: Target, mode: Mode) -> None:
    numbers = st.lists(st.integers(0, 12), unique=True, max_size=10)
    rows = numbers.flatmap(lambda found: st.tuples(*(st.tuples(st.sampled_from("aAbcC"), st.just(n)) for n in found)))

    @settings(max_examples=examples(24), deadline=None, suppress_health_check=list(HealthCheck))
    @given(demands=st.sets(st.sampled_from(sorted(_DEMANDS))), batches=st.lists(rows, min_size=1, max_size=3))
    def check(demands: set[str], batches: Sequence[Sequence[tuple[str, int]]]) -> None:
        target.rows(
            "DROP TABLE IF EXISTS counts, known, forebay_commits, forebay_refused_rows; DROP FUNCTION IF EXISTS no;"
            "CREATE TABLE known (word text PRIMARY KEY); INSERT INTO known VALUES ('a'), ('A'), ('b'), ('C');"
            f"{_TABLE}; ALTER TABLE counts ADD UNIQUE (n); {';'.join(_DEMANDS[one] for one in sorted(demands))}"
        )
        sink = PostgresSink(
            EnvVar("TARGET_URL"), "counts", mode=mode, key="n" if mode == "merge" else None, on_bad_rows="dead_letter"
        )
        for number, batch in enumerate([*batches, batches[-1]]):
            # The last one again, as a replay.
            is_replay = number == len(batches)
            time = TIME + timedelta(days=number - is_replay)
            written = sink.write(words(*batch), attempt(1 + is_replay, time=time))
            stored = target.rows("SELECT word, n FROM counts WHERE _batch_time = %s", time)
            aside = (
                target.rows(
                    "SELECT refused_row::json ->> 'word', (refused_row::json ->> 'n')::bigint FROM "
                    "forebay_refused_rows WHERE batch_time = %s",
                    time,
                )
                if target.rows("SELECT to_regclass('forebay_refused_rows')::text") != [(None,)]
                else []
            )
            assert sorted([*stored, *aside]) == sorted(batch)
            assert (written.rows, written.refused) == (len(stored), len(aside))
            with contextlib.closing(psycopg2.connect(target.url)) as connection, connection.cursor() as cursor:
                for row in aside:
                    cursor.execute("SAVEPOINT one")
                    conflict = "ON CONFLICT (n) DO UPDATE SET word = excluded.word" if mode == "merge" else ""
                    with pytest.raises((psycopg2.IntegrityError, psycopg2.errors.RaiseException)):
                        cursor.execute(
                            f"INSERT INTO counts (word, n) VALUES (%s, %s) {conflict}; SET CONSTRAINTS ALL IMMEDIATE",
                            row,
                        )
                    cursor.execute("ROLLBACK TO SAVEPOINT one")
                connection.rollback()

    check()

"""Check that a table with what a sink would not write rightly is refused by name, and that the rest is honoured."""

from __future__ import annotations

import contextlib
import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast

import psycopg2
import pytest
from pyspark.sql.types import DoubleType, LongType, StructField, StructType

from forebay import EnvVar, ParquetSink, PostgresSink
from orchestration.declarations.sink import SinkError, TargetMissingError, TargetUnavailableError
from orchestration.sinks.postgres.postgres_access import Access, access, unsupported
from orchestration.sinks.refused_rows import RefusedRowsError
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark, words
from tests.integration.orchestration.target_database import TIME, Target, attempt
from tests.support.machine.held_ports import held_port

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from orchestration.sinks.refused_rows import OnBadRows
    from orchestration.sinks.table_columns import Mode

TABLE = "CREATE TABLE counts (word text, n bigint, _batch_time timestamptz)"
_NOTHING = "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"


def _altering(fires: str, does: str) -> str:
    function = _NOTHING.replace("RETURN NULL", f"{does}; RETURN new")
    return f"{function}; CREATE TRIGGER odd {fires} INSERT ON counts FOR EACH ROW EXECUTE FUNCTION nothing()"


@pytest.mark.parametrize(
    ("statements", "named"),
    [
        ("ALTER TABLE counts RENAME TO kept; CREATE VIEW counts AS SELECT * FROM kept", "it is a view"),
        ("CREATE RULE away AS ON DELETE TO counts DO INSTEAD NOTHING", "the rule away"),
        (
            f"{_NOTHING}; CREATE TRIGGER kept BEFORE DELETE ON counts FOR EACH ROW EXECUTE FUNCTION nothing()",
            "trigger kept",
        ),
        (
            f"{_NOTHING}; CREATE TRIGGER out BEFORE INSERT ON counts FOR EACH ROW EXECUTE FUNCTION nothing()",
            "0 of 1 rows",
        ),
        *(
            (_altering(fires, does), "0 of 1 rows, .*, or changes their _batch_time")
            for fires, does in (("BEFORE", "new._batch_time := now()"), ("AFTER", "DELETE FROM counts"))
        ),
        ("CREATE TABLE child () INHERITS (counts)", "tables that inherit from it"),
        (
            "ALTER TABLE counts ADD UNIQUE (n); CREATE TABLE child (w bigint REFERENCES counts (n) ON DELETE CASCADE)",
            "the foreign key child_w_fkey of child, by which a replay would delete or change rows there",
        ),
        (
            "ALTER TABLE counts ADD UNIQUE (n), ADD of_n bigint DEFAULT 1 REFERENCES counts (n) ON DELETE SET NULL",
            "the foreign key counts_of_n_fkey of counts",
        ),
        ("ALTER TABLE counts SET UNLOGGED", r"no log \(UNLOGGED\), so that a crash of its server empties it"),
        (
            f"DROP TABLE counts; {TABLE} PARTITION BY LIST (word); CREATE UNLOGGED TABLE l PARTITION OF counts DEFAULT",
            r"no log \(UNLOGGED\)",
        ),
        (
            "ALTER TABLE counts DROP n; ALTER TABLE counts ADD n bigint GENERATED ALWAYS AS (1) STORED",
            "generates its column n",
        ),
        ("ALTER TABLE counts ALTER n SET NOT NULL, ALTER n ADD GENERATED ALWAYS AS IDENTITY", "generates its column n"),
        (
            "DROP TABLE counts; CREATE FOREIGN DATA WRAPPER w; CREATE SERVER s FOREIGN DATA WRAPPER w;"
            + TABLE.replace("TABLE", "FOREIGN TABLE")
            + " SERVER s",
            "it is a foreign table",
        ),
    ],
)
def test_what_the_sink_would_not_write_rightly_is_refused_by_name(target: Target, statements: str, named: str) -> None:
    target.rows(TABLE)
    target.rows(statements)
    with pytest.raises(SinkError, match=named):
        PostgresSink(EnvVar("TARGET_URL"), "counts").write(words(("a", 1)), attempt())
    assert target.staging() == target.commits() == []


@pytest.mark.parametrize(
    ("statements", "named"),
    [
        ("ALTER TABLE counts ALTER word TYPE json USING NULL", "column word of public.counts is json, of which"),
        ("CREATE UNIQUE INDEX ON counts (word) WHERE n > 0", r"no unique constraint on its key \(word\)"),
        (
            "ALTER TABLE counts ADD UNIQUE (word) DEFERRABLE",
            r"no unique constraint on its key .*ADD UNIQUE \(word\)",
        ),
        ("CREATE UNIQUE INDEX ON counts (word) INCLUDE (n)", None),
    ],
)
def test_merge_names_what_its_key_lacks_before_a_row(target: Target, statements: str, named: str | None) -> None:
    target.rows(f"{TABLE}; {statements}")
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", mode="merge", key="word")
    found = access(sink.declaration()).misfits
    if named is None:
        assert found == []
        for number in (1, 2):
            sink.write(words(("a", 1)), attempt(number))
        return
    [misfit] = found
    with pytest.raises(SinkError, match=named) as raised:
        sink.write(words(("a", 1)), attempt())
    assert misfit in str(raised.value)


def test_merge_refuses_a_trigger_before_rows(target: Target) -> None:
    target.rows(TABLE + ";ALTER TABLE counts ADD PRIMARY KEY (word);" + _NOTHING)
    target.rows("CREATE TRIGGER out BEFORE UPDATE ON counts FOR EACH ROW EXECUTE FUNCTION nothing()")
    with pytest.raises(SinkError, match="the trigger out, which may keep rows from being merged"):
        PostgresSink(EnvVar("TARGET_URL"), "counts", mode="merge", key="word").write(words(("a", 1)), attempt())


@pytest.mark.parametrize("nulls", ["", "NULLS NOT DISTINCT"])
def test_merge_refuses_a_row_without_a_key_however_the_table_counts_nulls(target: Target, nulls: str) -> None:
    """A null is no key: where nulls are distinct, each attempt would insert such a row again."""
    target.rows(f"{TABLE}; CREATE UNIQUE INDEX theirs ON counts (word) {nulls}")
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", mode="merge", key="word")
    with pytest.raises(RefusedRowsError, match=r"column word is None: null value in column"):
        sink.write(words((None, 1)), attempt())
    keeping = PostgresSink(EnvVar("TARGET_URL"), "counts", mode="merge", key="word", on_bad_rows="dead_letter")
    for number in (1, 2):
        assert keeping.write(words((None, 1), ("a", 2)), attempt(number)).refused == 1
        assert target.counts() == [("a", 2)]


def test_merge_replaces_a_key_by_what_the_newest_batch_has(target: Target) -> None:
    """Equal keys may differ, as 0.0 and -0.0."""
    schema = StructType([StructField("k", DoubleType()), StructField("n", LongType())])
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", mode="merge", key="k")
    for number, (key, time) in enumerate([(0.0, TIME), (-0.0, TIME + timedelta(days=1))]):
        sink.write(cast("DataFrame", FrameWithoutSpark([(key, number)], schema=schema)), attempt(time=time))
    assert target.rows("SELECT k::text, n FROM counts") == [("-0", 1)]


def test_partitions_and_triggers_after_a_row_work_as_for_any_login(target: Target) -> None:
    target.rows(TABLE + " PARTITION BY LIST (word); CREATE TABLE counts_a PARTITION OF counts FOR VALUES IN ('a')")
    target.rows("CREATE TABLE seen (word text)")
    target.rows(
        "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO seen VALUES (new.word); "
        "IF new.n > 0 THEN INSERT INTO counts VALUES (new.word, -new.n, new._batch_time); END IF; RETURN NULL; END'; "
        "CREATE TRIGGER see AFTER INSERT ON counts FOR EACH ROW EXECUTE FUNCTION see()"
    )
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts")
    sink.write(words(("a", 1)), attempt())
    sink.write(words(("a", 2)), attempt(2))
    assert target.counts() == [("a", -2), ("a", 2)]
    assert target.rows("SELECT word FROM seen") == [("a",)] * 4
    # As many as were written, but not the ones that were.
    target.rows(
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF new.n = 3 THEN RETURN NULL; END IF; "
        "RETURN new; END'; CREATE TRIGGER skip BEFORE INSERT ON counts FOR EACH ROW EXECUTE FUNCTION skip()"
    )
    with pytest.raises(SinkError, match="took 2 of 3 rows, so nothing was committed"):
        sink.write(words(("a", 3), ("a", 4), ("a", 5)), attempt(3))


def test_row_security_that_hides_rows_from_the_login_is_seen(target: Target) -> None:
    with contextlib.closing(psycopg2.connect(target.url)) as connection, connection.cursor() as cursor:
        cursor.execute(TABLE + "; ALTER TABLE counts ENABLE ROW LEVEL SECURITY; CREATE ROLE forebay_hidden")
        assert unsupported(cursor, "public", "counts", merges=False) == []
        cursor.execute("GRANT ALL ON counts TO forebay_hidden; SET LOCAL ROLE forebay_hidden")
        assert unsupported(cursor, "public", "counts", merges=False) == [
            "row security for this login, which hides rows from it"
        ]
        connection.rollback()


def test_the_check_before_a_batch_names_each_right_that_is_missing_and_what_the_table_has(target: Target) -> None:
    role = f"{target.rows('SELECT current_database()')[0][0]}_role"
    target.rows(f"{TABLE}; CREATE ROLE {role}; GRANT SELECT, INSERT ON counts TO {role}")
    target.rows("CREATE RULE away AS ON DELETE TO counts DO INSTEAD NOTHING")
    try:
        url = f"{target.url}{'&' if '?' in target.url else '?'}options=-c%20role%3D{role}"
        sink = {**PostgresSink(EnvVar("TARGET_URL"), "counts").declaration(), "url": url}
        rule = "the table public.counts has the rule away, which PostgresSink does not write"
        may_not = f"{role} may not create tables in the schema public, which every attempt does"
        assert access(sink) == Access([may_not, f"{role} lacks DELETE on public.counts"], [rule], [])
        merges = access({**sink, "mode": "merge", "key": ["word"]})
        assert merges.missing_rights[1] == f"{role} lacks DELETE and UPDATE on public.counts"
        assert "no unique constraint on its key (word)" in merges.misfits[1]
    finally:
        target.rows(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_the_check_refuses_append_on_a_table_that_merge_made_and_warns_of_constraints_of_others(target: Target) -> None:
    merge = PostgresSink(EnvVar("TARGET_URL"), "counts", mode="merge", key="word")
    assert access(merge.declaration()) == Access([], [], [], is_missing=True)
    merge.write(words(("a", 1)), attempt())
    assert access(merge.declaration()) == Access([], [], [])
    [warning] = access({**merge.declaration(), "mode": "overwrite", "key": []}).warnings
    assert warning == "counts_pkey of public.counts lets no two rows of a result have the same word"
    [misfit] = access({**merge.declaration(), "mode": "append", "key": []}).forbidden
    assert misfit.startswith("counts_pkey of public.counts lets no two batches have a row of the same word")
    target.rows(misfit[misfit.index("ALTER TABLE") :])
    append = PostgresSink(EnvVar("TARGET_URL"), "counts")
    assert access(append.declaration()) == Access([], [], [])
    target.rows("CREATE UNIQUE INDEX theirs ON counts (word)")
    [warning] = access(append.declaration()).warnings
    assert warning.startswith("theirs of public.counts lets no two batches have a row of the same word")
    target.rows("CREATE TABLE child (word text REFERENCES counts (word))")
    for mode, fails in (("append", "a replay"), ("overwrite", "each batch")):
        warnings = access({**append.declaration(), "mode": mode}).warnings
        assert f"the foreign key child_word_fkey of child has {fails} fail" in warnings[-1]


_HOW_TO = (Path(__file__).parents[3] / "docs" / "how-to" / "outputs.md").read_text(encoding="utf-8")
_KEEP_NEWEST = _HOW_TO[_HOW_TO.index("DELETE FROM word_counts") :].partition("```")[0]


def _changed(change: str, table: str = "counts") -> PostgresSink:
    """Return a sink of a mode, or of a key of mode='merge'."""
    if change in ("append", "overwrite"):
        return PostgresSink(EnvVar("TARGET_URL"), table, mode=cast("Mode", change))
    return PostgresSink(EnvVar("TARGET_URL"), table, mode="merge", key=change.split(", "))


def _two_batches(change: str, first: int) -> None:
    """Write two batches that a table for this mode or key takes, and one for another one may not."""
    rows = {
        "word": [("a", 1), ("b", 1)],
        "n": [("a", 1), ("a", 2)],
        "word, n": [("a", 1), ("a", 2), ("b", 1)],
    }.get(change, [("a", 1), ("a", 1), ("b", 2)])
    for day in (first, first + 1):
        _changed(change).write(words(*rows), attempt(time=TIME + timedelta(days=day)))


_THEIRS = 'CREATE UNIQUE INDEX "Theirs" ON counts'
_PARENT, _PARENT_KEY = TABLE.replace("counts", "parent"), "ALTER TABLE parent ADD UNIQUE (word)"
_PRIMARY_KEY = 'ALTER TABLE counts ADD CONSTRAINT "Theirs" PRIMARY KEY'


@pytest.mark.parametrize(
    ("was", "now", "state", "needs"),
    [
        (
            "append",
            "word",
            "INSERT INTO counts VALUES ('a', 1, now()), ('a', 1, now()), (NULL, 1, now())",
            "ADD UNIQUE",
        ),
        ("word", "append", "made for word", "DROP CONSTRAINT counts_pkey, ALTER word DROP NOT NULL"),
        ("word", "append", f"{_PRIMARY_KEY} (word)", 'DROP CONSTRAINT "Theirs"'),
        ("word", "append", f"{_THEIRS} (word)", 'DROP INDEX public."Theirs"'),
        ("word", "append", f"ALTER TABLE counts ADD id bigserial; {_THEIRS} (id)", ""),
        ("word", "overwrite", "made for word", ""),
        ("word", "overwrite", f"{_THEIRS} (word)", ""),
        ("append", "overwrite", "made for word", ""),
        ("word", "n", "made for word", "DROP CONSTRAINT counts_pkey"),
        ("word", "word, n", f"{_PRIMARY_KEY} (word)", 'DROP CONSTRAINT "Theirs"'),
        ("word", "word, n", "made for word", "DROP CONSTRAINT counts_pkey"),
        ("word, n", "word", "made for word, n", "ADD UNIQUE (word)"),
        ("word, n", "word", f"{_THEIRS} (word, n)", "ADD UNIQUE (word)"),
        ("n", "word", "made for word", ""),
        ("append", "word, n", "made for word", "DROP CONSTRAINT counts_pkey"),
    ],
)
def test_a_changed_mode_or_key_says_what_the_table_needs_and_no_more(
    target: Target, was: str, now: str, state: str, needs: str
) -> None:
    """Write two batches after the statements that are named; `state`: SQL on the user's table, or what made it."""
    if state.startswith("made for "):
        _two_batches(state.removeprefix("made for "), 0)
    else:
        target.rows(f"{TABLE}; {state}")
    step = _changed(now).step_after(_changed(was).declaration())
    assert (step is not None, needs in (step or "")) == (needs != "", True), step
    for statement in re.findall(r"ALTER TABLE [^;]*|DROP INDEX [^;]*", step or ""):
        if "ADD UNIQUE" in statement:
            keeps = _KEEP_NEWEST.replace("word_counts", "counts").replace("BY word", f"BY {now}")
            target.rows(keeps.replace("WHERE word IS", f"WHERE ({now}) IS"))
        target.rows(statement)
    if now == "overwrite":
        for day in (2, 3):
            _changed(now).write(words(("a", day), ("b", 1)), attempt(time=TIME + timedelta(days=day)))
    else:
        _two_batches(now, 2)


@pytest.mark.parametrize(
    ("was", "now", "statements", "said"),
    [
        (
            "word",
            "append",
            f"{TABLE}; {_THEIRS} (word); CREATE TABLE child (w text REFERENCES counts (word))",
            'or: first drop what refers to it, the foreign keys child_w_fkey of child; then DROP INDEX public."Theirs"',
        ),
        (
            "append",
            "word",
            f"{TABLE} PARTITION BY RANGE (_batch_time)",
            "on its key (word), checked at once and of all rows, and can have none: it is partitioned by other columns",
        ),
        ("append", "word", f"{TABLE} PARTITION BY LIST (lower(word))", "and can have none"),
        (
            "word",
            "append",
            f"{_PARENT} PARTITION BY LIST (word); {_PARENT_KEY}; CREATE TABLE counts PARTITION OF parent DEFAULT",
            "ALTER TABLE public.parent DROP CONSTRAINT parent_word_key",
        ),
    ],
)
def test_a_step_that_postgres_would_refuse_is_not_named(
    target: Target, was: str, now: str, statements: str, said: str
) -> None:
    target.rows(statements)
    step = _changed(now).step_after(_changed(was).declaration())
    assert step is not None
    assert said in step


def test_a_table_that_does_not_exist_may_need_a_step_when_a_batch_creates_it(target: Target) -> None:
    before = _changed("word").declaration()
    for now in ("append", "n"):
        with pytest.raises(TargetMissingError, match=r"create the table public\.counts as it was declared before$"):
            _changed(now).step_after(before)
    assert _changed("overwrite").step_after(before) is None
    target.rows(TABLE)
    assert _changed("append").step_after(before) is None


def test_a_step_names_what_becomes_of_rows_and_not_what_was_lacking_before(target: Target) -> None:
    target.rows(f"{TABLE}; {_THEIRS} (word); CREATE RULE away AS ON DELETE TO counts DO INSTEAD NOTHING")
    before = _changed("word").declaration()
    for on_bad_rows, effect in (("fail", "its batches fail"), ("dead_letter", "rows are refused")):
        sink = PostgresSink(EnvVar("TARGET_URL"), "counts", on_bad_rows=cast("OnBadRows", on_bad_rows))
        step = sink.step_after(before)
        assert step is not None
        assert step.startswith(f"{effect} until this is changed: Theirs of public.counts lets no two batches")
        assert "away" not in step


def test_a_key_that_merge_made_leaves_nothing_behind(target: Target) -> None:
    _two_batches("word", 0)
    step = _changed("append").step_after(_changed("word").declaration())
    assert step is not None
    target.rows(step[step.index("ALTER TABLE") :])
    _changed("append").write(words((None, 1), (None, 1)), attempt(time=TIME + timedelta(days=2)))
    assert _changed("append", "others").step_after(_changed("word").declaration()) is None
    missing = _changed("region").step_after(_changed("append").declaration())
    assert missing is not None
    assert "has no column region, which is in the key of mode='merge': add it" in missing


def test_a_table_that_can_not_be_looked_at_may_need_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TARGET_URL", raising=False)
    drop, add = "if it has a unique constraint on (word), drop that", "if it has none on"
    for was, now, parts in (
        ("word", "append", (True, False)),
        ("append", "word", (False, True)),
        ("word", "n", (True, True)),
        ("word", "overwrite", None),
        ("word, n", "word", (False, True)),
        ("word, n", "n, word", None),
        ("append", "overwrite", None),
    ):
        step = _changed(now).step_after(_changed(was).declaration())
        assert (None if step is None else (drop in step, add in step)) == parts
    assert _changed("append", "others").step_after(_changed("word").declaration()) is None
    assert _changed("append").step_after(ParquetSink("never").declaration()) is None
    with held_port() as port:
        monkeypatch.setenv("TARGET_URL", f"postgresql://u@127.0.0.1:{port}/d")
        with pytest.raises(TargetUnavailableError, match=rf"{re.escape(drop)}\. It can't be looked at: .*refused"):
            _changed("append").step_after(_changed("word").declaration())
        assert _changed("append", "others").step_after(_changed("word").declaration()) is None


def test_text_in_a_database_of_another_encoding_is_that_text_or_refused(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(psycopg2.connect(target.url)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            name = f"{connection.info.dbname}_latin1"
            cursor.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
            try:
                latin = Target(target.url.replace(f"/{connection.info.dbname}", f"/{name}"))
                monkeypatch.setenv("TARGET_URL", latin.url)
                PostgresSink(EnvVar("TARGET_URL"), "counts").write(words(("Grüße", 1)), attempt())
                assert latin.rows("SELECT length(word) FROM counts") == [(5,)]
                with pytest.raises(
                    RefusedRowsError, match=r"column word is '.u20ac': .* no equivalent in encoding .LATIN1"
                ):
                    PostgresSink(EnvVar("TARGET_URL"), "counts").write(words(("€", 1)), attempt(2))
                sink = PostgresSink(EnvVar("TARGET_URL"), "counts", on_bad_rows="dead_letter")
                assert sink.write(words(("€", 1), ("ü", 2)), attempt(3)).refused == 1
                assert latin.rows("SELECT n FROM counts") == [(2,)]
            finally:
                cursor.execute(f"DROP DATABASE {name} WITH (FORCE)")

"""Test a PostgresSink on a real target: each batch once, whatever is killed, retried, raced or replayed."""

from __future__ import annotations

import contextlib
import json
import re
import threading
import time as clock
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast, get_args

import psycopg2
import pytest
import sqlalchemy as sa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from forebay import EnvVar, PostgresSink, Totals
from orchestration.declarations.sink import AttemptOutdatedError, OutputAttempt, SinkError, Step, TargetUnavailableError
from orchestration.sinks.refused_rows import RefusedRowsError
from orchestration.sinks.table_columns import Mode
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark, words
from tests.integration.orchestration.target_database import TIME, Target, attempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Died(BaseException):
    """An exception that stands for SIGKILL: only a test catches it."""


class Dying(PostgresSink):
    """A sink that dies at a step, once. Like a dead process, it then sweeps nothing."""

    dies_at: Step | None = None

    def reached(self, step: Step) -> None:
        if step == self.dies_at:
            self.dies_at = None
            self._dead = step is not Step.SWEPT
            raise Died

    _dead = False

    def _sweep(self, attempt: OutputAttempt, name: str) -> None:
        if not self._dead:
            super()._sweep(attempt, name)
        self._dead = False


def test_an_attempt_is_committed_in_the_target_with_its_rows_and_leaves_no_staging(target: Target) -> None:
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts")
    assert sink.committed(attempt()) is None
    written = sink.write(words(("a", 1), ("b", 2)), attempt())
    assert (written.location, written.rows) == ("public.counts", 2)
    assert target.counts() == [("a", 1), ("b", 2)]
    assert target.rows("SELECT DISTINCT _batch_time FROM counts") == [(TIME,)]
    assert target.commits() == [(TIME, 1, 2)]
    assert target.staging() == []
    found = sink.committed(attempt(2))
    assert found is not None
    assert (found.attempt, found.written) == (1, written)


class Cut(PostgresSink):
    """A sink whose connections the server ends before the commit, as one that shuts down does."""

    target_database: Target

    def reached(self, step: Step) -> None:
        if step is Step.IN_TRANSACTION:
            self.target_database.rows(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
                "AND datname = current_database() AND application_name LIKE 'forebay %%'"
            )


def test_a_target_that_is_away_is_told_from_one_that_refuses_the_login(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = Cut(EnvVar("TARGET_URL"), "counts")
    cut.target_database = target
    with pytest.raises(TargetUnavailableError, match=r"closed the connection|terminating connection"):
        cut.write(words(("a", 1)), attempt())
    written = PostgresSink(EnvVar("TARGET_URL"), "counts").write(words(("a", 1)), attempt(2))
    assert (written.rows, target.counts()) == (1, [("a", 1)])
    monkeypatch.setenv("TARGET_URL", "postgresql://me@127.0.0.1:1/nowhere")
    with pytest.raises(TargetUnavailableError, match=r"output 'counts'.*no connection to the target.*refused") as away:
        cut.write(words(("a", 1)), attempt(3))
    assert away.value.unreachable == ("postgres", "env:TARGET_URL")
    role = f"{target.rows('SELECT current_database()')[0][0]}_role"
    target.rows(f"CREATE ROLE {role} LOGIN PASSWORD 'p' CONNECTION LIMIT 0")
    try:
        full = sa.make_url(target.url).set(username=role, password="p")
        monkeypatch.setenv("TARGET_URL", full.render_as_string(hide_password=False))
        with pytest.raises(TargetUnavailableError, match=r"output 'counts'.*too many connections for role") as away:
            cut.write(words(("a", 1)), attempt(3))
    finally:
        target.rows(f"DROP ROLE {role}")
    assert away.value.unreachable == (), "the server takes other logins"
    nowhere = sa.make_url(target.url).set(database="nowhere")
    monkeypatch.setenv("TARGET_URL", nowhere.render_as_string(hide_password=False))
    with pytest.raises(SinkError, match=r"no connection.*database .nowhere. does not exist") as refused:
        cut.write(words(("a", 1)), attempt(4))
    assert not isinstance(refused.value, TargetUnavailableError)
    # What no row and no code is to blame for waits, and uses up no attempt.
    monkeypatch.delenv("TARGET_URL")
    missing = r"^output 'counts' of pipeline '\w+': the.*TARGET_URL is not set"
    with pytest.raises(TargetUnavailableError, match=missing) as away:
        cut.write(words(("a", 1)), attempt(5))
    assert away.value.unreachable == (), "another output may have its secret"


def test_old_commits_are_forgotten_and_the_attempts_that_they_would_refuse_stay_refused(target: Target) -> None:
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts")
    now = datetime.now(UTC)
    old, older, newest = (now - timedelta(days=days) for days in (20, 30, 0))
    for time in (older, old):
        sink.write(words(("a", 1)), attempt(2, time=time))
    assert [row[0] for row in target.commits()] == [older, old], "they were committed just now"
    target.rows(
        "UPDATE forebay_commits SET committed_at = committed_at - interval '15 days' WHERE batch_time = %s", old
    )
    sink.write(words(("b", 2)), attempt(time=newest))
    assert [row[0] for row in target.commits()] == [older, newest]
    zombie = replace(attempt(1, time=old), began_at=now - timedelta(days=15))
    with pytest.raises(AttemptOutdatedError, match="more than 7 days ago"):
        sink.write(words(("zombie", 1)), zombie)
    assert target.counts() == [("a", 1), ("a", 1), ("b", 2)]
    # A replay that begins now replaces the batch's rows as usual.
    sink.write(words(("c", 3)), replace(attempt(3, time=old), began_at=now))
    assert target.counts() == [("a", 1), ("b", 2), ("c", 3)]


def test_a_commit_that_a_replay_renews_is_not_forgotten_with_the_old_one(target: Target) -> None:
    """Check that the statement that forgets waits for the replay's transaction, and then finds a newer row."""
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts")
    now = datetime.now(UTC)
    old = now - timedelta(days=20)
    sink.write(words(("a", 1)), attempt(1, time=old))
    target.rows("UPDATE forebay_commits SET committed_at = committed_at - interval '15 days'")
    replaying = psycopg2.connect(target.url)
    with contextlib.closing(replaying), replaying.cursor() as cursor:
        cursor.execute("UPDATE forebay_commits SET attempt = 2, committed_at = clock_timestamp()")
        newer = threading.Thread(target=lambda: sink.write(words(("b", 2)), attempt(time=now)))
        newer.start()
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'DELETE FROM %%'"
        until = clock.monotonic() + 20
        while not target.rows(waiting):
            assert clock.monotonic() < until, "no statement forgets the old commits"
        replaying.commit()
        newer.join(20)
    assert [row[:2] for row in target.commits()] == [(old, 2), (now, 1)]


def test_the_newest_commit_stays_however_old_it_is(target: Target) -> None:
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts")
    time = datetime.now(UTC) - timedelta(days=30)
    sink.write(words(("a", 1)), attempt(time=time))
    target.rows("UPDATE forebay_commits SET committed_at = committed_at - interval '15 days'")
    sink.write(words(("a", 1)), attempt(2, time=time))
    target.rows("UPDATE forebay_commits SET committed_at = committed_at - interval '15 days'")
    sink.write(words(("a", 1)), attempt(time=time - timedelta(days=1)))
    assert (time, 2, 1) in target.commits()


def test_overwrite_shows_the_newest_batch_and_a_replay_of_an_older_one_does_not_bring_it_back(target: Target) -> None:
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", mode="overwrite")
    later = TIME + timedelta(seconds=10)
    sink.write(words(("a", 1)), attempt())
    sink.write(words(("b", 2)), attempt(time=later))
    assert target.counts() == [("b", 2)]
    sink.write(words(("a", 9)), attempt(2))
    assert target.counts() == [("b", 2)]
    sink.write(words(("c", 3)), attempt(2, time=later))
    assert target.counts() == [("c", 3)]
    assert target.commits() == [(TIME, 2, 1), (later, 2, 1)]


def test_merge_keeps_a_row_per_key_of_the_newest_batch_that_had_it(target: Target) -> None:
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", mode="merge", key="word")
    later = TIME + timedelta(seconds=10)
    sink.write(words(("a", 1), ("b", 1)), attempt())
    sink.write(words(("b", 2), ("c", 2)), attempt(time=later))
    assert target.counts() == [("a", 1), ("b", 2), ("c", 2)]
    # In a replay of the older batch, which now has no a: what that batch wrote goes, what is newer stays.
    sink.write(words(("b", 9), ("d", 9)), attempt(2))
    assert target.counts() == [("b", 2), ("c", 2), ("d", 9)]


def test_merge_names_the_key_that_has_several_rows(target: Target) -> None:
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", mode="merge", key="word")
    with pytest.raises(RefusedRowsError, match=r"output 'counts' .*word is 'a': several rows .* group by the key"):
        sink.write(words(("a", 1), ("a", 2)), attempt())
    assert target.rows("SELECT to_regclass('counts')::text") == [(None,)]
    assert target.commits() == []
    assert target.staging() == []


@pytest.mark.parametrize("mode", ["overwrite", "merge"])
@pytest.mark.parametrize("step", list(Step))
def test_an_attempt_that_dies_at_any_step_leaves_each_row_once(target: Target, step: Step, mode: Mode) -> None:
    sink = Dying(EnvVar("TARGET_URL"), "counts", mode=mode, key="word" if mode == "merge" else None)
    earlier = TIME - timedelta(seconds=10)
    sink.write(words(("old", 0)), attempt(time=earlier))
    sink.dies_at = step
    with pytest.raises(Died):
        sink.write(words(("a", 1), ("b", 2)), attempt())
    whole = {("a", 1), ("b", 2)}
    if mode != "overwrite":
        whole.add(("old", 0))
    is_committed = step in (Step.COMMITTED, Step.SWEPT)
    # Readers see all of the batch, or nothing.
    assert set(target.counts()) == (whole if is_committed else {("old", 0)})
    found = sink.committed(attempt(2))
    assert (found is not None) == is_committed
    if found is None:
        sink.write(words(("a", 1), ("b", 2)), attempt(2))
    assert target.counts() == sorted(whole)
    assert target.commits()[-1] == (TIME, 1 if is_committed else 2, 2)
    # The next attempt that writes removes what the dead attempt left.
    sink.write(words(("a", 1), ("b", 2)), attempt(3))
    assert target.staging() == []
    assert target.counts() == sorted(whole)


def test_a_staging_table_emptied_by_a_crash_of_the_target_is_detected(target: Target) -> None:
    class Crashing(PostgresSink):
        def reached(self, step: Step) -> None:
            if step is Step.STAGED:
                target.rows(f"TRUNCATE {target.staging()[0][0]}")

    with pytest.raises(SinkError, match="staged rows are there"):
        Crashing(EnvVar("TARGET_URL"), "counts").write(words(("a", 1), ("b", 2)), attempt())
    assert target.commits() == []


def test_a_users_table_is_filled_as_it_is_declared(target: Target) -> None:
    target.rows(
        "CREATE SCHEMA shop; CREATE TABLE shop.counts (id bigserial, n integer, word uuid, made timestamptz DEFAULT "
        "now(), _batch_time timestamptz)"
    )
    word = "3f1f9ee0-3d7b-4b2f-9f0f-0d6d3c1c2b1a"
    PostgresSink(EnvVar("TARGET_URL"), "shop.counts").write(words((word, 7)), attempt())
    assert target.rows("SELECT id, n, word::text, made IS NOT NULL FROM shop.counts") == [(1, 7, word, True)]
    assert target.rows("SELECT attempt FROM shop.forebay_commits") == [(1,)]


def test_columns_that_do_not_fit_are_named(target: Target) -> None:
    target.rows("CREATE TABLE counts (word boolean NOT NULL, other text, n date)")
    schema = StructType([StructField("w", StringType()), StructField("n", LongType())])
    renamed = cast("DataFrame", FrameWithoutSpark([("a", 1)], schema=schema))
    with pytest.raises(SinkError) as raised:
        PostgresSink(EnvVar("TARGET_URL"), "counts").write(renamed, attempt())
    for part in (
        "output 'counts' of pipeline 'words' does not fit the table public.counts",
        "the table has no column w (text)",
        "the result has no column word (boolean), which must not be null",
        "column n is date in the table and bigint in the result",
        "the table has no column _batch_time",
    ):
        assert part in str(raised.value)
    assert target.commits() == []


def test_a_value_that_does_not_fit_is_named_with_its_column(target: Target) -> None:
    target.rows("CREATE TABLE counts (word uuid, n bigint, _batch_time timestamptz)")
    with pytest.raises(Exception, match=r"column word is 'no uuid': invalid input syntax for type uuid"):
        PostgresSink(EnvVar("TARGET_URL"), "counts").write(words(("no uuid", 1)), attempt())
    with pytest.raises(Exception, match="a NUL character, which text in Postgres can't hold"):
        PostgresSink(EnvVar("TARGET_URL"), "others").write(words(("a\0b", 1)), attempt(output="others"))
    assert target.staging() == []


def test_rows_with_values_that_do_not_fit_are_named_up_to_five(target: Target) -> None:
    target.rows("CREATE TABLE counts (word text, n integer, _batch_time timestamptz)")
    rows = [(f"word {number}" + "x" * 300 * (number == 3), number) for number in range(100)]
    for number in (3, 50, 99):
        rows[number] = (rows[number][0] + "\0" * (number != 50), number if number != 50 else 2**40)
    with pytest.raises(RefusedRowsError) as raised:
        PostgresSink(EnvVar("TARGET_URL"), "counts").write(words(*rows, parts=1), attempt())
    said = str(raised.value)
    assert said.startswith("3 row(s) can't be stored: ")
    for part in (
        f"column word is 'word 3{'x' * 58} … {'x' * 127}\\x00': ",
        "a NUL",
        f"column n is {2**40}: ",
        "word 99",
        "on_bad_rows=",
    ):
        assert part in said
    many = words(*[("\0", number) for number in range(1000)], parts=1)
    with pytest.raises(RefusedRowsError, match="5 rows, or more, can't be stored"):
        PostgresSink(EnvVar("TARGET_URL"), "counts").write(many, attempt())
    assert (target.staging(), target.counts()) == ([], [])


@pytest.mark.parametrize("mode", get_args(Mode))
def test_refused_rows_are_put_aside_with_the_commit_and_replaced_by_a_replay(target: Target, mode: Mode) -> None:
    key = ["word"] if mode == "merge" else None
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", mode=mode, key=key, on_bad_rows="dead_letter")
    refused = "SELECT refused_row::json ->> 'word', reason FROM forebay_refused_rows ORDER BY batch_time, id"
    written = sink.write(words(("a", 1), ("b\0", 2), ("c", 3), ("d\0", 4)), attempt())
    assert (written.rows, written.refused) == (2, 2)
    assert target.counts() == [("a", 1), ("c", 3)]
    kept = target.rows("SELECT refused_row, reason FROM forebay_refused_rows ORDER BY id")
    assert [row for row, _ in kept] == ['{"word": "b\\u0000", "n": 2}', '{"word": "d\\u0000", "n": 4}']
    assert all(reason.startswith("column word is ") and "a NUL" in reason for _, reason in kept)
    assert sink.write(words(("e\0", 5)), attempt(time=TIME + timedelta(days=1))).refused == 1
    assert sink.write(words(("b", 2)), attempt(2)).refused == 0
    assert len(target.rows(refused.replace("refused_row::json ->> 'word'", "id"))) == 1
    assert target.staging() == []


@pytest.mark.parametrize(
    ("table", "row", "said"),
    [
        ("word text NOT NULL, n bigint", (None, 1), r"column word is None: null value in column"),
        ("word short, n bigint", ("longer", 1), r"value for domain short violates check constraint"),
    ],
)
def test_rows_that_a_constraint_of_the_table_refuses_are_named_or_put_aside(
    target: Target, table: str, row: tuple[str | None, int], said: str
) -> None:
    target.rows(
        f"CREATE DOMAIN short AS text CHECK (length(VALUE) < 4); CREATE TABLE counts ({table}, _batch_time timestamptz)"
    )
    rows = words(("a", 1), row, ("b", 2), parts=1)
    with pytest.raises(RefusedRowsError, match=said):
        PostgresSink(EnvVar("TARGET_URL"), "counts").write(rows, attempt())
    written = PostgresSink(EnvVar("TARGET_URL"), "counts", on_bad_rows="dead_letter").write(rows, attempt())
    assert (written.rows, written.refused) == (2, 1)
    assert target.counts() == [("a", 1), ("b", 2)]
    assert target.staging() == []


def test_a_row_without_its_key_is_named_in_the_first_batch_too(target: Target) -> None:
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", mode="merge", key="word")
    for number in (1, 2):
        with pytest.raises(RefusedRowsError, match=r"column word is None: null value"):
            sink.write(words(("a", 1), (None, 2), parts=1), attempt(number))
        sink.write(words(("a", 1)), attempt(number))


def test_a_row_that_a_trigger_completes_is_not_judged_before(target: Target) -> None:
    target.rows(
        "CREATE TABLE counts (word text NOT NULL, n bigint, _batch_time timestamptz);"
        "CREATE FUNCTION named() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN NEW.word := coalesce(NEW.word, 'none'); RETURN NEW; END$$;"
        "CREATE TRIGGER named BEFORE INSERT ON counts FOR EACH ROW EXECUTE FUNCTION named()"
    )
    PostgresSink(EnvVar("TARGET_URL"), "counts").write(words((None, 1)), attempt())
    assert target.counts() == [("none", 1)]


def test_totals_add_up_the_rows_of_all_batches_and_a_replay_corrects_them(target: Target) -> None:
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", totals=Totals("word_totals", by="word", sum="n"))
    totals = "SELECT word, n::int FROM word_totals ORDER BY 1"
    sink.write(words(("a", 1), ("b", 2)), attempt())
    sink.write(words(("a", 10)), attempt(time=TIME + timedelta(hours=1)))
    assert target.rows(totals) == [("a", 11), ("b", 2)]
    sink.write(words(("a", 5)), attempt(2))
    assert target.rows(totals) == [("a", 15)]
    target.rows("ALTER TABLE counts ADD more bigint DEFAULT 1")
    otherwise = PostgresSink(
        EnvVar("TARGET_URL"), "counts", totals=Totals("word_totals", by=["word"], sum=["n", "more"])
    )
    otherwise.write(words(("a", 5)), attempt(3))
    assert target.rows("SELECT word, n::int, more::int FROM word_totals") == [("a", 15, 2)]
    with pytest.raises(SinkError, match=r"public.counts is there, and is no view of totals"):
        PostgresSink(EnvVar("TARGET_URL"), "counts", totals=Totals("counts", by="word", sum="n")).write(
            words(("a", 5)), attempt(4)
        )


def test_the_check_names_what_totals_can_not_have_and_no_view_of_another_table_is_replaced(target: Target) -> None:
    def sink(table: str, by: str, sums: str) -> PostgresSink:
        return PostgresSink(EnvVar("TARGET_URL"), table, totals=Totals("word_totals", by=by, sum=sums))

    schema = words().schema
    for exists in (False, True):
        for by, sums, named in [
            ("nothing", "n", "name nothing, and the table has no such column"),
            ("n", "word", "sum word, which is text and no number"),
            ("word", "_batch_time", "sum _batch_time, which is timestamp with time zone"),
        ]:
            found = sink("counts", by, sums).check_target(schema)
            assert (found.health, named in found.found) == ("failed", True), found
        assert sink("counts", "word", "n").check_target(schema).health == "ok"
        if not exists:
            sink("counts", "word", "n").write(words(("a", 1)), attempt())
    others = sink("others", "word", "n")
    said = "public.word_totals is there, and is the totals of counts"
    assert said in others.check_target().found
    with pytest.raises(SinkError, match=said):
        others.write(words(("b", 2)), attempt(time=TIME + timedelta(hours=1)))
    assert target.rows("SELECT word FROM word_totals") == [("a",)]


def test_append_after_merge_says_which_constraint_is_in_the_way(target: Target) -> None:
    PostgresSink(EnvVar("TARGET_URL"), "counts", mode="merge", key="word").write(words(("a", 1)), attempt())
    append = PostgresSink(EnvVar("TARGET_URL"), "counts")
    later = attempt(time=TIME + timedelta(days=1))
    with pytest.raises(RefusedRowsError, match=r"\(word\)=\(a\).*go back to mode='merge'") as refused:
        append.write(words(("a", 2)), later)
    [statement] = re.findall(r"ALTER TABLE [^)]*", str(refused.value))
    target.rows(statement)
    append.write(words(("a", 2), (None, 3)), later)
    assert target.counts() == [("a", 1), ("a", 2), (None, 3)]


@pytest.mark.parametrize("step", list(Step))
def test_refused_rows_count_only_with_their_attempts_commit(target: Target, step: Step) -> None:
    # One row that can't be staged, and one that the table refuses.
    target.rows("CREATE TABLE counts (word text, n bigint CHECK (n < 3), _batch_time timestamptz)")
    rows = words(("a", 1), ("b\0", 2), ("c", 3))
    sink = Dying(EnvVar("TARGET_URL"), "counts", on_bad_rows="dead_letter")
    sink.dies_at = step
    with contextlib.suppress(Died):
        sink.write(rows, attempt())
    is_committed = target.rows("SELECT to_regclass('forebay_refused_rows') IS NOT NULL") == [(True,)]
    assert is_committed == (step in (Step.COMMITTED, Step.SWEPT))
    PostgresSink(EnvVar("TARGET_URL"), "counts", on_bad_rows="dead_letter").write(rows, attempt(2))
    assert target.counts() == [("a", 1)]
    assert target.rows("SELECT count(*) FROM forebay_refused_rows") == [(2,)]
    assert target.staging() == []


def test_two_outputs_on_one_table_are_refused(target: Target) -> None:
    PostgresSink(EnvVar("TARGET_URL"), "counts").write(words(("a", 1)), attempt())
    other = r"'other'.*is written by output 'counts'.*Give it a table of its own"
    # Batches wait for the person who decides whose it is.
    with pytest.raises(TargetUnavailableError, match=other):
        PostgresSink(EnvVar("TARGET_URL"), "counts").write(words(("b", 1)), attempt(output="other"))
    assert target.counts() == [("a", 1)]


def test_readers_never_see_half(target: Target) -> None:
    """Check that a reader in the middle of the transaction sees the batch as it was, without waiting."""
    seen: list[list[tuple[Any, ...]]] = []

    class Looked(PostgresSink):
        def reached(self, step: Step) -> None:
            if step is Step.IN_TRANSACTION and target.rows("SELECT to_regclass('counts')::text") != [(None,)]:
                seen.append(target.rows("SET lock_timeout = '1s'; SELECT word, n FROM counts ORDER BY 1"))

    sink = Looked(EnvVar("TARGET_URL"), "counts", mode="overwrite")
    sink.write(words(("a", 1), ("b", 1)), attempt())
    sink.write(words(("c", 2), ("d", 2)), attempt(2))
    assert seen == [[("a", 1), ("b", 1)]]
    assert target.counts() == [("c", 2), ("d", 2)]


def test_what_a_renamed_output_is_told_to_run_hands_it_the_table(target: Target) -> None:
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts")
    assert sink.check_writer("words", "other") is None
    sink.write(words(("a", 1)), attempt(output="it's"))
    assert sink.check_writer("words", "it's") is None
    found = sink.check_writer("words", "other")
    assert found is not None
    target.rows(found.way_out[found.way_out.index("DELETE") :])
    assert sink.check_writer("words", "other") is None
    sink.write(words(("b", 1)), attempt(output="other"))


def test_commits_that_the_login_can_not_read_are_a_finding(target: Target) -> None:
    # As without the right: a table of that name that has not the columns.
    target.rows("CREATE TABLE forebay_commits ()")
    found = PostgresSink(EnvVar("TARGET_URL"), "counts").check_writer("words", "counts")
    assert found is not None
    assert (found.health, found.found.startswith("public.forebay_commits can't be read: ")) == ("failed", True)


def test_a_staging_table_names_its_attempt(target: Target) -> None:
    comments: list[Any] = []

    class Looked(PostgresSink):
        def reached(self, step: Step) -> None:
            if step is Step.STAGED:
                comments.extend(
                    json.loads(text)
                    for (text,) in target.rows(
                        "SELECT obj_description(oid, 'pg_class') FROM pg_class "
                        "WHERE relkind = 'r' AND relname LIKE 'forebay\\_staging\\_%%'"
                    )
                )

    Looked(EnvVar("TARGET_URL"), "counts").write(words(("a", 1)), attempt())
    [comment] = comments
    assert (comment["forebay"], comment["output"], comment["attempt"]) == ("words", "counts", 1)


MERGE: dict[str, Any] = {"mode": "merge", "key": ["word", "n"]}


def identities(*rows: tuple[Any, ...], names: str = "word n") -> DataFrame:
    kinds = {"word": StringType(), "n": LongType(), "other": LongType()}
    schema = StructType([StructField(name, kinds[name]) for name in names.split()])
    return cast("DataFrame", FrameWithoutSpark(list(rows[::2]), list(rows[1::2]), schema=schema))


def test_a_refused_row_does_not_keep_the_row_of_its_window(target: Target) -> None:
    target.rows(
        "CREATE TABLE counts (word text, n bigint, more bigint CHECK (more < 9), _batch_time timestamptz, "
        "UNIQUE (word, n))"
    )
    schema = StructType([*words().schema.fields, StructField("more", LongType())])

    def counted(*rows: tuple[Any, ...]) -> DataFrame:
        return cast("DataFrame", FrameWithoutSpark(list(rows), schema=schema))

    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", **MERGE, on_bad_rows="dead_letter")
    sink.write(counted(("a", 1, 1), ("b", 1, 1), ("c", 2, 1)), attempt(time=TIME - timedelta(days=1)))
    windows = identities((1,), names="n")
    written = sink.write(counted(("a", 1, 9), ("b", 1, 2)), replace(attempt(), replaced=windows))
    assert (written.rows, written.refused) == (1, 1)
    assert target.counts() == [("b", 1), ("c", 2)]


def test_windows_with_nulls_are_found_in_a_table_of_others(target: Target) -> None:
    target.rows("CREATE TABLE counts (word text, n bigint, _batch_time timestamptz, UNIQUE (word, n))")
    before, later = TIME - timedelta(days=1), TIME + timedelta(days=1)
    gone = [(None, 1, TIME), (None, 1, before), ("a", None, before)]
    # Of a later batch, of no batch, and of other windows.
    kept = [(None, 1, later), (None, 1, None), (None, None, before), (None, 2, before), ("b", None, before)]
    for row in [*gone, *kept]:
        target.rows("INSERT INTO counts VALUES (%s, %s, %s)", *row)
    replaced = identities((None, 1), ("a", None), ("b", 1), (None, 7), (None, 1))
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", **MERGE)
    sink.write(words(("a", 1)), replace(attempt(2), replaced=replaced))
    assert sorted(target.rows("SELECT * FROM counts"), key=str) == sorted([*kept, ("a", 1, TIME)], key=str)


def test_windows_that_the_table_can_not_hold_are_none_of_its_own(target: Target) -> None:
    target.rows("CREATE TABLE counts (word uuid, n smallint, _batch_time timestamptz, UNIQUE (word, n))")
    one, other = "3f1f9ee0-3d7b-4b2f-9f0f-0d6d3c1c2b1a", "4f1f9ee0-3d7b-4b2f-9f0f-0d6d3c1c2b1a"
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", **MERGE)
    sink.write(words((one, 1), (other, 1)), attempt())
    odd = [("no uuid", 1), ("a\0", 1), (other, 2**40), (other.upper(), 1), (None, 1)]
    later = attempt(time=TIME + timedelta(days=1))
    written = sink.write(words(), replace(later, replaced=identities(*odd, (one, 1))))
    assert (written.rows, written.refused) == (0, 0)
    assert target.rows("SELECT word::text FROM counts") == [(other,)]
    assert target.staging() == []


def test_staged_windows_emptied_by_a_crash_of_the_target_are_detected(target: Target) -> None:
    class Crashing(PostgresSink):
        def reached(self, step: Step) -> None:
            if step is Step.STAGED:
                [table] = [name for (name,) in target.staging() if "windows" in name]
                target.rows(f"TRUNCATE {table}")

    sink = Crashing(EnvVar("TARGET_URL"), "counts", **MERGE)
    with pytest.raises(SinkError, match="2 of 3 staged rows are there"):
        sink.write(words(("a", 1), ("b", 2)), replace(attempt(), replaced=identities(("a", 1))))
    assert target.commits() == []
    assert target.staging() == []


def test_windows_by_which_no_rows_can_be_replaced_are_refused(target: Target) -> None:
    for options in ({}, MERGE):
        sink = PostgresSink(EnvVar("TARGET_URL"), "counts", **options)
        assert sink.replaces(["n"]) is bool(options)
        with pytest.raises(SinkError, match=r"windows are identified by other, and its sink replaces no rows by that"):
            sink.write(words(("a", 1)), replace(attempt(), replaced=identities((1,), names="other")))
    sink = PostgresSink(EnvVar("TARGET_URL"), "counts", **MERGE)
    schema = StructType([StructField("n", StringType())])
    texts = cast("DataFrame", FrameWithoutSpark([("1",)], schema=schema))
    with pytest.raises(SinkError, match="column n identifies windows as string, and the result has it as bigint"):
        sink.write(words(("a", 1)), replace(attempt(), replaced=texts))
    assert target.rows("SELECT to_regclass('counts')") == [(None,)]

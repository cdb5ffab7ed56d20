"""Test a PostgresSink whose result gains, loses and widens columns, on a real target."""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import psycopg2
import pytest
import sqlalchemy as sa
from pyspark.sql.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from forebay import EnvVar, PostgresSink, Totals
from orchestration.declarations.sink import SinkError, Step, TargetUnavailableError
from orchestration.sinks.postgres import postgres_catalog, postgres_rows
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark, words
from tests.integration.orchestration.target_database import TIME, Target, attempt
from tests.integration.orchestration.test_postgres_sink import Died, Dying

if TYPE_CHECKING:
    from decimal import Decimal

    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

    from orchestration.sinks.column_changes import ColumnPolicy

LATER = TIME + timedelta(seconds=10)


def frame(*rows: tuple[Any, ...], **columns: DataType) -> DataFrame:
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    return cast("DataFrame", FrameWithoutSpark(list(rows), schema=schema))


def with_more(*rows: tuple[Any, ...]) -> DataFrame:
    return frame(*rows, word=StringType(), n=LongType(), more=StringType())


def sink(**options: Any) -> PostgresSink:  # noqa: ANN401
    return PostgresSink(EnvVar("TARGET_URL"), "counts", **options)


def types(target: Target) -> dict[str, str]:
    return dict(
        target.rows(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'counts'::regclass "
            "AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )
    )


@pytest.mark.parametrize("options", [{}, {"mode": "overwrite"}, {"mode": "merge", "key": "word"}], ids=str)
def test_a_new_column_is_added_with_its_first_rows_and_older_batches_are_replayed(
    target: Target, options: dict[str, Any]
) -> None:
    sink(**options).write(words(("a", 1)), attempt())
    checked = sink(**options).check_target(with_more().schema)
    assert (checked.health, checked.found.rpartition("; ")[2]) == ("ok", "its next batch adds more")
    assert list(types(target)) == ["word", "n", "_batch_time"]
    sink(**options).write(with_more(("b", 2, "x")), attempt(time=LATER))
    assert list(types(target)) == ["word", "n", "_batch_time", "more"]
    # By the code of now, and by older code.
    for number, result in ((2, with_more(("a", 3, "y"))), (3, words(("a", 4)))):
        sink(**options).write(result, attempt(number))
        expected = [("a", number + 1, "y" if number == 2 else None), ("b", 2, "x")]
        assert target.rows("SELECT word, n, more FROM counts ORDER BY 1") == (
            [("b", 2, "x")] if options.get("mode") == "overwrite" else expected
        )
    assert target.staging() == []


def test_a_table_of_others_is_changed_only_if_it_is_said(target: Target) -> None:
    target.rows("CREATE TABLE counts (word text, n bigint, _batch_time timestamptz)")
    statement = 'ALTER TABLE "public"."counts" ADD COLUMN "more" text'
    with pytest.raises(SinkError) as refused:
        sink().write(with_more(("a", 1, "x")), attempt())
    assert f"the table has no column more (text): {statement}" in str(refused.value)
    assert str(refused.value).endswith("or say columns='add'")
    checked = sink().check_target(with_more().schema)
    assert (checked.health, statement in checked.found) == ("failed", True)
    assert target.commits() == []
    sink(columns="add").write(with_more(("a", 1, "x")), attempt())
    assert target.rows("SELECT word, n, more FROM counts") == [("a", 1, "x")]


def test_a_table_that_the_sink_made_is_not_changed_if_it_is_said(target: Target) -> None:
    sink(columns="refuse").write(words(("a", 1)), attempt())
    with pytest.raises(SinkError, match="the table has no column more"):
        sink(columns="refuse").write(with_more(("b", 2, "x")), attempt(time=LATER))
    assert (target.counts(), list(types(target))) == ([("a", 1)], ["word", "n", "_batch_time"])


@pytest.mark.parametrize("columns", ["add", "refuse"])
def test_a_merged_row_loses_what_the_result_lacks_only_if_the_columns_are_the_sinks(
    target: Target, columns: ColumnPolicy
) -> None:
    merge: dict[str, Any] = {"mode": "merge", "key": "word"}
    sink(**merge).write(with_more(("a", 1, "x"), ("b", 1, "y")), attempt())
    sink(**merge).write(with_more(("new", 9, "y")), attempt(time=LATER + timedelta(seconds=10)))
    for number in (1, 2):
        result = words(("a", number), ("c", 2), ("new", 2))
        sink(**merge, columns=columns).write(result, attempt(number, time=LATER))
    assert target.rows("SELECT word, n, more FROM counts ORDER BY 1") == [
        ("a", 2, "x" if columns == "refuse" else None),
        ("b", 1, "y"),
        ("c", 2, None),
        ("new", 9, "y"),
    ]


def test_a_login_that_does_not_own_the_table_names_the_statement_for_its_owner(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink().write(words(("a", 1)), attempt())
    role = f"{target.rows('SELECT current_database()')[0][0]}_role"
    target.rows(
        f"CREATE ROLE {role} LOGIN PASSWORD 'p'; GRANT ALL ON SCHEMA public TO {role}; "
        f"GRANT ALL ON counts, forebay_commits TO {role}"
    )
    try:
        url = sa.make_url(target.url).set(username=role, password="p")
        monkeypatch.setenv("TARGET_URL", url.render_as_string(hide_password=False))
        sink().write(words(("b", 2)), attempt(time=LATER))
        with pytest.raises(SinkError, match=rf'ADD COLUMN "more" text.*; the login {role} does not own the table$'):
            sink().write(with_more(("b", 2, "x")), attempt(2, time=LATER))
    finally:
        target.rows(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert target.counts() == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("before", "after", "value", "kind"),
    [
        (IntegerType(), LongType(), 2**40, "bigint"),
        (FloatType(), DoubleType(), 0.1, "double precision"),
        (DecimalType(5, 2), DecimalType(9, 2), None, "numeric(9,2)"),
    ],
    ids=["integer", "float", "decimal"],
)
def test_a_wider_type_widens_the_column_and_keeps_what_is_there(
    target: Target, before: DataType, after: DataType, value: Decimal | None, kind: str
) -> None:
    """Check the key too: its primary key, and what says that merging made it, stay."""
    merging = sink(mode="merge", key=["word", "k"])
    columns = {"word": StringType(), "k": IntegerType()}
    merging.write(frame(("a", 1, None), **columns, v=before), attempt())
    wide = columns | {"k": LongType()}
    assert merging.check_target(frame(**wide, v=after).schema).found.endswith("its next batch widens k, v")
    merging.write(frame(("b", 2**40, value), **wide, v=after), attempt(time=LATER))
    assert types(target) == {"word": "text", "k": "bigint", "v": kind, "_batch_time": "timestamp with time zone"}
    assert target.rows("SELECT k, v FROM counts ORDER BY 1") == [(1, None), (2**40, value)]
    # A batch of older code is written as the table has it.
    merging.write(frame(("c", 3, None), **columns, v=before), attempt(2))
    assert types(target)["k"] == "bigint"
    assert target.rows("SELECT conname FROM pg_constraint WHERE obj_description(oid, 'pg_constraint') IS NOT NULL")


def test_a_column_that_a_view_uses_or_in_a_large_table_is_left_as_it_is(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = Totals("sums", by="word", sum="v")
    before, after = {"word": StringType(), "v": FloatType()}, {"word": StringType(), "v": DoubleType()}
    sink(totals=totals).write(frame(("a", 0.5), **before), attempt())
    with pytest.raises(SinkError) as refused:
        sink(totals=totals).write(frame(("b", 0.1), **after), attempt(time=LATER))
    assert "first needs that you drop what uses it (rule _RETURN on view sums)" in str(refused.value)
    target.rows("DROP VIEW sums")
    with monkeypatch.context() as patched:
        patched.setattr(postgres_catalog, "MOST_REWRITTEN", 0)
        with pytest.raises(
            SinkError, match=r'change the table by ALTER TABLE "public"\."counts" ALTER COLUMN "v" TYPE'
        ):
            sink(totals=totals).write(frame(("b", 0.1), **after), attempt(time=LATER))
    sink(totals=totals).write(frame(("b", 0.1), **after), attempt(time=LATER))
    assert target.rows("SELECT * FROM sums ORDER BY 1") == [("a", 0.5), ("b", 0.1)]


def test_a_batch_waits_while_others_hold_the_table_and_stages_nothing(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink().write(words(("a", 1)), attempt())
    monkeypatch.setattr(postgres_rows, "_ALTER_SECONDS", 1)
    with contextlib.closing(psycopg2.connect(target.url)) as reader, reader.cursor() as cursor:
        cursor.execute("SELECT * FROM counts")
        with pytest.raises(TargetUnavailableError, match=r"adds more in the table public.counts, which other sessions"):
            sink().write(with_more(("b", 2, "x")), attempt(time=LATER))
    assert (target.counts(), target.staging(), len(target.commits())) == ([("a", 1)], [], 1)
    sink().write(with_more(("b", 2, "x")), attempt(2, time=LATER))
    assert target.counts() == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("step", list(Step))
def test_a_death_leaves_the_column_with_its_rows_or_neither(target: Target, step: Step) -> None:
    sink().write(words(("a", 1)), attempt())
    dying = Dying(EnvVar("TARGET_URL"), "counts")
    dying.dies_at = step
    with pytest.raises(Died):
        dying.write(with_more(("b", 2, "x")), attempt(time=LATER))
    committed = step in (Step.COMMITTED, Step.SWEPT)
    assert (("more" in types(target)), len(target.counts())) == (committed, 1 + committed)
    dying.write(with_more(("b", 3, "y")), attempt(2, time=LATER))
    assert target.rows("SELECT word, n, more FROM counts ORDER BY 1") == [("a", 1, None), ("b", 3, "y")]


def test_two_batches_that_add_one_column_both_commit(target: Target) -> None:
    """Check the second one, which has seen the table without the column and finds it at its commit."""
    sink().write(words(("a", 1)), attempt())

    class Overtaken(PostgresSink):
        def _commit(self, *arguments: Any) -> Any:  # noqa: ANN401
            sink().write(with_more(("b", 2, "x")), attempt(time=LATER))
            return super()._commit(*arguments)

    third = LATER + timedelta(seconds=10)
    Overtaken(EnvVar("TARGET_URL"), "counts").write(with_more(("c", 3, "y")), attempt(time=third))
    assert target.rows("SELECT word, more FROM counts ORDER BY 1") == [("a", None), ("b", "x"), ("c", "y")]

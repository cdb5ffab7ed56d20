"""An IcebergSink: each batch once in the table's snapshots, whatever dies, is late or is replayed (point 25)."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql.types import StringType, StructField, StructType

from forebay import DeclarationError, EnvVar, IcebergSink
from orchestration.spark.sinks.sink import AttemptOutdatedError, SinkError, Step
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark, words
from tests.integration.orchestration.target_database import TIME, attempt

if TYPE_CHECKING:
    from pathlib import Path

    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

LATER = TIME + timedelta(seconds=10)
TABLE = "shop.counts"


class Died(BaseException):
    """Stands for SIGKILL: nothing catches it but a test."""


class Dying(IcebergSink):
    dies_at: Step | None = None

    def reached(self, step: Step) -> None:
        if step == self.dies_at:
            raise Died


Catalog = dict[str, Any]


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    monkeypatch.setenv("CATALOG_URI", f"sqlite:///{tmp_path}/catalog.db")
    return {"type": "sql", "uri": EnvVar("CATALOG_URI"), "warehouse": f"file://{tmp_path}/warehouse"}


def table(catalog: Catalog) -> Table:
    return load_catalog("forebay", **catalog | {"uri": catalog["uri"].resolve()}).load_table(TABLE)


def rows(catalog: Catalog, snapshot: int | None = None) -> list[tuple[Any, ...]]:
    try:
        found = table(catalog).scan(snapshot_id=snapshot).to_arrow()
    except NoSuchTableError:
        return []
    return sorted((row["word"], row["n"]) for row in found.to_pylist())


def sink_of(catalog: Catalog) -> IcebergSink:
    return IcebergSink(TABLE, catalog=catalog)


def test_a_batch_is_one_snapshot_with_its_time(catalog: Catalog) -> None:
    written = sink_of(catalog).write(words(("a", 1), ("b", 2)), attempt())
    assert (written.location, written.rows) == (TABLE, 2)
    assert rows(catalog) == [("a", 1), ("b", 2)]
    assert set(table(catalog).scan().to_arrow()["_batch_time"].to_pylist()) == {TIME}
    sink_of(catalog).write(words(("c", 3)), attempt(time=LATER))
    assert rows(catalog) == [("a", 1), ("b", 2), ("c", 3)]
    assert len(table(catalog).snapshots()) == 2


def test_point_25_a_replay_is_not_dropped_and_replaces_its_batch_alone(catalog: Catalog) -> None:
    sink = sink_of(catalog)
    sink.write(words(("a", 1), ("b", 2)), attempt())
    sink.write(words(("c", 3)), attempt(time=LATER))
    before = table(catalog).metadata_location
    sink.write(words(("a", 9)), attempt(2))
    assert rows(catalog) == [("a", 9), ("c", 3)]
    # One change of the table's metadata: nobody sees the batch gone.
    log = [entry.metadata_file for entry in table(catalog).metadata.metadata_log]
    assert log[-1] == before
    sink.write(words(), attempt(3))
    assert rows(catalog) == [("c", 3)]
    found = sink.committed(attempt(4))
    assert found is not None
    assert (found.attempt, found.written.rows) == (3, 0)


@pytest.mark.parametrize("step", [Step.PREPARED, Step.STAGED, Step.COMMITTED])
def test_an_attempt_that_dies_at_any_step_leaves_each_row_once(catalog: Catalog, step: Step) -> None:
    sink = Dying(TABLE, catalog=catalog)
    sink.dies_at = step
    with pytest.raises(Died):
        sink.write(words(("a", 1), ("b", 2)), attempt())
    is_committed = step is Step.COMMITTED
    assert rows(catalog) == ([("a", 1), ("b", 2)] if is_committed else [])
    sink.dies_at = None
    found = sink.committed(attempt(2))
    assert (found is not None) == is_committed
    if found is None:
        sink.write(words(("a", 1), ("b", 2)), attempt(2))
    else:
        assert (found.attempt, found.written.rows) == (1, 2)
    assert rows(catalog) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("other", [1, 2], ids=["another process of this attempt", "a newer attempt"])
def test_point_11_an_attempt_that_is_late_changes_nothing(catalog: Catalog, other: int) -> None:
    class Slow(IcebergSink):
        def reached(self, step: Step) -> None:
            if step is Step.STAGED:
                sink_of(catalog).write(words(("a", 2)), attempt(other))

    with pytest.raises(AttemptOutdatedError, match="attempt 1 changed nothing"):
        Slow(TABLE, catalog=catalog).write(words(("a", 1)), attempt(1))
    assert rows(catalog) == [("a", 2)]


def test_point_11_an_attempt_that_is_overtaken_in_the_middle_of_its_commit_changes_nothing(catalog: Catalog) -> None:
    """It has read the table, and made up its mind, before the newer attempt commits."""
    IcebergSink(TABLE, catalog=catalog).write(words(("old", 0)), attempt(time=LATER))

    class Overtaken(IcebergSink):
        overtaken = False

        def _commit_to(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as it was called
            if not self.overtaken:
                self.overtaken = True
                IcebergSink(TABLE, catalog=catalog).write(words(("a", 2)), attempt(2))
            super()._commit_to(*arguments, **options)

    with pytest.raises(AttemptOutdatedError, match="attempt 1 changed nothing"):
        Overtaken(TABLE, catalog=catalog).write(words(("a", 1)), attempt(1))
    assert rows(catalog) == [("a", 2), ("old", 0)]


def test_two_attempts_that_commit_at_once_leave_the_newer(catalog: Catalog) -> None:
    """Both have read the table before either commits."""
    sink_of(catalog).write(words(("old", 0)), attempt(time=LATER))
    both = threading.Barrier(2)

    class Raced(IcebergSink):
        raced = False

        def _commit_to(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as it was called
            if self.raced:
                self.raced = False
                both.wait(50)
            super()._commit_to(*arguments, **options)

        def reached(self, step: Step) -> None:
            self.raced = step is Step.STAGED

    refused: list[SinkError] = []

    def run(number: int) -> None:
        try:
            Raced(TABLE, catalog=catalog).write(words(("a", number)), attempt(number))
        except AttemptOutdatedError as error:
            refused.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert rows(catalog) == [("a", 2), ("old", 0)]


def test_a_commit_of_another_driver_log_is_not_taken_over_but_replaced(catalog: Catalog) -> None:
    sink = sink_of(catalog)
    sink.write(words(("lost", 1)), replace(attempt(), run_id="before", runs={1: "before"}))
    assert sink.committed(attempt(2)) is None
    sink.write(words(("a", 1)), attempt(2))
    assert rows(catalog) == [("a", 1)]


def test_columns_that_do_not_fit_are_named(catalog: Catalog) -> None:
    sink_of(catalog).write(words(("a", 1)), attempt())
    schema = StructType([StructField("w", StringType()), StructField("n", StringType())])
    other = StructType([StructField("word", StringType()), StructField("n", StringType())])
    with pytest.raises(SinkError) as raised:
        sink_of(catalog).write(cast("DataFrame", FrameWithoutSpark([("a", "1")], schema=schema)), attempt(2))
    for part in ("output 'counts'", "no column w (string)", "the result has no column word", "column n is int64"):
        assert part in str(raised.value)
    with pytest.raises(SinkError, match="column n is int64 in the table and string in the result"):
        sink_of(catalog).write(cast("DataFrame", FrameWithoutSpark([("a", "1")], schema=other)), attempt(2))
    assert rows(catalog) == [("a", 1)]


def test_without_the_package_one_sentence_says_what_to_install(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyiceberg.catalog", None)
    with pytest.raises(SinkError, match=r"pip install 'forebay\[iceberg\]'"):
        sink_of(catalog).write(words(("a", 1)), attempt())


def test_a_secret_of_the_catalog_by_itself_is_refused_and_not_shown(catalog: Catalog) -> None:
    for properties in (
        {"uri": "postgresql://me:hunter2@db/catalog"},
        {"s3.secret-access-key": "hunter2"},
        {"token": "hunter2"},
    ):
        with pytest.raises(DeclarationError, match=r'holds a secret.*"env:NAME"') as raised:
            IcebergSink(TABLE, catalog=properties)
        assert "hunter2" not in str(raised.value)
    assert sink_of(catalog).declaration()["properties"]["uri"] == "env:CATALOG_URI"

"""A DeltaSink: each batch once in the table's own log, whatever dies, is late or is replayed (point 25)."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StringType, StructField, StructType

from forebay import DeltaSink
from orchestration.spark.sinks.sink import AttemptOutdatedError, SinkError, Step
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark, words
from tests.integration.orchestration.target_database import TIME, attempt

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

LATER = TIME + timedelta(seconds=10)


class Died(BaseException):
    """Stands for SIGKILL: nothing catches it but a test."""


class Dying(DeltaSink):
    dies_at: Step | None = None

    def reached(self, step: Step) -> None:
        if step == self.dies_at:
            raise Died


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "counts"


def rows(path: Path, version: int | None = None) -> list[tuple[Any, ...]]:
    if not DeltaTable.is_deltatable(str(path)):
        return []
    table = DeltaTable(str(path), version=version).to_pyarrow_table()
    return sorted((row["word"], row["n"]) for row in table.to_pylist())


def test_a_batch_is_one_commit_with_its_time(path: Path) -> None:
    written = DeltaSink(path).write(words(("a", 1), ("b", 2)), attempt())
    assert (written.location, written.rows) == (str(path), 2)
    assert rows(path) == [("a", 1), ("b", 2)]
    assert DeltaTable(str(path)).version() == 0
    assert set(DeltaTable(str(path)).to_pyarrow_table()["_batch_time"].to_pylist()) == {TIME}
    DeltaSink(path).write(words(("c", 3)), attempt(time=LATER))
    assert DeltaTable(str(path)).version() == 1
    assert rows(path) == [("a", 1), ("b", 2), ("c", 3)]


def test_point_25_a_replay_is_not_dropped_and_replaces_its_batch_alone_in_one_commit(path: Path) -> None:
    sink = DeltaSink(path)
    sink.write(words(("a", 1), ("b", 2)), attempt())
    sink.write(words(("c", 3)), attempt(time=LATER))
    sink.write(words(("a", 9)), attempt(2))
    assert rows(path) == [("a", 9), ("c", 3)]
    assert [rows(path, version) for version in (0, 1, 2)] == [
        [("a", 1), ("b", 2)],
        [("a", 1), ("b", 2), ("c", 3)],
        [("a", 9), ("c", 3)],
    ]
    sink.write(words(), attempt(3))
    assert rows(path) == [("c", 3)]


@pytest.mark.parametrize("step", [Step.PREPARED, Step.STAGED, Step.COMMITTED])
def test_an_attempt_that_dies_at_any_step_leaves_each_row_once(path: Path, step: Step) -> None:
    sink = Dying(path)
    sink.dies_at = step
    with pytest.raises(Died):
        sink.write(words(("a", 1), ("b", 2)), attempt())
    is_committed = step is Step.COMMITTED
    assert rows(path) == ([("a", 1), ("b", 2)] if is_committed else [])
    sink.dies_at = None
    found = sink.committed(attempt(2))
    assert (found is not None) == is_committed
    if found is None:
        sink.write(words(("a", 1), ("b", 2)), attempt(2))
    else:
        assert (found.attempt, found.written.rows) == (1, 2)
    assert rows(path) == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("other", [1, 2], ids=["another process of this attempt", "a newer attempt"])
def test_point_11_an_attempt_that_is_late_changes_nothing(path: Path, other: int) -> None:
    class Slow(DeltaSink):
        def reached(self, step: Step) -> None:
            if step is Step.STAGED:
                DeltaSink(path).write(words(("a", 2)), attempt(other))

    with pytest.raises(AttemptOutdatedError, match="attempt 1 changed nothing"):
        Slow(path).write(words(("a", 1)), attempt(1))
    assert rows(path) == [("a", 2)]


def test_point_11_an_attempt_that_is_overtaken_in_the_middle_of_its_commit_changes_nothing(path: Path) -> None:
    """It has read the table, and made up its mind, before the newer attempt commits."""
    DeltaSink(path).write(words(("old", 0)), attempt(time=LATER))

    class Overtaken(DeltaSink):
        overtaken = False

        def _commit_to(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as it was called
            if not self.overtaken:
                self.overtaken = True
                DeltaSink(path).write(words(("a", 2)), attempt(2))
            super()._commit_to(*arguments, **options)

    with pytest.raises(AttemptOutdatedError, match="attempt 1 changed nothing"):
        Overtaken(path).write(words(("a", 1)), attempt(1))
    assert rows(path) == [("a", 2), ("old", 0)]


def test_two_attempts_that_commit_at_once_leave_the_newer(path: Path) -> None:
    """Both have read the table before either commits."""
    DeltaSink(path).write(words(("old", 0)), attempt(time=LATER))
    both = threading.Barrier(2)

    class Raced(DeltaSink):
        raced = False

        def _table(self) -> Any:  # noqa: ANN401 - as the sink has it
            table = super()._table()
            if self.raced:
                self.raced = False
                both.wait(50)
            return table

        def reached(self, step: Step) -> None:
            self.raced = step is Step.STAGED

    refused: list[SinkError] = []

    def run(number: int) -> None:
        try:
            Raced(path).write(words(("a", number)), attempt(number))
        except AttemptOutdatedError as error:
            refused.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert rows(path) == [("a", 2), ("old", 0)]


def test_a_replay_finds_its_rows_in_files_that_were_compacted(path: Path) -> None:
    sink = DeltaSink(path)
    sink.write(words(("a", 1), ("b", 2)), attempt())
    sink.write(words(("c", 3)), attempt(time=LATER))
    DeltaTable(str(path)).optimize.compact()
    assert len(DeltaTable(str(path)).file_uris()) == 1
    sink.write(words(("a", 9)), attempt(2))
    assert rows(path) == [("a", 9), ("c", 3)]
    assert DeltaTable(str(path)).transaction_version(attempt().application_id) == 2


def test_a_commit_of_another_driver_log_is_not_taken_over_but_replaced(path: Path) -> None:
    sink = DeltaSink(path)
    sink.write(words(("lost", 1)), replace(attempt(), run_id="before", runs={1: "before"}))
    assert sink.committed(attempt(2)) is None
    sink.write(words(("a", 1)), attempt(2))
    assert rows(path) == [("a", 1)]


def test_columns_that_do_not_fit_are_named(path: Path) -> None:
    DeltaSink(path).write(words(("a", 1)), attempt())
    schema = StructType([StructField("w", StringType()), StructField("n", StringType())])
    other = StructType([StructField("word", StringType()), StructField("n", StringType())])
    with pytest.raises(SinkError) as raised:
        DeltaSink(path).write(cast("DataFrame", FrameWithoutSpark([("a", "1")], schema=schema)), attempt(2))
    for part in ("output 'counts'", "no column w (string)", "the result has no column word", "column n is int64"):
        assert part in str(raised.value)
    with pytest.raises(SinkError, match="column n is int64 in the table and string in the result"):
        DeltaSink(path).write(cast("DataFrame", FrameWithoutSpark([("a", "1")], schema=other)), attempt(2))
    assert rows(path) == [("a", 1)]


def test_without_the_package_one_sentence_says_what_to_install(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "deltalake", None)
    with pytest.raises(SinkError, match=r"pip install 'forebay\[delta\]'"):
        DeltaSink(path).write(words(("a", 1)), attempt())

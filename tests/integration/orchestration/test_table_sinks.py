"""Test sinks of tables with their own commits: each batch once, whatever dies, is late or is replayed."""

from __future__ import annotations

import sys
import threading
from abc import ABC, abstractmethod
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyspark.sql.types import StringType, StructField, StructType

from forebay import DeclarationError, DeltaSink, EnvVar, IcebergSink
from orchestration.declarations.sink import AttemptOutdatedError, SinkError, Step
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark, words
from tests.integration.orchestration.target_database import TIME, attempt

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyiceberg.table import Table
    from pyspark.sql import DataFrame

LATER = TIME + timedelta(seconds=10)
TABLE = "shop.counts"

Rows = list[tuple[Any, ...]]
TableSink = DeltaSink | IcebergSink


class Died(BaseException):
    """An exception that stands for SIGKILL: only a test catches it."""


class Target(ABC):
    """A table, and what its readers see."""

    extra: ClassVar[str]
    package: ClassVar[str]
    location: str

    @abstractmethod
    def sink(self) -> TableSink:
        """Return a sink that writes to the table."""

    @abstractmethod
    def read(self) -> list[dict[str, Any]]:
        """Return the table's rows; none before the first commit."""

    @abstractmethod
    def commits(self) -> int:
        """Return the number of commits in the table's log."""

    @abstractmethod
    def mark(self) -> object:
        """Return a mark of what readers see now."""

    @abstractmethod
    def changes_since(self, mark: Any) -> int:  # noqa: ANN401
        """Return how often the readers' view has changed since the mark."""

    @abstractmethod
    def call_when_read(self, sink: TableSink, patch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
        """Call `then` when the sink has read the table and has not committed yet."""

    def rows(self) -> Rows:
        return sorted((row["word"], row["n"]) for row in self.read())

    def batch_times(self) -> set[datetime]:
        return {row["_batch_time"] for row in self.read()}


class DeltaTarget(Target):
    extra = "delta"
    package = "deltalake"

    def __init__(self, folder: Path) -> None:
        self.location = str(folder / "counts")

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.location)

    def sink(self) -> DeltaSink:
        return DeltaSink(self.location)

    def read(self, version: int | None = None) -> list[dict[str, Any]]:
        if not DeltaTable.is_deltatable(self.location):
            return []
        found: list[dict[str, Any]] = DeltaTable(self.location, version=version).to_pyarrow_table().to_pylist()
        return found

    def commits(self) -> int:
        return self.table.version() + 1

    def mark(self) -> int:
        return self.commits()

    def changes_since(self, mark: int) -> int:
        return self.commits() - mark

    def call_when_read(self, sink: TableSink, patch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
        real = cast("DeltaSink", sink)._table

        def table() -> Any:  # noqa: ANN401 - as the sink has it
            found = real()
            then()
            return found

        patch.setattr(sink, "_table", table)


class IcebergTarget(Target):
    extra = "iceberg"
    package = "pyiceberg.catalog"
    location = TABLE

    def __init__(self, folder: Path) -> None:
        self.catalog: dict[str, Any] = {
            "type": "sql",
            "uri": EnvVar("CATALOG_URI"),
            "warehouse": f"file://{folder}/warehouse",
        }

    @property
    def table(self) -> Table:
        return load_catalog("forebay", **self.catalog | {"uri": self.catalog["uri"].resolve()}).load_table(TABLE)

    def sink(self) -> IcebergSink:
        return IcebergSink(TABLE, catalog=self.catalog)

    def read(self) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = self.table.scan().to_arrow().to_pylist()
        except NoSuchTableError:
            return []
        return found

    def commits(self) -> int:
        return len(self.table.snapshots())

    def mark(self) -> str:
        return self.table.metadata_location

    def changes_since(self, mark: str) -> int:
        log = [entry.metadata_file for entry in self.table.metadata.metadata_log]
        return len(log) - log.index(mark)

    def call_when_read(self, sink: TableSink, patch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
        real = sink._commit_to

        def commit_to(*arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as it was called
            then()
            real(*arguments, **options)

        patch.setattr(sink, "_commit_to", commit_to)


@pytest.fixture
def delta(tmp_path: Path) -> DeltaTarget:
    return DeltaTarget(tmp_path)


@pytest.fixture
def iceberg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IcebergTarget:
    monkeypatch.setenv("CATALOG_URI", f"sqlite:///{tmp_path}/catalog.db")
    return IcebergTarget(tmp_path)


@pytest.fixture(params=["delta", "iceberg"])
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.getfixturevalue(request.param)
    return found


def test_a_batch_is_one_commit_with_its_time(target: Target) -> None:
    written = target.sink().write(words(("a", 1), ("b", 2)), attempt())
    assert (written.location, written.rows) == (target.location, 2)
    assert target.rows() == [("a", 1), ("b", 2)]
    assert target.commits() == 1
    assert target.batch_times() == {TIME}
    target.sink().write(words(("c", 3)), attempt(time=LATER))
    assert target.commits() == 2
    assert target.rows() == [("a", 1), ("b", 2), ("c", 3)]


def test_a_replay_is_not_dropped_and_replaces_only_its_batch_in_one_commit(target: Target) -> None:
    sink = target.sink()
    sink.write(words(("a", 1), ("b", 2)), attempt())
    sink.write(words(("c", 3)), attempt(time=LATER))
    before = target.mark()
    sink.write(words(("a", 9)), attempt(2))
    assert target.rows() == [("a", 9), ("c", 3)]
    # No reader sees the table without the batch.
    assert target.changes_since(before) == 1
    sink.write(words(), attempt(3))
    assert target.rows() == [("c", 3)]
    found = sink.committed(attempt(4))
    assert found is not None
    assert (found.attempt, found.written.rows) == (3, 0)


@pytest.mark.parametrize("step", [Step.PREPARED, Step.STAGED, Step.COMMITTED])
def test_an_attempt_that_dies_at_any_step_leaves_each_row_once(
    target: Target, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(reached: Step) -> None:
        if reached == step:
            raise Died

    sink = target.sink()
    with monkeypatch.context() as patch:
        patch.setattr(sink, "reached", die)
        with pytest.raises(Died):
            sink.write(words(("a", 1), ("b", 2)), attempt())
    is_committed = step is Step.COMMITTED
    assert target.rows() == ([("a", 1), ("b", 2)] if is_committed else [])
    found = sink.committed(attempt(2))
    assert (found is not None) == is_committed
    if found is None:
        sink.write(words(("a", 1), ("b", 2)), attempt(2))
    else:
        assert (found.attempt, found.written.rows) == (1, 2)
    assert target.rows() == [("a", 1), ("b", 2)]


@pytest.mark.parametrize("other", [1, 2], ids=["another process of this attempt", "a newer attempt"])
def test_a_late_attempt_changes_nothing(target: Target, other: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def overtake(reached: Step) -> None:
        if reached is Step.STAGED:
            target.sink().write(words(("a", 2)), attempt(other))

    sink = target.sink()
    monkeypatch.setattr(sink, "reached", overtake)
    with pytest.raises(AttemptOutdatedError, match="attempt 1 changed nothing"):
        sink.write(words(("a", 1)), attempt(1))
    assert target.rows() == [("a", 2)]


def test_an_attempt_overtaken_during_its_commit_changes_nothing(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check an attempt that has read the table and decided before the newer attempt commits."""
    target.sink().write(words(("old", 0)), attempt(time=LATER))
    sink = target.sink()
    real = sink._commit_to
    is_overtaken = False

    def commit_to(*arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as it was called
        nonlocal is_overtaken
        if not is_overtaken:
            is_overtaken = True
            target.sink().write(words(("a", 2)), attempt(2))
        real(*arguments, **options)

    monkeypatch.setattr(sink, "_commit_to", commit_to)
    with pytest.raises(AttemptOutdatedError, match="attempt 1 changed nothing"):
        sink.write(words(("a", 1)), attempt(1))
    assert target.rows() == [("a", 2), ("old", 0)]


def test_two_attempts_that_commit_at_once_leave_the_newer(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check two attempts that have both read the table before either commits."""
    target.sink().write(words(("old", 0)), attempt(time=LATER))
    both = threading.Barrier(2)
    met: list[int] = []

    def raced() -> TableSink:
        sink, is_next = target.sink(), False

        def reached(step: Step) -> None:
            nonlocal is_next
            is_next = step is Step.STAGED

        def meet() -> None:
            nonlocal is_next
            if is_next:
                is_next = False
                met.append(both.wait(50))

        monkeypatch.setattr(sink, "reached", reached)
        target.call_when_read(sink, monkeypatch, meet)
        return sink

    refused: list[SinkError] = []

    def run(sink: TableSink, number: int) -> None:
        try:
            sink.write(words(("a", number)), attempt(number))
        except AttemptOutdatedError as error:
            refused.append(error)

    threads = [threading.Thread(target=run, args=(raced(), number)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(met) == [0, 1]
    assert target.rows() == [("a", 2), ("old", 0)]


def test_a_commit_of_another_driver_log_is_replaced_and_not_taken_over(target: Target) -> None:
    sink = target.sink()
    sink.write(words(("lost", 1)), replace(attempt(), run_id="before", runs={1: "before"}))
    assert sink.committed(attempt(2)) is None
    sink.write(words(("a", 1)), attempt(2))
    assert target.rows() == [("a", 1)]


def test_columns_that_do_not_fit_are_named(target: Target) -> None:
    target.sink().write(words(("a", 1)), attempt())
    schema = StructType([StructField("w", StringType()), StructField("n", StringType())])
    other = StructType([StructField("word", StringType()), StructField("n", StringType())])
    with pytest.raises(SinkError) as raised:
        target.sink().write(cast("DataFrame", FrameWithoutSpark([("a", "1")], schema=schema)), attempt(2))
    for part in ("output 'counts'", "no column w (string)", "the result has no column word", "column n is int64"):
        assert part in str(raised.value)
    with pytest.raises(SinkError, match="column n is int64 in the table and string in the result"):
        target.sink().write(cast("DataFrame", FrameWithoutSpark([("a", "1")], schema=other)), attempt(2))
    assert target.rows() == [("a", 1)]


def test_without_the_package_the_error_says_what_to_install(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast("dict[str, Any]", sys.modules), target.package, None)
    with pytest.raises(SinkError, match=rf"pip install 'forebay\[{target.extra}\]'"):
        target.sink().write(words(("a", 1)), attempt())


def test_each_version_of_a_delta_table_has_whole_batches(delta: DeltaTarget) -> None:
    sink = delta.sink()
    sink.write(words(("a", 1), ("b", 2)), attempt())
    sink.write(words(("c", 3)), attempt(time=LATER))
    sink.write(words(("a", 9)), attempt(2))
    assert [sorted((row["word"], row["n"]) for row in delta.read(version)) for version in (0, 1, 2)] == [
        [("a", 1), ("b", 2)],
        [("a", 1), ("b", 2), ("c", 3)],
        [("a", 9), ("c", 3)],
    ]


def test_a_replay_finds_its_rows_in_files_that_were_compacted(delta: DeltaTarget) -> None:
    sink = delta.sink()
    sink.write(words(("a", 1), ("b", 2)), attempt())
    sink.write(words(("c", 3)), attempt(time=LATER))
    delta.table.optimize.compact()
    assert len(delta.table.file_uris()) == 1
    sink.write(words(("a", 9)), attempt(2))
    assert delta.rows() == [("a", 9), ("c", 3)]
    assert delta.table.transaction_version(attempt().application_id) == 2


def test_a_literal_secret_of_the_catalog_is_refused_and_not_shown(iceberg: IcebergTarget) -> None:
    for properties in (
        {"uri": "postgresql://me:hunter2@db/catalog"},
        {"s3.secret-access-key": "hunter2"},
        {"token": "hunter2"},
    ):
        with pytest.raises(DeclarationError, match=r'holds a secret.*"env:NAME"') as raised:
            IcebergSink(TABLE, catalog=properties)
        assert "hunter2" not in str(raised.value)
    assert iceberg.sink().declaration()["properties"]["uri"] == "env:CATALOG_URI"

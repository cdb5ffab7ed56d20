"""Test file-based tables beyond the suite of sinks: races between two commits, and tables that do not fit."""

from __future__ import annotations

import sys
import threading
from abc import abstractmethod
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from orchestration.declarations.sink import AttemptOutdatedError, SinkError, Step
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark, words
from tests.integration.orchestration.target_database import TIME, attempt
from tests.support.sinks.arrow_target import ArrowTarget
from tests.support.sinks.sink_suite import SinkSuite

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame

    from orchestration.sinks.file_table import FileTableSink

LATER = TIME + timedelta(seconds=10)


class FileTableTarget(ArrowTarget):
    """A table, and what its log and its readers see."""

    location: str

    @abstractmethod
    def sink(self) -> FileTableSink:
        """Return a sink that writes to the table."""

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
    def call_when_read(self, sink: Any, patch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:  # noqa: ANN401
        """Call `then` when the sink has read the table and has not committed yet."""

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted((row["word"], row["n"]) for row in self.read())

    def batch_times(self) -> set[datetime]:
        return {row["_batch_time"] for row in self.read()}


class FileTableSuite(SinkSuite):
    """Test the sink of a format. `package` is what it needs, by the extra `extra`."""

    extra: ClassVar[str]
    package: ClassVar[str]

    @abstractmethod
    def new_target(self, folder: Path) -> FileTableTarget:
        """Return a new table."""

    def test_a_batch_is_one_commit_with_its_time_and_a_replay_too(self, target: FileTableTarget) -> None:
        written = target.sink().write(words(("a", 1), ("b", 2)), attempt())
        assert (written.location, written.rows) == (target.location, 2)
        assert target.batch_times() == {TIME}
        target.sink().write(words(("c", 3)), attempt(time=LATER))
        assert target.commits() == 2
        before = target.mark()
        target.sink().write(words(("a", 9)), attempt(2))
        # No reader sees the table without the batch.
        assert target.changes_since(before) == 1
        assert target.rows() == [("a", 9), ("c", 3)]

    def test_a_replay_replaces_what_the_output_wrote_under_another_name(self, target: FileTableTarget) -> None:
        target.sink().write(words(("a", 1), ("b", 2)), attempt(output="counts"))
        target.sink().write(words(("c", 3)), attempt(output="counts", time=LATER))
        target.sink().write(words(("a", 9)), attempt(2, output="totals"))
        assert target.rows() == [("a", 9), ("c", 3)]

    def test_an_attempt_overtaken_during_its_commit_changes_nothing(
        self, target: FileTableTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Check an attempt that has read the table and decided before the newer attempt commits."""
        target.sink().write(words(("old", 0)), attempt(time=LATER))
        sink: Any = target.sink()
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

    def test_two_attempts_that_commit_at_once_leave_the_newer(
        self, target: FileTableTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Check two attempts that have both read the table before either commits."""
        target.sink().write(words(("old", 0)), attempt(time=LATER))
        both = threading.Barrier(2)
        met: list[int] = []

        def raced() -> FileTableSink:
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

        def run(sink: FileTableSink, number: int) -> None:
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

    def test_columns_that_do_not_fit_are_named(self, target: FileTableTarget) -> None:
        fitting = words(("a", 1)).schema
        # A check makes no table.
        assert [target.sink().check_target(of).health for of in (None, fitting, fitting)] == ["ok"] * 3
        target.sink().write(words(("a", 1)), attempt())
        schema = StructType([StructField("w", StringType()), StructField("n", StringType())])
        other = StructType([StructField("word", StringType()), StructField("n", StringType())])
        with pytest.raises(SinkError) as raised:
            target.sink().write(cast("DataFrame", FrameWithoutSpark([("a", "1")], schema=schema)), attempt(2))
        for part in ("output 'counts'", "column n is int64"):
            assert part in str(raised.value)
        with pytest.raises(SinkError, match="column n is int64 in the table and string in the result"):
            target.sink().write(cast("DataFrame", FrameWithoutSpark([("a", "1")], schema=other)), attempt(2))
        assert target.rows() == [("a", 1)]
        checked = target.sink().check_target(other)
        assert checked.health == "failed"
        assert "column n is int64 in the table and string in the result" in checked.found
        assert target.sink().check_target(fitting).health == "ok"

    def test_a_result_of_older_code_is_written_as_the_table_has_it(self, target: FileTableTarget) -> None:
        """A column that is missing is null, and a narrower one is written as the table's."""
        target.sink().write(words(("old", 0)), attempt(time=LATER))
        older = StructType([StructField("n", IntegerType())])
        for number in (1, 2):
            target.sink().write(cast("DataFrame", FrameWithoutSpark([(number,)], schema=older)), attempt(number))
            assert {(row.get("word"), row["n"]) for row in target.read()} == {(None, number), ("old", 0)}

    def test_without_the_package_the_error_says_what_to_install(
        self, target: FileTableTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(cast("dict[str, Any]", sys.modules), self.package, None)
        with pytest.raises(SinkError, match=rf"pip install 'forebay\[{self.extra}\]'"):
            target.sink().write(words(("a", 1)), attempt())
        with pytest.raises(SinkError, match=self.extra):
            target.sink().load()

"""Test the upkeep of file-based tables: what readers, replays and late attempts see of it, and how a table grows.

A death is an exception that nothing catches. The search compresses time: its turns are as many batches apart as in an
hour of batches every 10 s, and what the format keeps for an hour or for days, it keeps for as many batches.
"""

from __future__ import annotations

import os
import random
import time
from abc import abstractmethod
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import TYPE_CHECKING

import pytest

from forebay.testing.sinks import Died, at
from orchestration.declarations.sink import AttemptOutdatedError, Step, Upkeep
from tests.integration.orchestration.frame_without_spark import words
from tests.integration.orchestration.target_database import TIME, attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from orchestration.declarations.sink import OutputAttempt
    from orchestration.sinks.file_table import FileTableSink
    from tests.support.sinks.file_table_suite import FileTableTarget

#: How many batches an hour has.
HOUR = 360
# Fewer show in a minute or two what all of them show in 20.
_BATCHES = int(os.environ.get("FOREBAY_UPKEEP_BATCHES", "10000"))
_FILES = 60
_GROWTH = 1.2


def batch(number: int) -> datetime:
    return TIME + timedelta(seconds=10 * number)


def die() -> None:
    raise Died


class UpkeepSuite:
    """Test the upkeep of a format."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> FileTableTarget:
        return self.new_target(tmp_path)

    @abstractmethod
    def new_target(self, folder: Path) -> FileTableTarget:
        """Return a new table."""

    @abstractmethod
    def data_files(self, target: FileTableTarget) -> int:
        """Return how many data files readers open."""

    @abstractmethod
    def sizes(self, target: FileTableTarget) -> Mapping[str, int]:
        """Return the sizes of all files of the table and of its metadata, by path."""

    @abstractmethod
    def keep(self, target: FileTableTarget, monkeypatch: pytest.MonkeyPatch, kept: timedelta) -> None:
        """Have the table forget, and delete, what is older than this."""

    @abstractmethod
    def call_before_merge(self, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
        """Call `then` when a turn has read the table and has not committed a merge yet."""

    def turn(self) -> Upkeep:
        return Upkeep("words", "counts", oldest_attempt=datetime.now(UTC))

    def written(self, target: FileTableTarget, batches: int, begin: int = 0) -> list[tuple[str, int]]:
        sink = target.sink()
        rows = [("a", number) for number in range(begin, begin + batches)]
        for row in rows:
            sink.write(words(row, parts=1), attempt(time=batch(row[1])))
        return rows

    def test_small_files_become_one_and_a_replay_replaces_exactly_its_rows(self, target: FileTableTarget) -> None:
        rows = self.written(target, 12)
        sink = target.sink()
        figures = sink.upkeep(self.turn())
        assert (figures["files_merged"], figures["files_made"]) == (12, 1)
        assert self.data_files(target) == 1
        assert target.rows() == rows
        commits = target.commits()
        assert sink.upkeep(self.turn()) == {}
        assert target.commits() == commits, "a turn without work makes no commit"
        for number in range(12):
            found = sink.committed(attempt(2, time=batch(number)))
            assert found is not None
            assert (found.attempt, found.written.rows) == (1, 1)
        sink.write(words(("new", 1), ("new", 2)), attempt(2, time=batch(5)))
        assert target.rows() == sorted([*(row for row in rows if row[1] != 5), ("new", 1), ("new", 2)])
        sink.write(words(), attempt(3, time=batch(5)))
        assert target.rows() == [row for row in rows if row[1] != 5]

    def test_a_table_that_does_not_exist_needs_nothing(self, target: FileTableTarget) -> None:
        assert target.sink().upkeep(self.turn()) == {}

    def test_a_turn_without_time_does_nothing(self, target: FileTableTarget) -> None:
        self.written(target, 12)
        assert target.sink().upkeep(replace(self.turn(), has_time=lambda: False)) == {}
        assert self.data_files(target) == 12

    def test_a_replay_during_a_merge_counts(self, target: FileTableTarget, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = self.written(target, 12)
        called: list[int] = []

        def replay() -> None:
            if not called:
                called.append(1)
                target.sink().write(words(("new", 1)), attempt(2, time=batch(5)))

        self.call_before_merge(monkeypatch, replay)
        expected = sorted([*(row for row in rows if row[1] != 5), ("new", 1)])
        target.sink().upkeep(self.turn())
        assert called
        assert target.rows() == expected
        target.sink().upkeep(self.turn())
        assert (target.rows(), self.data_files(target)) == (expected, 1)

    def test_a_batch_during_a_merge_is_kept(self, target: FileTableTarget, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = self.written(target, 12)
        added: list[int] = []

        def add() -> None:
            if not added:
                added.append(1)
                target.sink().write(words(("b", 1)), attempt(time=batch(12)))

        self.call_before_merge(monkeypatch, add)
        assert target.sink().upkeep(self.turn())["files_merged"] == 12
        assert added
        assert target.rows() == [*rows, ("b", 1)]

    def test_a_turn_that_dies_at_each_of_its_steps_loses_nothing(
        self, target: FileTableTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows = self.written(target, 12)
        self.keep(target, monkeypatch, timedelta())
        for steps in range(20):
            left = iter([*(lambda: None for _ in range(steps)), die])

            def check(left: object = left) -> None:
                next(left)()  # type: ignore[call-overload]

            try:
                target.sink().upkeep(replace(self.turn(), check=check))
            except Died:
                assert target.rows() == rows
                continue
            except StopIteration:
                pytest.fail("a death was ignored")
            break
        assert steps > 1
        assert (target.rows(), self.data_files(target)) == (rows, 1)

    def test_an_attempt_from_before_what_the_table_remembers_changes_nothing(
        self, target: FileTableTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        began_at = datetime.now(UTC)
        sink = target.sink()
        sink.write(words(("a", 1)), replace(attempt(2, time=batch(-1)), began_at=began_at))
        rows = [("a", 1), *self.written(target, 3)]
        self.keep(target, monkeypatch, timedelta())
        sink.upkeep(self.turn())
        assert sink.committed(attempt(3, time=batch(-1))) is None, "the token is gone"
        with pytest.raises(AttemptOutdatedError, match=r"attempt 1 .* changed nothing"):
            sink.write(words(("late", 1)), replace(attempt(time=batch(-1)), began_at=began_at))
        assert target.rows() == sorted(rows)

    def test_a_restored_driver_log_replaces_what_the_table_has_forgotten_to_have(
        self, target: FileTableTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Check the first attempt at a batch that a lost driver log had run: it doubles nothing."""
        rows = self.written(target, 12)
        self.keep(target, monkeypatch, timedelta())
        sink = target.sink()
        sink.upkeep(self.turn())
        again = replace(attempt(time=batch(5)), run_id="after the restore", began_at=datetime.now(UTC) + timedelta(1))
        assert sink.committed(again) is None
        sink.write(words(("again", 5)), again)
        assert target.rows() == sorted([*(row for row in rows if row[1] != 5), ("again", 5)])

    def test_files_of_a_dead_attempt_are_deleted_and_those_of_a_running_one_stay(
        self, target: FileTableTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = datetime.now(UTC) - timedelta(seconds=5)
        rows = self.written(target, 12)
        sink = target.sink()
        monkeypatch.setattr(sink, "reached", at(Step.STAGED, die))
        own = set(self.sizes(target))
        with pytest.raises(Died):
            sink.write(words(("dead", 1)), attempt(time=batch(12)))
        dead = {path for path in set(self.sizes(target)) - own if path.endswith(".parquet")}
        assert dead
        self.keep(target, monkeypatch, timedelta())
        target.sink().upkeep(replace(self.turn(), oldest_attempt=before))
        assert dead <= set(self.sizes(target))
        figures = [target.sink().upkeep(self.turn()) for _ in range(2)]
        assert sum(one.get("files_deleted", 0) for one in figures) >= len(dead)
        assert not dead & set(self.sizes(target))
        assert target.rows() == rows

    @pytest.mark.slow
    @pytest.mark.timeout(7200)
    def test_a_table_of_many_batches_has_few_files_and_is_as_fast_as_a_young_one(
        self, target: FileTableTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Search with kills of batches and of turns, and replays: each row is there once."""
        grown = Grown(self, target, monkeypatch)
        young = Grown(self, self.new_target(tmp_path / "young"), monkeypatch)
        for number in range(_BATCHES):
            grown.batch(number)
            if number >= _BATCHES - HOUR:
                # In turn, so that what else the machine does slows both.
                young.batch(number)
            if number % HOUR == HOUR - 1:
                grown.hour()
        grown.hour()
        print(grown.report())  # noqa: T201  figures for a person
        assert target.rows() == sorted(row for of_batch in grown.rows.values() for row in of_batch)
        assert self.data_files(target) <= _FILES
        assert grown.bytes[-1] <= _GROWTH * max(grown.bytes[: len(grown.bytes) // 2])
        seconds = [median(table.seconds[-HOUR:]) for table in (grown, young)]
        print("commit, ms of CPU, last hour, and a young table's meanwhile:", [round(1000 * one, 1) for one in seconds])  # noqa: T201
        assert seconds[0] <= _GROWTH * seconds[1]


class Grown:
    """A table that many batches write to, and what it should have."""

    def __init__(self, suite: UpkeepSuite, target: FileTableTarget, monkeypatch: pytest.MonkeyPatch) -> None:
        self.suite, self.target, self._monkeypatch = suite, target, monkeypatch
        self.rows: dict[int, list[tuple[str, int]]] = {}
        #: Bytes of metadata after each hour.
        self.bytes: list[int] = []
        self.upkeep_seconds: list[float] = []
        self._attempts: dict[int, int] = {}
        # New batches are of now: for old ones, a table looks for rows of which it may have forgotten the attempt.
        self._begin = datetime.now(UTC)
        self._random = random.Random(38)
        #: Of the processor, for each first attempt at a batch.
        self.seconds: list[float] = []
        self._began: list[float] = []
        self._sink: FileTableSink = target.sink()

    def batch(self, number: int) -> None:
        """Write a batch, or replay one too; one in a hundred attempts dies at a step."""
        self._began.append(time.time())
        self._write(number)
        if self._random.random() < 0.005:
            self._write(self._random.choice(sorted(self._attempts)))

    def _write(self, number: int) -> None:
        self._attempts[number] = self._attempts.get(number, 0) + 1
        rows = [("a" * self._attempts[number], number)]
        if self._random.random() < 0.01:
            step = self._random.choice([Step.PREPARED, Step.STAGED, Step.COMMITTED])
            self._monkeypatch.setattr(self._sink, "reached", at(step, die))
            with pytest.raises(Died):
                self._sink.write(words(*rows, parts=1), self._attempt(number))
            self._attempts[number] += 1
            self._sink = self.target.sink()
            found = self._sink.committed(self._attempt(number))
            if found is not None and found.attempt == self._attempts[number] - 1:
                self.rows[number] = rows
                return
        # Of the processor, because other programs run beside.
        started = time.process_time()
        self._sink.write(words(*rows, parts=1), self._attempt(number))
        if self._attempts[number] == 1:
            self.seconds.append(time.process_time() - started)
        self.rows[number] = rows

    def _attempt(self, number: int) -> OutputAttempt:
        time = self._begin + timedelta(seconds=10 * number)
        return replace(attempt(self._attempts[number], time=time), began_at=datetime.now(UTC))

    def hour(self) -> None:
        """Give the table its turn; one in ten is killed, and the next hour's goes on."""
        hour_ago = self._began[max(0, len(self._began) - HOUR)]
        self.suite.keep(self.target, self._monkeypatch, timedelta(seconds=time.time() - hour_ago))
        steps = self._random.randrange(1, 8) if self._random.random() < 0.1 else -1

        def check() -> None:
            nonlocal steps
            steps -= 1
            if steps == 0:
                die()

        started = time.process_time()
        with suppress(Died):
            self.target.sink().upkeep(replace(self.suite.turn(), check=check))
        self.upkeep_seconds.append(time.process_time() - started)
        self.bytes.append(sum(self.suite.sizes(self.target).values()))

    def report(self) -> str:
        hours = [median(self.seconds[at : at + HOUR]) for at in range(0, len(self.seconds), HOUR)]
        return "\n".join(
            [
                f"{len(self.rows)} batches, {self.suite.data_files(self.target)} data files",
                f"commit, ms of CPU, per hour: {[round(1000 * one, 1) for one in hours]}",
                f"bytes of all files, per hour: {self.bytes}",
                f"upkeep, s of CPU, per hour: {[round(one, 2) for one in self.upkeep_seconds]}",
                f"files at the end: {len(self.suite.sizes(self.target))}",
            ]
        )

"""Prove a sink of your own: `SinkConformance` has the tests that every sink passes. See ``docs/how-to/add-a-sink.md``.

A subclass in your tests gives a `SinkTarget`, and pytest runs the inherited tests on it. A death is an exception at a
`Step` that only the suite catches: it stands for SIGKILL as far as one process can. The suite needs a Spark, and knows
no kind of sink. Needs the package `pytest`.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from forebay.testing.edge_values import NAMES, NAMES_TOGETHER, NAMES_WITHIN, ODD_COLUMNS, ODD_TEXTS, TEXTS, VALUES
from orchestration.batches.pipeline_testing import local_session
from orchestration.declarations.sink import (
    AttemptOutdatedError,
    DeliveryGuarantee,
    OutputAttempt,
    Sink,
    SinkError,
    Step,
    Written,
    class_of,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

__all__ = ["SinkConformance", "SinkTarget"]

#: Makes a DataFrame of rows and their schema.
Frames = Callable[[Sequence[tuple[Any, ...]], "StructType"], "DataFrame"]
#: Makes a DataFrame with the columns `word` and `n` of its rows.
Words = Callable[..., "DataFrame"]

#: Makes a DataFrame of the columns `start`, `user` and `n`, or of the first of them, of its rows.
Sessions = Callable[..., "DataFrame"]

_MINUTE = timedelta(minutes=1)
TIME = datetime(2026, 1, 1, 12, 0, 10, tzinfo=UTC)
_LAST_MOMENT = datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)
EARLIER, LATER = TIME - timedelta(seconds=10), TIME + timedelta(hours=2)
NEXT = TIME + timedelta(seconds=10)


class SinkTarget(ABC):
    """Hold a place that is new and empty, and that sinks of one kind write to."""

    @abstractmethod
    def sink(self) -> Sink:
        """Return a new sink that writes to the place."""

    def merging(self, key: Sequence[str]) -> Sink | None:
        """Return a new sink that writes to the place and keeps one row for each key; None: the kind has none."""
        del key
        return None

    @abstractmethod
    def read(self) -> Sequence[Mapping[str, Any]]:
        """Return all rows that readers see, by column name; none before the first commit.

        Values as Arrow's `to_pylist` has them; further columns are ignored.
        """

    def readers(self) -> Mapping[str, Callable[[], Sequence[Mapping[str, Any]]]]:
        """Return other readers of the place, by name: they must read the values that `read` does.

        A reader that is known to read a type wrongly leaves its columns out.
        """
        return {}

    def stored(self, value: Any, kind: DataType) -> Any:  # noqa: ANN401  any value of a column
        """Return a value as `read` gives it back, for a target without its type in Spark."""
        del kind
        return value


class SinkConformance:
    """Test a sink. A subclass `Test…` has the fixture `target`, which returns a `SinkTarget`."""

    #: Types of `edge_values.VALUES` that the sink refuses, by the name of the column.
    refused_types: ClassVar[Sequence[str]] = ()

    @pytest.fixture
    def target(self) -> SinkTarget:
        """Return a new target. Override it."""
        raise NotImplementedError

    @pytest.fixture
    def spark(self) -> SparkSession:
        """Return the active Spark session, or a new local one."""
        return local_session()

    @pytest.fixture
    def frames(self, spark: SparkSession) -> Frames:
        """Return what makes a DataFrame of rows."""
        return lambda rows, schema: spark.createDataFrame(list(rows), schema)

    @pytest.fixture
    def words(self, frames: Frames) -> Words:
        """Return what makes a DataFrame of (word, n) rows."""
        from pyspark.sql.types import LongType, StringType, StructField, StructType  # noqa: PLC0415  loads no Spark

        schema = StructType([StructField("word", StringType()), StructField("n", LongType())])
        return lambda *rows: frames(rows, schema)

    @pytest.fixture
    def sessions(self, frames: Frames) -> Sessions:
        """Return what makes a DataFrame of rows of `start` in minutes, `user` and `n`, or of the first of these."""
        from pyspark.sql import types  # noqa: PLC0415  loads no Spark

        kinds = {"start": types.TimestampType(), "user": types.StringType(), "n": types.LongType()}

        def made(*rows: tuple[Any, ...]) -> DataFrame:
            fields = [types.StructField(name, kind) for name, kind in kinds.items()]
            whole = [(None if row[0] is None else TIME + row[0] * _MINUTE, *row[1:]) for row in rows]
            return frames(whole, types.StructType(fields[: len(rows[0]) if rows else len(fields)]))

        return made

    def test_its_class_is_registered_under_the_kind_of_its_declarations(self, target: SinkTarget) -> None:
        sink = target.sink()
        assert isinstance(sink, class_of(sink.declaration()["kind"]))

    def test_its_declaration_is_json_and_its_place_does_not_depend_on_the_object(self, target: SinkTarget) -> None:
        one, other = target.sink(), target.sink()
        declared = json.loads(json.dumps(one.declaration()))
        assert declared == other.declaration()
        assert one.place(declared) == other.place(other.declaration())

    def test_rows_are_read_back(self, target: SinkTarget, words: Words) -> None:
        assert words_in(target) == []
        written = run(target.sink(), words(("a", 1), ("b", 2), ("b", 2), (None, None)), attempt())
        assert words_in(target) == [("a", 1), ("b", 2), ("b", 2), (None, None)]
        assert written.rows in (4, None)

    def test_batches_may_come_in_any_order(self, target: SinkTarget, words: Words) -> None:
        for number, time in enumerate((LATER, TIME, EARLIER)):
            run(target.sink(), words(("a", number)), attempt(time=time))
        assert words_in(target) == [("a", 0), ("a", 1), ("a", 2)]

    def test_an_empty_result_adds_nothing(self, target: SinkTarget, words: Words) -> None:
        written = run(target.sink(), words(), attempt())
        assert words_in(target) == []
        assert written.rows in (0, None)
        run(target.sink(), words(("a", 1)), attempt(time=LATER))
        run(target.sink(), words(), attempt(time=LATER + timedelta(seconds=10)))
        assert words_in(target) == [("a", 1)]

    def test_a_replay_replaces_exactly_its_batch(self, target: SinkTarget, words: Words) -> None:
        sink = self._exactly_once(target)
        run(sink, words(("a", 1), ("b", 2)), attempt())
        run(sink, words(("a", 1)), attempt(time=LATER))
        run(sink, words(("a", 9)), attempt(2))
        assert words_in(target) == [("a", 1), ("a", 9)]
        run(target.sink(), words(), attempt(3))
        assert words_in(target) == [("a", 1)]

    @pytest.mark.parametrize("step", list(Step))
    def test_an_attempt_that_dies_at_a_step_and_is_repeated_comes_out_once(
        self, target: SinkTarget, words: Words, step: Step, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink = self._exactly_once(target)
        run(sink, words(("old", 0)), attempt(time=EARLIER))
        monkeypatch.setattr(sink, "reached", at(step, _die))
        whole, written = words(("a", 1), ("b", 2)), None
        try:
            written = sink.write(whole, attempt())
            sink.publish(written.location, batch_time=TIME)
        except Died:
            pass
        else:
            pytest.skip(f"the sink reaches no step {step}")
        assert words_in(target) in ([("old", 0)], [("a", 1), ("b", 2), ("old", 0)]), "readers see a part of a batch"
        # What the next process does: the driver log may have the commit of a sink without its own.
        next_sink = target.sink()
        found = next_sink.committed(attempt(2))
        if found is not None:
            assert (found.attempt, found.written.rows) in ((1, 2), (1, None))
            written = found.written
        if written is None:
            written = next_sink.write(whole, attempt(2))
        next_sink.publish(written.location, batch_time=TIME)
        assert words_in(target) == [("a", 1), ("b", 2), ("old", 0)]
        run(next_sink, whole, attempt(3))
        assert words_in(target) == [("a", 1), ("b", 2), ("old", 0)]

    def test_only_a_process_that_may_publish_changes_what_readers_see(self, target: SinkTarget, words: Words) -> None:
        sink = self._exactly_once(target)
        if not sink.publishes:
            pytest.skip("readers see a result when it is written")
        run(sink, words(("a", 1)), attempt())
        written = sink.write(words(("a", 2)), attempt(2))
        assert words_in(target) == [("a", 1)]
        with pytest.raises(Died):
            sink.publish(written.location, batch_time=TIME, check=_die)
        assert words_in(target) == [("a", 1)]
        for _ in range(2):
            target.sink().publish(written.location, batch_time=TIME)
            assert words_in(target) == [("a", 2)]

    def test_an_earlier_attempts_commit_is_adopted(self, target: SinkTarget, words: Words) -> None:
        sink = self._with_commits(target)
        assert sink.committed(attempt()) is None
        for number in (1, 2):
            written = run(sink, words(("a", number)), attempt(number))
            found = target.sink().committed(attempt(number + 1))
            assert found is not None
            assert (found.attempt, found.written) == (number, written)
        assert sink.committed(attempt(time=LATER)) is None
        assert sink.committed(attempt(output="others")) is None
        # The driver log's pipeline was removed and added again: its batches are others, and not late.
        again = attempt(time=LATER, pipeline_id=8)
        assert sink.committed(replace(again, batch_time=TIME)) is None
        run(sink, words(("b", 1)), again)
        assert words_in(target) == [("a", 2), ("b", 1)]

    def test_a_commit_of_another_driver_log_is_replaced_and_not_adopted(self, target: SinkTarget, words: Words) -> None:
        """Check a driver log that was restored from a backup: the batch has other blocks, and other attempts."""
        sink = self._with_commits(target)
        run(sink, words(("lost", 1)), replace(attempt(), run_id="before", runs={1: "before"}))
        assert sink.committed(attempt(2)) is None
        run(sink, words(("a", 1)), attempt(2))
        assert words_in(target) == [("a", 1)]

    @pytest.mark.parametrize("other", [1, 2], ids=["another process of this attempt", "a newer attempt"])
    @pytest.mark.parametrize("step", [None, Step.PREPARED, Step.STAGED])
    def test_an_outdated_attempt_changes_nothing(
        self, target: SinkTarget, words: Words, step: Step | None, other: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Check an attempt that begins after another one has committed (None), or that is overtaken at a step."""
        sink = self._with_commits(target)
        overtaken: list[int] = []

        def overtake() -> None:
            overtaken.append(other)
            run(target.sink(), words(("a", 2)), attempt(other))

        if step is None:
            overtake()
        else:
            monkeypatch.setattr(sink, "reached", at(step, overtake))
        refused = error_of(AttemptOutdatedError, lambda: sink.write(words(("a", 1)), attempt(1)))
        if not overtaken:
            pytest.skip(f"the sink reaches no step {step}")
        assert "counts" in str(refused), "an error that names the output"
        assert words_in(target) == [("a", 2)]

    @pytest.mark.parametrize("names", [*((name,) for name in NAMES), *NAMES_TOGETHER], ids=ascii)
    def test_a_name_is_kept_or_refused(self, target: SinkTarget, frames: Frames, names: Sequence[str]) -> None:
        self.check_names(target, frames, names)

    @pytest.mark.parametrize("names", NAMES_WITHIN, ids=ascii)
    def test_a_name_within_a_column_is_kept_or_refused(
        self, target: SinkTarget, frames: Frames, names: Sequence[str]
    ) -> None:
        self.check_names(target, frames, names, nested=True)

    @staticmethod
    def check_names(target: SinkTarget, frames: Frames, names: Sequence[str], *, nested: bool = False) -> None:
        """Write two batches and replay the first one, with columns of these names, or (`nested`) fields of a struct.

        The target must have them all, or the sink must refuse the first one and have written nothing.
        """
        from pyspark.sql.types import StringType, StructField, StructType  # noqa: PLC0415  loads no Spark

        schema = StructType([StructField(name, StringType()) for name in names])
        if nested:
            schema = StructType([StructField("the_column", schema)])

        def row_of(value: str) -> list[str]:
            return [f"{value}{number}" for number in range(len(names))]

        def put(value: str, to: OutputAttempt) -> list[str]:
            row = tuple(row_of(value))
            run(target.sink(), frames([(row,) if nested else row], schema), to)
            return row_of(value)

        refused = error_of(SinkError, lambda: put("first", attempt()))
        if refused is not None:
            spelled = [repr(name)[1:-1] for name in names]
            named = ["the_column"] if nested else [*names, *spelled]
            assert any(name in str(refused) for name in named), f"no column is named: {refused}"
            assert list(target.read()) == [], "it was refused after rows were written"
            # Else `forebay validate` would find it in the first batch only.
            assert error_of(SinkError, lambda: target.sink().check_columns(schema, "counts")) is not None
            return
        target.sink().check_columns(schema, "counts")
        expected = [row_of("first"), put("second", attempt(time=LATER))]
        if target.sink().guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            expected[0] = put("again", attempt(2))
        found = [row["the_column"] if nested else row for row in target.read()]
        assert sorted([row.get(name) for name in names] for row in found) == sorted(expected)

    def test_values_are_read_back_as_they_were(self, target: SinkTarget, spark: SparkSession) -> None:
        kinds = [kind for kind in VALUES if kind not in self.refused_types]
        rows = [*zip_longest(*(VALUES[kind] for kind in kinds), fillvalue="NULL"), ["NULL"] * len(kinds)]
        names = {f"c{number}": kind for number, kind in enumerate(kinds)}
        selects = [
            f"SELECT {number} AS id, "
            + ", ".join(
                f"CAST({value} AS {kind}) AS {name}" for (name, kind), value in zip(names.items(), row, strict=True)
            )
            for number, row in enumerate(rows)
        ]
        frame = spark.sql(" UNION ALL ".join(selects)).coalesce(1)
        handed_on = frame.toArrow().to_pylist()
        # What Spark hands on is what its SQL says.
        assert any(_LAST_MOMENT in row.values() for row in handed_on) or "TIMESTAMP" in self.refused_types
        run(target.sink(), frame, attempt())
        for reader, read in {"read": target.read, **target.readers()}.items():
            found = {row["id"]: row for row in read()}
            assert sorted(found) == list(range(len(rows))), reader
            assert reader != "read" or names.keys() <= found[0].keys()
            for expected in handed_on:
                for name, kind in [(name, kind) for name, kind in names.items() if name in found[expected["id"]]]:
                    type_ = frame.schema[name].dataType
                    now, was = found[expected["id"]][name], target.stored(expected[name], type_)
                    said = f"{reader}: {kind}: {str(was)[:80]} is read back as {str(now)[:80]}"
                    assert plain(now) == plain(was), said
        # A later batch fits the columns that the first one made.
        run(target.sink(), frame.where("id < 0"), attempt(time=LATER))

    def test_the_types_that_it_refuses_are_refused_with_their_column(
        self, target: SinkTarget, spark: SparkSession
    ) -> None:
        for kind in self.refused_types:
            frame = spark.sql(f"SELECT 1 AS id, CAST({VALUES[kind][0]} AS {kind}) AS the_column")
            with pytest.raises(SinkError, match="the_column"):
                target.sink().check_columns(frame.schema, "counts")
            with pytest.raises(SinkError, match="the_column"):
                run(target.sink(), frame, attempt())
            assert list(target.read()) == []

    @pytest.mark.parametrize("value", ODD_COLUMNS)
    def test_an_odd_type_is_kept_or_refused_with_its_column(
        self, target: SinkTarget, spark: SparkSession, value: str
    ) -> None:
        frame = spark.sql(f"SELECT 1 AS id, {value} AS the_column")
        refused = error_of(SinkError, lambda: run(target.sink(), frame, attempt()))
        if refused is None:
            [row] = target.read()
            [expected] = frame.collect()
            kind = frame.schema["the_column"].dataType
            assert plain(row["the_column"]) == plain(target.stored(expected["the_column"], kind))
        else:
            assert "the_column" in str(refused)
            assert list(target.read()) == []

    @pytest.mark.parametrize(("odd", "depths"), ODD_TEXTS.items())
    def test_a_row_is_kept_or_refused_with_its_column_and_then_nothing_changes(
        self, target: SinkTarget, spark: SparkSession, odd: str, depths: int
    ) -> None:
        sink = self._exactly_once(target)

        def frame(*texts: Sequence[str]) -> DataFrame:
            """Return a row for each sequence, which has a text for each column."""
            rows = [
                f"SELECT {number} AS id, "
                + ", ".join(f"{TEXTS[at].format(text)} AS column_{at}" for at, text in enumerate(row))
                for number, row in enumerate(texts)
            ]
            return spark.sql(" UNION ALL ".join(rows)).coalesce(1)

        good = ["'x'"] * len(TEXTS)
        odd_rows = [[odd if at == other else text for other, text in enumerate(good)] for at in range(depths)]
        together = frame(*odd_rows)
        # Spark wraps what a task raises.
        if error_of(Exception, lambda: run(sink, together, attempt())) is None:
            kinds = {field.name: field.dataType for field in together.schema}
            found = sorted(target.read(), key=lambda row: int(row["id"]))
            for row, expected in zip(found, together.toArrow().to_pylist(), strict=True):
                stored = {name: target.stored(value, kinds[name]) for name, value in expected.items()}
                assert {name: plain(row[name]) for name in stored} == {name: plain(stored[name]) for name in stored}
            return
        run(sink, frame(good, good), attempt(2))
        for at, odd_row in enumerate(odd_rows):
            bad = frame(good, odd_row, good)
            refused = error_of(Exception, lambda: run(sink, bad, attempt(3 + at)))  # noqa: B023  called here
            assert f"column_{at}" in str(refused)
            assert sorted(int(row["id"]) for row in target.read()) == [0, 1]

    def test_a_sink_replaces_windows_by_columns_of_its_key(self, target: SinkTarget) -> None:
        sink = self._replacing(target)
        assert all(map(sink.replaces, (["start"], ["user"], ["user", "start"])))
        assert not any(map(sink.replaces, ([], ["n"], ["start", "n"])))

    def test_rows_of_a_window_that_its_new_result_lacks_vanish(self, target: SinkTarget, sessions: Sessions) -> None:
        sink = self._replacing(target)
        run(sink, sessions((0, "a", 1), (0, "b", 1), (5, "a", 1)), attempt())
        # One row, as of a window that is new, and repeated ones.
        windows = sessions((0,), (0,), (9,))
        run(sink, sessions((0, "b", 2), (0, "c", 2)), replace(attempt(time=LATER), replaced=windows))
        assert sessions_in(target) == [(0, "b", 2), (0, "c", 2), (5, "a", 1)]

    def test_windows_without_a_row_leave_none(self, target: SinkTarget, sessions: Sessions) -> None:
        sink = self._replacing(target)
        run(sink, sessions(), replace(attempt(), replaced=sessions((0,))))
        assert sessions_in(target) == []
        run(sink, sessions((0, "a", 1), (5, "a", 1)), attempt(2))
        run(sink, sessions(), replace(attempt(time=LATER), replaced=sessions((0,))))
        assert sessions_in(target) == [(5, "a", 1)]
        found = sink.committed(attempt(2, time=LATER))
        assert not sink.commits or found is not None

    @pytest.mark.parametrize("step", [None, *Step])
    def test_windows_that_merge_are_replaced_whatever_dies(
        self, target: SinkTarget, sessions: Sessions, step: Step | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sink = self._replacing(target)
        run(sink, sessions((0, "a", 1), (5, "a", 1), (0, "b", 1)), attempt(time=EARLIER))
        before, after = sessions_in(target), [(0, "a", 3), (0, "b", 1)]
        windows, result = sessions((5, "a"), (0, "a")), sessions((0, "a", 3))
        if step is not None:
            monkeypatch.setattr(sink, "reached", at(step, _die))
        written = None
        with suppress(Died):
            written = run(sink, result, replace(attempt(), replaced=windows))
        assert sessions_in(target) in (before, after), "readers see a part of a batch"
        found = self._replacing(target).committed(attempt(2))
        if found is None and written is None:
            run(self._replacing(target), result, replace(attempt(2), replaced=windows))
        elif found is not None:
            self._replacing(target).publish(found.written.location, batch_time=TIME)
        assert sessions_in(target) == after
        if sink.commits:
            late = error_of(
                AttemptOutdatedError,
                lambda: self._replacing(target).write(result, replace(attempt(), replaced=windows)),
            )
            assert late is not None
        for number, rows in ((3, result), (4, sessions((0, "a", 4), (2, "a", 4)))):
            run(self._replacing(target), rows, replace(attempt(number), replaced=windows))
            assert sessions_in(target) == (after if number == 3 else [(0, "a", 4), (0, "b", 1), (2, "a", 4)])
        # What a later batch does not replace stays, also of a window that it does.
        run(sink, sessions((2, "a", 5)), replace(attempt(time=LATER), replaced=sessions((2, "a"))))
        assert sessions_in(target) == [(0, "a", 4), (0, "b", 1), (2, "a", 5)]

    def test_a_replay_deletes_no_row_of_a_newer_batch(self, target: SinkTarget, sessions: Sessions) -> None:
        sink = self._replacing(target)
        windows = sessions((0,))
        run(sink, sessions((0, "old", 1)), attempt(time=EARLIER))
        run(sink, sessions((0, "a", 1), (0, "b", 1)), replace(attempt(), replaced=windows))
        run(sink, sessions((0, "b", 2), (0, "c", 2)), replace(attempt(time=LATER), replaced=windows))
        assert sessions_in(target) == [(0, "b", 2), (0, "c", 2)]
        run(sink, sessions((0, "b", 9)), replace(attempt(2), replaced=windows))
        assert sessions_in(target) == [(0, "b", 2), (0, "c", 2)]

    def test_a_replay_forward_takes_the_place_of_rows_that_its_later_batches_had(
        self, target: SinkTarget, sessions: Sessions
    ) -> None:
        sink = self._replacing(target)
        run(sink, sessions((0, "a", 1), (1, "a", 1)), attempt())
        run(sink, sessions((0, "a", 2), (2, "a", 2), (3, "a", 2)), attempt(time=NEXT))
        # A batch after those of the replay: its rows stay.
        run(sink, sessions((3, "a", 3)), attempt(time=LATER))
        for number in (2, 3):
            forward = replace(attempt(number), overrides_to=NEXT)
            run(self._replacing(target), sessions((0, "a", 8), (3, "a", 8)), forward)
            assert sessions_in(target) == [(0, "a", 8), (2, "a", 2), (3, "a", 3)]
        run(sink, sessions((4, "a", 9)), replace(attempt(2, time=NEXT), overrides_to=NEXT))
        assert sessions_in(target) == [(0, "a", 8), (3, "a", 3), (4, "a", 9)]
        # Its rows are of its batch, whatever they took the place of.
        run(sink, sessions((0, "a", 7)), replace(attempt(3, time=NEXT), overrides_to=NEXT))
        run(sink, sessions((0, "a", 6), (5, "a", 6)), attempt(4))
        assert sessions_in(target) == [(0, "a", 7), (3, "a", 3), (5, "a", 6)]

    def test_a_replay_forward_replaces_windows_that_its_later_batches_had(
        self, target: SinkTarget, sessions: Sessions
    ) -> None:
        sink = self._replacing(target)
        windows = sessions((0,))
        run(sink, sessions((0, "a", 1), (0, "b", 1)), replace(attempt(), replaced=windows))
        run(sink, sessions((0, "a", 2), (0, "c", 2), (5, "c", 2)), replace(attempt(time=NEXT), replaced=windows))
        run(sink, sessions((0, "d", 3)), attempt(time=LATER))
        for number in (2, 3):
            forward = replace(attempt(number), replaced=windows, overrides_to=NEXT)
            run(self._replacing(target), sessions((0, "a", 8), (0, "d", 8)), forward)
            assert sessions_in(target) == [(0, "a", 8), (0, "d", 3), (5, "c", 2)]
        run(sink, sessions((0, "e", 9)), replace(attempt(2, time=NEXT), replaced=windows, overrides_to=NEXT))
        assert sessions_in(target) == [(0, "d", 3), (0, "e", 9)]

    def test_a_null_in_a_window_is_the_same_as_a_null(self, target: SinkTarget, sessions: Sessions) -> None:
        sink = self._replacing(target)
        run(sink, sessions((0, "a", 1), (5, "a", 1)), attempt(time=EARLIER))
        # Many refuse the row, because no other row has a key that is null.
        kept = error_of(Exception, lambda: run(sink, sessions((0, None, 1), (5, None, 1)), attempt())) is None
        nulls = [(0, None, 1), (5, None, 1)] if kept else []
        assert sessions_in(target) == sorted([(0, "a", 1), (5, "a", 1), *nulls], key=_nulls_last)
        run(sink, sessions((7, "b", 1)), replace(attempt(time=LATER), replaced=sessions((0, None), (None, "a"))))
        left = [row for row in nulls if row[0] == 5]
        assert sessions_in(target) == sorted([(0, "a", 1), (5, "a", 1), (7, "b", 1), *left], key=_nulls_last)

    def _replacing(self, target: SinkTarget) -> Sink:
        sink = target.merging(["start", "user"])
        if sink is None or not sink.replaces(["start"]):
            pytest.skip("the sink replaces no windows")
        return sink

    def _exactly_once(self, target: SinkTarget) -> Sink:
        sink = target.sink()
        if sink.guarantee is not DeliveryGuarantee.EXACTLY_ONCE:
            pytest.skip("the sink is not exactly once")
        return sink

    def _with_commits(self, target: SinkTarget) -> Sink:
        sink = self._exactly_once(target)
        if not sink.commits:
            pytest.skip("the driver log decides, and not the target")
        return sink


class Died(BaseException):
    """Stand for SIGKILL: no sink catches it."""


def _die() -> None:
    raise Died


def at(step: Step, then: Callable[[], None]) -> Callable[[Step], None]:
    """Return a function for `Sink.reached` that calls `then` when a step is reached first."""
    waits = True

    def reached(now: Step) -> None:
        nonlocal waits
        if waits and now is step:
            waits = False
            then()

    return reached


def attempt(number: int = 1, *, time: datetime = TIME, output: str = "counts", pipeline_id: int = 7) -> OutputAttempt:
    """Return an attempt of which the driver log knows the earlier ones."""
    runs = {earlier: f"run{earlier}" for earlier in range(1, number + 1)}
    return OutputAttempt("words", pipeline_id, output, time, number, f"run{number}", runs)


def run(sink: Sink, frame: DataFrame, to: OutputAttempt) -> Written:
    """Write and publish an attempt, as a batch's run does."""
    written = sink.write(frame, to)
    sink.publish(written.location, batch_time=to.batch_time)
    return written


def error_of(kind: type[Exception], call: Callable[[], object]) -> Exception | None:
    """Return the error of this kind that a call raises; None if it returns."""
    try:
        call()
    except kind as error:
        return error
    return None


def words_in(target: SinkTarget) -> list[tuple[Any, Any]]:
    """Return the rows of words and numbers that readers see, in order, nulls last."""
    return sorted([(row["word"], row["n"]) for row in target.read()], key=_nulls_last)


def sessions_in(target: SinkTarget) -> list[tuple[Any, ...]]:
    """Return the rows of `start` in minutes, `user` and `n` that readers see, in order, nulls last."""
    rows = [((row["start"] - TIME) / _MINUTE, row["user"], row["n"]) for row in target.read()]
    return sorted(rows, key=_nulls_last)


def _nulls_last(row: Sequence[Any]) -> list[tuple[bool, Any]]:
    return [(one is None, one) for one in row]


def plain(value: Any) -> Any:  # noqa: ANN401  any value of a column
    """Return a value so that equal ones are equal: NaN and the sign of zero by their text, maps sorted."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else (value, math.copysign(1, value))
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return sorted((key, plain(one)) for key, one in value.items())
    return value

"""Run the conformance suite of sinks in this repository: on the shared Spark, with more names, mostly without Spark."""

from __future__ import annotations

import contextlib
import json
import tempfile
from abc import abstractmethod
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from pyspark.sql.types import (
    ArrayType,
    DateType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from forebay.testing.edge_values import FAR_DAYS, FAR_MICROSECONDS, NAMES
from forebay.testing.sinks import (
    LATER,
    TIME,
    Died,
    Frames,
    SinkConformance,
    SinkTarget,
    _die,
    at,
    attempt,
    error_of,
    plain,
    run,
    words_in,
)
from orchestration.declarations.sink import SinkError, Step
from orchestration.sinks.refused_rows import RefusedRowsError
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark, words
from tests.support.searches import examples
from tests.support.sinks.any_results import any_result
from tests.support.sinks.arrow_target import ArrowTarget, times_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from orchestration.declarations.sink import OutputAttempt, Sink, Written

# A text with a byte of Latin-1, as Python escapes it, and as messages do.
_BAD, _SHOWN = "Gr\udcfcn", "Gr\\xfcn"
AnyResult = tuple["StructType", list[tuple[Any, ...]], bool]


class SinkSuite(SinkConformance):
    """Give the suite what tests here have. A sink's steps run many times, and only values need a Spark."""

    #: Characters that a text of the target can't have, so that their rows are refused, as `repr` writes them.
    refused_text: ClassVar[Sequence[str]] = ()
    #: What errors say of types that the target refuses and others take.
    refuses: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def new_target(self, folder: Path) -> SinkTarget:
        """Return a new target, in a folder or named after it."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> SinkTarget:
        return self.new_target(tmp_path)

    @pytest.fixture
    def spark(self, session: SparkSession) -> SparkSession:
        return session

    @pytest.fixture
    def frames(self) -> Frames:
        return lambda rows, schema: cast(
            "DataFrame", FrameWithoutSpark(list(rows[::2]), list(rows[1::2]), schema=schema)
        )

    def refused_rows(self, folder: Path) -> list[str]:
        """Return the words of the refused rows that count."""
        texts = [file.read_text() for file in folder.rglob("_refused_rows/*.jsonl")]
        lines = [json.loads(line) for text in texts for line in text.splitlines()]
        assert all("column word is 'Gr\\\\xfcn'" in line["reason"] for line in lines)
        return sorted(f"{line['refused_row']['word']} {line['refused_row']['n']}" for line in lines)

    @pytest.mark.parametrize("step", [None, *Step])
    def test_refused_rows_belong_to_the_commit_of_their_attempt(
        self, target: SinkTarget, tmp_path: Path, step: Step | None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def keeping() -> Any:  # noqa: ANN401  sinks of several kinds
            sink: Any = target.sink()
            sink.on_bad_rows = "dead_letter"
            return sink

        def write(sink: Sink, frame: DataFrame, to: OutputAttempt) -> Written | None:
            with contextlib.suppress(Died):
                written = sink.write(frame, to)
                sink.publish(written.location, batch_time=to.batch_time)
                return written
            return None

        assert run(keeping(), words((_BAD, 0)), attempt(time=LATER)).refused == 1
        rows = words(("a", 1), (_BAD, 2), ("b", 3), (_BAD, 4))
        dying = keeping()
        if step is not None:
            monkeypatch.setattr(dying, "reached", at(step, _die))
        written = write(dying, rows, attempt())
        found = keeping().committed(attempt(2))
        if written is None and found is None:
            assert self.refused_rows(tmp_path) == [f"{_SHOWN} 0"]
            written = keeping().write(rows, attempt(2))
        elif found is not None:
            written = found.written
        assert written is not None
        assert (written.rows, written.refused) == (2, 2)
        # What the commit says counts, also if the declaration has changed since.
        for sink in (target.sink(), keeping()):
            sink.publish(written.location, batch_time=TIME)
            assert words_in(target) == [("a", 1), ("b", 3)]
            assert self.refused_rows(tmp_path) == [f"{_SHOWN} {n}" for n in (0, 2, 4)]
        run(keeping(), words((_BAD, 5)), attempt(3))
        assert (words_in(target), self.refused_rows(tmp_path)) == ([], [f"{_SHOWN} {n}" for n in (0, 5)])
        # Declared otherwise, a replay replaces them too.
        run(target.sink(), words(("c", 1)), attempt(4))
        assert (words_in(target), self.refused_rows(tmp_path)) == ([("c", 1)], [f"{_SHOWN} 0"])

    @pytest.mark.usefixtures("spark")
    def test_other_readers_have_the_names(self, target: SinkTarget, frames: Frames) -> None:
        def schema_of(names: Iterable[str]) -> StructType:
            return StructType([StructField(name, StringType()) for name in names])

        sink = target.sink()
        kept = [
            name for name in NAMES if error_of(SinkError, partial(sink.check_columns, schema_of([name]), "x")) is None
        ]
        names = list({name.lower(): name for name in kept}.values())
        run(sink, frames([tuple(names)], schema_of(names)), attempt())
        for reader, read in {"read": target.read, **target.readers()}.items():
            [row] = read()
            assert [row.get(name) for name in names] == names, reader

    def test_times_that_python_lacks_are_kept_or_their_rows_refused(
        self,
        target: Any,  # noqa: ANN401  those of this repository
        frames: Frames,
    ) -> None:
        names = {"day": DateType(), "moment": TimestampType(), "local": TimestampNTZType()}
        schema = StructType().add("id", LongType())
        for name, kind in names.items():
            schema = schema.add(name, kind).add(f"{name}s", ArrayType(kind))
        rows = [
            (at, *(value for one in (day, moment, moment) for value in (one, [one, None])))
            for at, (day, moment) in enumerate(zip(FAR_DAYS, FAR_MICROSECONDS, strict=True))
        ]
        sink: Any = target.sink()
        sink.on_bad_rows = "dead_letter"
        written = run(sink, frames(rows, schema), attempt())
        found = target.numbers(schema)
        assert found == [row for row in rows if row[0] in {kept[0] for kept in found}]
        assert len(found) == written.rows
        assert written.refused == len(rows) - len(found)
        assert written.refused == 0 or self.refused_text or self.refuses
        for file in target.files() if isinstance(target, ArrowTarget) else []:
            assert times_in(file) == {("INT64", "microseconds", of_utc) for of_utc in (True, False)}

    @pytest.mark.search
    @settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
    @given(result=any_result())
    @example(
        result=(StructType().add("a", ArrayType(MapType(StringType(), TimestampNTZType()))), [([[("k", None)]],)], True)
    )
    def test_any_result_is_kept_or_refused(self, frames: Frames, result: AnyResult) -> None:
        """Write it twice, and replay the first: what is read is what was written, or a refusal came before a row."""
        schema, rows, is_plain = result
        with tempfile.TemporaryDirectory() as folder:
            target = self.new_target(Path(folder))
            sink = target.sink()
            refused = error_of(Exception, lambda: run(sink, frames(rows, schema), attempt()))
            if refused is not None:
                said = str(refused)
                if isinstance(refused, RefusedRowsError):
                    assert any(character in repr(rows) for character in self.refused_text)
                elif isinstance(refused, SinkError):
                    assert not is_plain or any(reason in said for reason in self.refuses)
                    # Else `forebay validate` would find it in the first batch only.
                    assert error_of(SinkError, lambda: target.sink().check_columns(schema, "counts")) is not None
                else:
                    raise refused
                assert any(repr(name)[1:-1] in said or name in said for name in schema.names)
                assert list(target.read()) == []
                return
            sink.check_columns(schema, "counts")
            run(sink, frames(rows[:1], schema), attempt(time=LATER))
            run(target.sink(), frames(rows, schema), attempt(2))
            kinds = {field.name: field.dataType for field in schema.fields}
            expected = [
                {
                    name: plain(target.stored(value, kind))
                    for (name, kind), value in zip(kinds.items(), row, strict=True)
                }
                for row in [*rows, *rows[:1]]
            ]
            found = [{name: plain(row.get(name)) for name in kinds} for row in target.read()]
            assert sorted(found, key=repr) == sorted(expected, key=repr)

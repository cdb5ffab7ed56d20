"""Run the conformance suite of sinks in this repository: on the shared Spark, with more names, mostly without Spark."""

from __future__ import annotations

import contextlib
import json
import tempfile
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from forebay.testing.edge_values import NAMES
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
    run,
    words_in,
)
from orchestration.declarations.sink import Step
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark, words
from tests.support.searches import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from orchestration.declarations.sink import OutputAttempt, Sink, Written

# A text with a byte of Latin-1, as Python escapes it, and as messages do.
_BAD, _SHOWN = "Gr\udcfcn", "Gr\\xfcn"
ANY_NAMES = st.lists(st.sampled_from(NAMES) | st.text(max_size=5), min_size=1, max_size=3)


class SinkSuite(SinkConformance):
    """Give the suite what tests here have. A sink's steps run many times, and only values need a Spark."""

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

    @pytest.mark.search
    @settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
    @given(names=ANY_NAMES, nested=st.booleans())
    @example(names=["cpu %"], nested=False)
    def test_any_names_are_kept_or_refused(self, frames: Frames, names: Sequence[str], *, nested: bool) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.check_names(self.new_target(Path(folder)), frames, names, nested=nested)

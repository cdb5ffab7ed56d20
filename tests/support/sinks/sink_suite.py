"""Run the conformance suite of sinks in this repository: on the shared Spark, with more names, mostly without Spark."""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from forebay.testing.edge_values import NAMES
from forebay.testing.sinks import Frames, SinkConformance, SinkTarget
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark
from tests.support.searches import examples

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

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

    @pytest.mark.search
    @settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
    @given(names=ANY_NAMES)
    @example(["cpu %"])
    def test_any_names_are_kept_or_refused(self, frames: Frames, names: Sequence[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.check_names(self.new_target(Path(folder)), frames, names)

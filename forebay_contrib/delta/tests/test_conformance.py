"""Run the suites of sinks and of file-based tables on a Delta table, and what only Delta has."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from forebay_contrib.delta.tests.delta_target import DeltaTarget
from tests.integration.orchestration.frame_without_spark import words
from tests.integration.orchestration.target_database import TIME, attempt
from tests.support.sinks.file_table_suite import FileTableSuite

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark

LATER = TIME + timedelta(seconds=10)


class TestDeltaSink(FileTableSuite):
    extra = "delta"
    package = "deltalake"
    refuses = ("a timestamp_ntz within a map",)

    def new_target(self, folder: Path) -> DeltaTarget:
        return DeltaTarget(folder)

    def test_each_version_of_a_delta_table_has_whole_batches(self, target: DeltaTarget) -> None:
        sink = target.sink()
        sink.write(words(("a", 1), ("b", 2)), attempt())
        sink.write(words(("c", 3)), attempt(time=LATER))
        sink.write(words(("a", 9)), attempt(2))
        versions = [target.arrow(version) for version in (0, 1, 2)]
        assert [sorted((row["word"], row["n"]) for row in found.to_pylist()) for found in versions if found] == [
            [("a", 1), ("b", 2)],
            [("a", 1), ("b", 2), ("c", 3)],
            [("a", 9), ("c", 3)],
        ]

    def test_a_replay_finds_its_rows_in_files_that_were_compacted(self, target: DeltaTarget) -> None:
        sink = target.sink()
        sink.write(words(("a", 1), ("b", 2)), attempt())
        sink.write(words(("c", 3)), attempt(time=LATER))
        target.table.optimize.compact()
        assert len(target.table.file_uris()) == 1
        sink.write(words(("a", 9)), attempt(2))
        assert target.rows() == [("a", 9), ("c", 3)]
        assert target.table.transaction_version(attempt().application_id) == 2

"""Run the suite of sinks on directories of Parquet files, and on a table in Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forebay import ParquetSink
from forebay.testing.sinks import SinkTarget
from tests.support.sinks.postgres_target import PostgresTarget
from tests.support.sinks.sink_suite import SinkSuite

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.orchestration.target_database import Target

pytestmark = pytest.mark.spark


class ParquetTarget(SinkTarget):
    """A directory of Parquet files."""

    def __init__(self, path: Path, *, compact: bool) -> None:
        self._path, self._compact = path, compact

    def sink(self) -> ParquetSink:
        return ParquetSink(self._path, compact=self._compact)

    def read(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        if any(self._path.glob("date=*")):
            found = self.sink().dataset().to_table().to_pylist()
        return found


class TestParquetSink(SinkSuite):
    compact = False

    def new_target(self, folder: Path) -> ParquetTarget:
        return ParquetTarget(folder / "files", compact=self.compact)


class TestCompactedParquetSink(TestParquetSink):
    compact = True


class TestPostgresSink(SinkSuite):
    @pytest.fixture(autouse=True)
    def target(self, target: Target, tmp_path: Path) -> SinkTarget:
        self._database = target
        return self.new_target(tmp_path)

    def new_target(self, folder: Path) -> PostgresTarget:
        return PostgresTarget(self._database)

    def refused_rows(self, folder: Path) -> list[str]:
        del folder
        if self._database.rows("SELECT to_regclass('forebay_refused_rows')") == [(None,)]:
            return []
        kept = "SELECT (refused_row::json ->> 'word') || ' ' || (refused_row::json ->> 'n') FROM forebay_refused_rows"
        return [row for (row,) in self._database.rows(f"{kept} ORDER BY 1")]

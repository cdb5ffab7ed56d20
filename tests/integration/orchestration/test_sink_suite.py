"""Run the suite of sinks on directories of Parquet files, and on a table in Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forebay import ParquetSink
from tests.support.sinks.arrow_target import ArrowTarget
from tests.support.sinks.postgres_target import PostgresTarget
from tests.support.sinks.sink_suite import SinkSuite

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pyarrow as pa

    from forebay.testing.sinks import SinkTarget
    from tests.integration.orchestration.target_database import Target

pytestmark = pytest.mark.spark


class ParquetTarget(ArrowTarget):
    """A directory of Parquet files."""

    def __init__(self, path: Path, *, compact: bool) -> None:
        self._path, self._compact = path, compact

    def sink(self) -> ParquetSink:
        return ParquetSink(self._path, compact=self._compact)

    def arrow(self) -> pa.Table | None:
        return self.sink().dataset().to_table() if any(self._path.glob("date=*")) else None

    def readers(self) -> dict[str, Callable[[], list[dict[str, Any]]]]:
        """Return none for a directory whose files are as another's."""
        return {} if self._compact else super().readers()

    def files(self) -> list[str]:
        found: list[str] = self.sink().dataset().files
        return found


class TestParquetSink(SinkSuite):
    compact = False

    def new_target(self, folder: Path) -> ParquetTarget:
        return ParquetTarget(folder / "files", compact=self.compact)


class TestCompactedParquetSink(TestParquetSink):
    compact = True


class TestPostgresSink(SinkSuite):
    refused_text = (r"\x00",)

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

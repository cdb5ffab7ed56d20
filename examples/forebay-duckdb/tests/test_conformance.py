"""Run Forebay's suite of sinks on a table in DuckDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import pytest
from forebay_duckdb import DuckDBSink

from forebay.testing.sinks import SinkConformance, SinkTarget

if TYPE_CHECKING:
    from pathlib import Path


class DuckDBTarget(SinkTarget):
    """A table in a new file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def sink(self) -> DuckDBSink:
        return DuckDBSink(self.path, "word counts")

    def read(self) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        with duckdb.connect(str(self.path)) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            try:
                found = connection.sql('FROM "word counts"').to_arrow_table()
            except duckdb.CatalogException:
                return []
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows


class TestDuckDBSink(SinkConformance):
    """The inherited tests."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> DuckDBTarget:
        return DuckDBTarget(tmp_path / "results.duckdb")

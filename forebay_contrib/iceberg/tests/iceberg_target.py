"""Provide an Iceberg table to test its sink on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyarrow import parquet
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from forebay import EnvVar, IcebergSink
from tests.support.sinks.file_table_suite import FileTableTarget

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest
    from pyiceberg.table import Table

TABLE = "shop.counts"


class IcebergTarget(FileTableTarget):
    """A table of the SQL catalog that CATALOG_URI names, and what its readers see."""

    location = TABLE

    def __init__(self, folder: Path) -> None:
        self.catalog: dict[str, Any] = {
            "type": "sql",
            "uri": EnvVar("CATALOG_URI"),
            "warehouse": f"file://{folder}/warehouse",
        }

    @property
    def table(self) -> Table:
        with load_catalog("forebay", **self.catalog | {"uri": self.catalog["uri"].resolve()}) as catalog:
            return catalog.load_table(TABLE)

    def sink(self) -> IcebergSink:
        return IcebergSink(TABLE, catalog=self.catalog)

    def read(self) -> list[dict[str, Any]]:
        try:
            table = self.table
        except NoSuchTableError:
            return []
        # Its own reader gives empty lists for null ones of structs, so that the files are read by another.
        return [
            row for task in table.scan().plan_files() for row in parquet.read_table(task.file.file_path).to_pylist()
        ]

    def commits(self) -> int:
        return len(self.table.snapshots())

    def mark(self) -> str:
        return self.table.metadata_location

    def changes_since(self, mark: str) -> int:
        log = [entry.metadata_file for entry in self.table.metadata.metadata_log]
        return len(log) - log.index(mark)

    def call_when_read(self, sink: IcebergSink, patch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
        real = sink._commit_to

        def commit_to(*arguments: Any, **options: Any) -> None:  # noqa: ANN401  as it was called
            then()
            real(*arguments, **options)

        patch.setattr(sink, "_commit_to", commit_to)

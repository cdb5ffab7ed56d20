"""Provide an Iceberg table to test its sink on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import parquet
from pyiceberg.exceptions import NoSuchTableError

from forebay import EnvVar, IcebergSink
from tests.support.sinks.file_table_suite import FileTableTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import pytest
    from pyiceberg.table import Table

    from tests.support.servers.s3 import S3Server

TABLE = "shop.counts"


class IcebergTarget(FileTableTarget):
    """Table of a catalog, by default of the SQL catalog that CATALOG_URI names, with what its readers see."""

    def __init__(
        self,
        folder: Path,
        catalog: dict[str, Any] | None = None,
        table: str = TABLE,
        **options: Any,  # noqa: ANN401  a sink's own
    ) -> None:
        self.folder = folder
        self.location = table
        self.catalog: dict[str, Any] = catalog or {
            "type": "sql",
            "uri": EnvVar("CATALOG_URI"),
            "warehouse": f"file://{folder}/warehouse",
        }
        self.options = options

    @property
    def table(self) -> Table:
        sink = self.sink()
        with sink._connect("the test") as catalog:
            table: Table | None = sink._catalog.table(catalog, self.location, "the test")
        if table is None:
            raise NoSuchTableError(self.location)
        return table

    def sink(self) -> IcebergSink:
        return IcebergSink(self.location, catalog=self.catalog, **self.options)

    def merging(self, key: Sequence[str]) -> IcebergSink:
        return IcebergSink(self.location, catalog=self.catalog, **self.options, mode="merge", key=key)

    def arrow(self) -> pa.Table | None:
        try:
            table = self.table
        except NoSuchTableError:
            return None
        found = []
        # Its own reader gives empty lists for null ones of structs, so that the files are read by another.
        for file in self.files():
            with table.io.new_input(file).open() as stream:
                found.append(parquet.read_table(stream))
        return pa.concat_tables(found, promote_options="permissive") if found else None

    def files(self) -> list[str]:
        return [task.file.file_path for task in self.table.scan().plan_files()]

    def readers(self) -> dict[str, Callable[[], list[dict[str, Any]]]]:
        by_path = super().readers() if self.table.location().startswith("file:") else {}
        return {**by_path, "pyiceberg": self._by_pyiceberg}

    def _by_pyiceberg(self) -> list[dict[str, Any]]:
        """Leave out lists of structs, of which it reads null ones as empty."""
        names = [
            field.name for field in self.table.schema().fields if not str(field.field_type).startswith("list<struct")
        ]
        rows: list[dict[str, Any]] = self.table.scan(selected_fields=tuple(names)).to_arrow().to_pylist()
        return rows

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


def files_on(server: S3Server) -> dict[str, str]:
    """Return a catalog's properties of a store, whose secrets are in the environment."""
    return {
        "s3.endpoint": f"http://127.0.0.1:{server.port}",
        "s3.access-key-id": "env:S3_KEY",
        "s3.secret-access-key": "env:S3_SECRET",
        "s3.region": "us-east-1",
    }

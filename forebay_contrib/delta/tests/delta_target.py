"""Provide a Delta table to test its sink on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from forebay import DeltaSink
from tests.support.sinks.file_table_suite import FileTableTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pytest

    from receiver_runtime.sources.fields.secret import Secret


class DeltaTarget(FileTableTarget):
    """A Delta table, and what its readers see."""

    #: Those of the object store, for its reader, and as they are declared.
    options: dict[str, str] | None = None
    declared: Mapping[str, str | Secret] | None = None

    def __init__(self, folder: Path) -> None:
        self.location = str(folder / "counts")

    @property
    def table(self) -> DeltaTable:
        return DeltaTable(self.location, storage_options=self.options)

    def sink(self) -> DeltaSink:
        return DeltaSink(self.location, storage_options=self.declared)

    def merging(self, key: Sequence[str]) -> DeltaSink:
        return DeltaSink(self.location, storage_options=self.declared, mode="merge", key=key)

    def arrow(self, version: int | None = None) -> pa.Table | None:
        if not DeltaTable.is_deltatable(self.location, self.options):
            return None
        return DeltaTable(self.location, version=version, storage_options=self.options).to_pyarrow_table()

    def files(self) -> list[str]:
        return self.table.file_uris()

    def readers(self) -> dict[str, Callable[[], list[dict[str, Any]]]]:
        return {**super().readers(), "DataFusion": self._by_datafusion}

    def _by_datafusion(self) -> list[dict[str, Any]]:
        found = QueryBuilder().register("counts", self.table).execute("SELECT * FROM counts")
        rows: list[dict[str, Any]] = pa.table(found).to_pylist()
        return rows

    def commits(self) -> int:
        return self.table.version() + 1

    def mark(self) -> int:
        return self.commits()

    def changes_since(self, mark: int) -> int:
        return self.commits() - mark

    def call_when_read(self, sink: DeltaSink, patch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
        real = sink._table

        def table(where: str) -> Any:  # noqa: ANN401  as the sink has it
            found = real(where)
            then()
            return found

        patch.setattr(sink, "_table", table)

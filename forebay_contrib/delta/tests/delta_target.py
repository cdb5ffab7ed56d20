"""Provide a Delta table to test its sink on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable

from forebay import DeltaSink
from tests.support.sinks.file_table_suite import FileTableTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
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

    def read(self, version: int | None = None) -> list[dict[str, Any]]:
        if not DeltaTable.is_deltatable(self.location, self.options):
            return []
        table = DeltaTable(self.location, version=version, storage_options=self.options)
        found: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist()
        return found

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

"""Run the suites of sinks and of file-based tables on an Iceberg table, and what only Iceberg has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay import DeclarationError, IcebergSink
from forebay_contrib.iceberg.tests.iceberg_target import TABLE, IcebergTarget
from tests.support.sinks.file_table_suite import FileTableSuite

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark


class TestIcebergSink(FileTableSuite):
    extra = "iceberg"
    package = "pyiceberg.catalog"

    @pytest.fixture(autouse=True)
    def _catalog(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._environment = monkeypatch

    def new_target(self, folder: Path) -> IcebergTarget:
        self._environment.setenv("CATALOG_URI", f"sqlite:///{folder}/catalog.db")
        return IcebergTarget(folder)

    def test_a_literal_secret_of_the_catalog_is_refused_and_not_shown(self, target: IcebergTarget) -> None:
        for properties in (
            {"uri": "postgresql://me:hunter2@db/catalog"},
            {"s3.secret-access-key": "hunter2"},
            {"token": "hunter2"},
        ):
            with pytest.raises(DeclarationError, match=r'holds a secret.*"env:NAME"') as raised:
                IcebergSink(TABLE, catalog=properties)
            assert "hunter2" not in str(raised.value)
        assert target.sink().declaration()["properties"]["uri"] == "env:CATALOG_URI"

"""Run the suites of sinks and of file-based tables on Iceberg tables: in a directory, partitioned, on S3, by REST."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pytest

from forebay_contrib.iceberg.tests.iceberg_target import IcebergTarget, files_on
from tests.support.servers.iceberg_catalog import IcebergCatalogServer
from tests.support.servers.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from tests.support.sinks.file_table_suite import FileTableSuite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class _Suite(FileTableSuite):
    extra = "iceberg"
    package = "pyiceberg.catalog"

    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.environment = monkeypatch
        monkeypatch.setenv("S3_KEY", ACCESS_KEY)
        monkeypatch.setenv("S3_SECRET", SECRET_KEY)

    def sql_target(self, folder: Path, **options: Any) -> IcebergTarget:  # noqa: ANN401  a target's own
        self.environment.setenv("CATALOG_URI", f"sqlite:///{folder}/catalog.db")
        return IcebergTarget(folder, **options)


class _WithoutSpark(_Suite):
    """What values and names a table keeps, does not depend on where it lies."""

    test_any_names_are_kept_or_refused: Any = None
    test_a_row_is_kept_or_refused_with_its_column_and_then_nothing_changes: Any = None
    test_an_odd_type_is_kept_or_refused_with_its_column: Any = None
    test_the_types_that_it_refuses_are_refused_with_their_column: Any = None
    test_values_are_read_back_as_they_were: Any = None


@pytest.mark.spark
class TestIcebergSink(_Suite):
    def new_target(self, folder: Path) -> IcebergTarget:
        return self.sql_target(folder)


class TestPartitioned(_WithoutSpark):
    def new_target(self, folder: Path) -> IcebergTarget:
        return self.sql_target(folder, partition_by=["hour(_batch_time)", "bucket(4, _batch_time)"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    made = S3Server(tmp_path_factory.mktemp("s3"))
    made.start()
    yield made
    made.kill()


class _OnS3(_WithoutSpark):
    @pytest.fixture(autouse=True)
    def _server(self, server: S3Server) -> None:
        self.server = server
        self.prefix = f"t{secrets.token_hex(4)}"

    def refused_rows(self, folder: Path) -> list[str]:
        """Return those in the server's own directory."""
        del folder
        return super().refused_rows(self.server.objects / self.prefix)


@pytest.mark.s3
@pytest.mark.spark
class TestOnS3(_OnS3):
    def new_target(self, folder: Path) -> IcebergTarget:
        self.environment.setenv("CATALOG_URI", f"sqlite:///{folder}/catalog.db")
        warehouse = {"type": "sql", "uri": "env:CATALOG_URI", "warehouse": f"s3://{BUCKET}/{self.prefix}"}
        return IcebergTarget(folder, {**warehouse, **files_on(self.server)}, partition_by=["bucket(4, _batch_time)"])

    # Spark's tasks are given the partitions, the store and its secrets.
    test_values_are_read_back_as_they_were = _Suite.test_values_are_read_back_as_they_were


@pytest.fixture(scope="module")
def catalog(server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergCatalogServer]:
    made = IcebergCatalogServer(
        tmp_path_factory.mktemp("catalog"),
        {
            "warehouse": f"s3://{BUCKET}",
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "s3.endpoint": f"http://127.0.0.1:{server.port}",
            "s3.path-style-access": "true",
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "client.region": "us-east-1",
        },
    )
    made.start()
    yield made
    made.kill()


@pytest.mark.catalogs
class TestByRest(_OnS3):
    @pytest.fixture(autouse=True)
    def _catalog(self, catalog: IcebergCatalogServer) -> None:
        self.catalog = catalog

    def new_target(self, folder: Path) -> IcebergTarget:
        properties = {"type": "rest", "uri": self.catalog.uri, **files_on(self.server)}
        return IcebergTarget(folder, properties, f"{self.prefix}.counts", partition_by=["day(_batch_time)"])

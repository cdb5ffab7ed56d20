"""Run the suites of sinks and of file-based tables on Iceberg tables: local, partitioned, on S3 and Azure, by REST."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from forebay_contrib.iceberg.tests.iceberg_target import IcebergTarget, files_on
from tests.integration.orchestration.frame_without_spark import FrameWithoutSpark, words
from tests.integration.orchestration.target_database import attempt
from tests.support.servers.azurite import ACCOUNT, CONTAINER, AzuriteServer
from tests.support.servers.iceberg_catalog import IcebergCatalogServer
from tests.support.servers.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from tests.support.sinks.file_table_suite import LATER, FileTableSuite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame


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
    """Leave out tests of values and names: which ones a table keeps does not depend on where it lies."""

    test_any_result_is_kept_or_refused: Any = None
    test_a_row_is_kept_or_refused_with_its_column_and_then_nothing_changes: Any = None
    test_an_odd_type_is_kept_or_refused_with_its_column: Any = None
    test_the_types_that_it_refuses_are_refused_with_their_column: Any = None
    test_other_readers_have_the_names: Any = None
    test_times_that_python_lacks_are_kept_or_their_rows_refused: Any = None
    test_values_are_read_back_as_they_were: Any = None


@pytest.mark.spark
class TestIcebergSink(_Suite):
    def new_target(self, folder: Path) -> IcebergTarget:
        return self.sql_target(folder)


class TestPartitioned(_WithoutSpark):
    # No step depends on partitions.
    test_windows_that_merge_are_replaced_whatever_dies: Any = None

    def new_target(self, folder: Path) -> IcebergTarget:
        return self.sql_target(folder, partition_by=["hour(_batch_time)", "bucket(4, _batch_time)"])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    made = S3Server(tmp_path_factory.mktemp("s3"))
    made.start()
    yield made
    made.kill()


class _OnStore(_WithoutSpark):
    server: S3Server | AzuriteServer

    @pytest.fixture(autouse=True)
    def _prefix(self) -> None:
        self.prefix = f"t{secrets.token_hex(4)}"

    def refused_rows(self, folder: Path) -> list[str]:
        """Return those on the server."""
        del folder
        return super().refused_rows(self.server.folder(self.prefix))

    def target_at(self, folder: Path, warehouse: str, files: dict[str, str]) -> IcebergTarget:
        """Return a table of the SQL catalog whose files are on the server."""
        self.environment.setenv("CATALOG_URI", f"sqlite:///{folder}/catalog.db")
        catalog = {"type": "sql", "uri": "env:CATALOG_URI", "warehouse": f"{warehouse}/{self.prefix}", **files}
        return IcebergTarget(folder, catalog, partition_by=["bucket(4, _batch_time)"])


class _OnS3(_OnStore):
    server: S3Server

    @pytest.fixture(autouse=True)
    def _server(self, server: S3Server) -> None:
        self.server = server


@pytest.mark.s3
@pytest.mark.spark
class TestOnS3(_OnS3):
    def new_target(self, folder: Path) -> IcebergTarget:
        return self.target_at(folder, f"s3://{BUCKET}", files_on(self.server))

    # Spark's tasks are given the partitions, the store and its secrets.
    test_values_are_read_back_as_they_were = _Suite.test_values_are_read_back_as_they_were


@pytest.mark.s3
@pytest.mark.azure
@pytest.mark.spark
class TestOnAzure(_OnStore):
    """On Azure's blobs, by adlfs, which pyiceberg takes for abfss:// if nothing else is said."""

    server: AzuriteServer

    @pytest.fixture(autouse=True)
    def _server(self, azurite: AzuriteServer) -> None:
        self.server = azurite

    def new_target(self, folder: Path) -> IcebergTarget:
        self.environment.setenv("AZURE_CONNECTION", self.server.connection)
        warehouse = f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net"
        return self.target_at(folder, warehouse, {"adls.connection-string": "env:AZURE_CONNECTION"})

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

    def test_a_batch_merges_changes_columns_and_replaces(self, target: IcebergTarget) -> None:
        """Check that a real catalog takes each kind of commit: of rows, of columns and of the table's properties."""
        merging = IcebergTarget(target.folder, target.catalog, target.location, mode="merge", key="word")
        merging.sink().write(words(("a", 1), ("b", 1)), attempt(time=LATER))
        merging.sink().write(words(("a", 0), ("c", 0)), attempt())
        assert merging.rows() == [("a", 1), ("b", 1), ("c", 0)]
        with_more = StructType().add("word", StringType()).add("n", LongType()).add("more", StringType())
        more = cast("DataFrame", FrameWithoutSpark([("c", 2, "new")], schema=with_more))
        merging.sink().write(more, attempt(2, time=LATER))
        assert merging.rows() == [("c", 2)]
        assert [row["more"] for row in merging.read()] == ["new"]
        replacing = IcebergTarget(target.folder, target.catalog, target.location, mode="overwrite")
        replacing.sink().write(words(("z", 9)), attempt(time=LATER + timedelta(seconds=10)))
        replacing.sink().write(words(("y", 9)), attempt(2))
        assert replacing.rows() == [("z", 9)]

"""Run the suite of file-based tables on a Delta table on servers of S3 and Azure, and what only a store has."""

from __future__ import annotations

import base64
import threading
from abc import abstractmethod
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StringType

from forebay import DeltaSink, EnvVar
from forebay_contrib.delta.tests.delta_target import DeltaTarget
from forebay_contrib.delta.tests.test_conformance import TestDeltaSink as DeltaSuite
from forebay_contrib.delta.tests.test_modes import WORD, N, frame
from orchestration.declarations.sink import TargetUnavailableError
from tests.integration.orchestration.frame_without_spark import words
from tests.integration.orchestration.target_database import TIME, attempt
from tests.integration.s3.test_s3 import running  # noqa: F401  a fixture
from tests.support.servers.azurite import ACCOUNT, CONTAINER, KEY, AzuriteServer
from tests.support.servers.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

pytestmark = [pytest.mark.s3, pytest.mark.spark]

_SECRET = "DELTA_TEST_SECRET"


class DeltaOnStore(DeltaTarget):
    """A table whose store has one secret, which its declaration takes from the environment."""

    def __init__(self, location: str, plain: dict[str, str], key: str, secret: str) -> None:
        self.location = location
        self.secret = key
        self.value = secret
        self.options = {**plain, key: secret}
        self.declared = {**plain, key: EnvVar(_SECRET)}

    def readers(self) -> dict[str, Callable[[], list[dict[str, Any]]]]:
        """Return deltalake's own: Spark and DuckDB would need clients of the store."""
        return {"DataFusion": self._by_datafusion}


class _OnObjectStore(DeltaSuite):
    """Run the suite on a server, which `table_at` of a subclass describes."""

    server: S3Server | AzuriteServer
    wrong_secret = "wrong-and-secret"

    @abstractmethod
    def table_at(self, prefix: str) -> DeltaOnStore:
        """Return the table at a prefix of the server."""

    @pytest.fixture(autouse=True)
    def _environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.environment = monkeypatch

    def new_target(self, folder: Path) -> DeltaOnStore:
        target = self.table_at(f"delta/{folder.name}")
        self.environment.setenv(_SECRET, target.value)
        return target

    def refused_rows(self, folder: Path) -> list[str]:
        return super().refused_rows(self.server.folder(f"delta/{folder.name}"))

    def test_a_check_leaves_nothing_and_makes_no_table(self, target: DeltaTarget) -> None:
        assert target.sink().check_target(words(("a", 1)).schema).health == "ok"
        assert not DeltaTable.is_deltatable(target.location, target.options)
        folder = self.server.folder(f"delta/{target.location.rpartition('/')[2]}")
        assert [path for path in folder.rglob("*") if path.is_file()] == []

    def test_a_wrong_secret_holds_the_batch_up_and_is_not_shown(
        self, target: DeltaOnStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(_SECRET, self.wrong_secret)
        with pytest.raises(TargetUnavailableError, match=f"Delta table {target.location} can't be reached") as refused:
            target.sink().write(words(("a", 1)), attempt())
        assert self.wrong_secret not in str(refused.value)
        checked = target.sink().check_target()
        assert checked.health == "failed"
        assert self.wrong_secret not in checked.found
        monkeypatch.delenv(_SECRET)
        with pytest.raises(TargetUnavailableError, match=_SECRET):
            target.sink().write(words(("a", 1)), attempt())

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({}, [("a", 3), ("b", 2), ("old", 0)]),
            ({"partition_by": "word"}, [("a", 3), ("b", 2), ("old", 0)]),
            ({"mode": "merge", "key": "word"}, [("a", 3), ("b", 2), ("old", 0)]),
            ({"mode": "overwrite"}, [("b", 2)]),
        ],
    )
    def test_a_mode_and_a_column_that_comes_later(
        self, target: DeltaTarget, options: dict[str, Any], expected: list[tuple[str, int]]
    ) -> None:
        sink = DeltaSink(target.location, storage_options=target.declared, **options)
        sink.write(words(("old", 0)), attempt(time=TIME - timedelta(seconds=10)))
        sink.write(words(("a", 1)), attempt())
        target.table.optimize.compact()
        extra = ("extra", StringType())
        sink.write(frame([("b", 2, "x")], WORD, N, extra), attempt(time=TIME + timedelta(seconds=10)))
        sink.write(words(("a", 3)), attempt(2))
        assert target.rows() == expected
        assert [row["extra"] for row in target.read() if row["word"] == "b"] == ["x"]

    @pytest.mark.core
    def test_two_batches_that_are_committed_at_once_are_both_kept(
        self, target: DeltaOnStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Check what a put without a condition would break: both writers have read the same version."""
        target.sink().write(words(("old", 0)), attempt(time=TIME - timedelta(seconds=10)))
        both = threading.Barrier(2)

        def write(word: str, time: datetime) -> None:
            sink, reads = target.sink(), iter(range(100))

            def meet() -> None:
                # It reads the table when it begins, and again before it commits.
                if next(reads) <= 1:
                    both.wait(60)

            target.call_when_read(sink, monkeypatch, meet)
            sink.write(words((word, 1)), attempt(time=time))

        with ThreadPoolExecutor(2) as pool:
            times = [TIME, TIME + timedelta(seconds=10)]
            for done in [pool.submit(write, word, time) for word, time in zip("ab", times, strict=True)]:
                done.result(120)
        assert target.rows() == [("a", 1), ("b", 1), ("old", 0)]
        assert target.commits() == 3

    def test_the_secrets_are_in_no_declaration(self, target: DeltaOnStore) -> None:
        declared = target.sink().declaration()
        assert declared["storage_options"][target.secret] == f"env:{_SECRET}"
        assert DeltaSink.place(declared).key == DeltaSink.place({"kind": "delta", "path": target.location + "/"}).key


class TestDeltaSinkOnS3(_OnObjectStore):
    @pytest.fixture(autouse=True)
    def _server(self, running: S3Server) -> None:  # noqa: F811
        if running._process is None:
            running.start()
        self.server = running

    def table_at(self, prefix: str) -> DeltaOnStore:
        self.environment.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        plain = {
            "aws_endpoint_url": f"http://127.0.0.1:{self.server.port}",
            "aws_allow_http": "true",
            "aws_region": "us-east-1",
        }
        return DeltaOnStore(f"s3://{BUCKET}/{prefix}", plain, "aws_secret_access_key", SECRET_KEY)


@pytest.mark.azure
class TestDeltaSinkOnAzure(_OnObjectStore):
    server: AzuriteServer
    wrong_secret = base64.b64encode(b"wrong-and-secret").decode()

    @pytest.fixture(autouse=True)
    def _server(self, azurite: AzuriteServer) -> None:
        self.server = azurite

    def table_at(self, prefix: str) -> DeltaOnStore:
        location = f"abfss://{CONTAINER}@{ACCOUNT}.dfs.core.windows.net/{prefix}"
        plain = {"azure_endpoint": self.server.endpoint, "allow_http": "true"}
        return DeltaOnStore(location, plain, "azure_storage_account_key", KEY)

"""Run the suite of file-based tables on a Delta table on a real S3 server, and what only an object store has."""

from __future__ import annotations

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
from tests.support.servers.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.s3, pytest.mark.spark]

_KEY, _SECRET = "DELTA_TEST_ACCESS_KEY", "DELTA_TEST_SECRET_KEY"


class DeltaOnS3(DeltaTarget):
    def __init__(self, server: S3Server, name: str) -> None:
        self.location = f"s3://{BUCKET}/delta/{name}"
        plain = {
            "aws_endpoint_url": f"http://127.0.0.1:{server.port}",
            "aws_allow_http": "true",
            "aws_region": "us-east-1",
        }
        self.options = {**plain, "aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
        self.declared = {**plain, "aws_access_key_id": EnvVar(_KEY), "aws_secret_access_key": EnvVar(_SECRET)}


class TestDeltaSinkOnS3(DeltaSuite):
    server: S3Server

    @pytest.fixture(autouse=True)
    def _server(self, running: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
        if running._process is None:
            running.start()
        monkeypatch.setenv(_KEY, ACCESS_KEY)
        monkeypatch.setenv(_SECRET, SECRET_KEY)
        self.server = running

    def new_target(self, folder: Path) -> DeltaOnS3:
        return DeltaOnS3(self.server, folder.name)

    def refused_rows(self, folder: Path) -> list[str]:
        # The server keeps objects as files.
        return super().refused_rows(self.server._directory / "objects" / BUCKET / "delta" / folder.name)

    def test_a_check_leaves_nothing_and_makes_no_table(self, target: DeltaTarget) -> None:
        assert target.sink().check_target(words(("a", 1)).schema).health == "ok"
        assert not DeltaTable.is_deltatable(target.location, target.options)
        folder = self.server._directory / "objects" / BUCKET / "delta" / target.location.rpartition("/")[2]
        assert [path for path in folder.rglob("*") if path.is_file()] == []

    def test_a_wrong_secret_holds_the_batch_up_and_is_not_shown(
        self, target: DeltaTarget, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(_SECRET, "wrong-and-secret")
        with pytest.raises(TargetUnavailableError, match=f"Delta table {target.location} can't be reached") as refused:
            target.sink().write(words(("a", 1)), attempt())
        assert "wrong-and-secret" not in str(refused.value)
        checked = target.sink().check_target()
        assert checked.health == "failed"
        assert "wrong-and-secret" not in checked.found
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

    def test_the_secrets_are_in_no_declaration(self, target: DeltaTarget) -> None:
        declared = target.sink().declaration()
        assert declared["storage_options"]["aws_secret_access_key"] == f"env:{_SECRET}"
        assert DeltaSink.place(declared).key == DeltaSink.place({"kind": "delta", "path": target.location + "/"}).key

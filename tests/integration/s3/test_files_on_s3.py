"""Check that objects below a prefix of a real S3 server are read once each; `make s3`."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from forebay.testing.receiver_processes import eventually
from forebay.testing.sources import stop
from receiver_runtime.block_store.stores.objects import open_objects
from receiver_runtime.receivers.files.declaration import FileLines
from tests.conformance.source_rig import SourceRig
from tests.support.servers.s3 import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.s3, pytest.mark.core]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    made = S3Server(tmp_path / "s3")
    made.start()
    monkeypatch.setenv("TEST_ACCESS_KEY", ACCESS_KEY)
    monkeypatch.setenv("TEST_SECRET_KEY", SECRET_KEY)
    yield made
    made.kill()


def test_files_below_a_prefix_are_read_once_through_a_kill_and_an_outage(
    server: S3Server, database_url: str, tmp_path: Path
) -> None:
    filesystem, prefix = open_objects(server.url("incoming")).place("")
    sent: list[str] = []

    def store(name: str, data: bytes) -> None:
        # Without this, pyarrow would compress it again because of its name.
        with filesystem.open_output_stream(f"{prefix}/{name}", compression=None) as stream:
            stream.write(data)

    def put(name: str, lines: list[str], *, compressed: bool = False) -> None:
        data = "".join(f"{line}\n" for line in lines).encode()
        store(name, gzip.compress(data) if compressed else data)
        sent.extend(lines)

    source = FileLines(
        path=f"s3://{BUCKET}/incoming",
        min_age=0,
        poll_interval="200ms",
        options={
            "endpoint_override": f"127.0.0.1:{server.port}",
            "scheme": "http",
            "region": "us-east-1",
            "access_key": "env:TEST_ACCESS_KEY",
            "secret_key": "env:TEST_SECRET_KEY",
        },
    )
    put("a.txt", [f"of a {number}" for number in range(50_000)])
    put("deep/er/b.txt.gz", [f"of b {number}" for number in range(1000)], compressed=True)
    store("_SUCCESS", b"no line\n")
    # Reading all of it takes seconds: enough time to kill a receiver that has read a part.
    rig = SourceRig.make(database_url, tmp_path / "rig", source, max_block_bytes="128KiB", receiver_max_rate=10_000)
    try:
        process = rig.start()
        eventually(lambda: rig.registered() > 1000, "some of it")
        process.kill()
        process.wait(60)
        assert rig.registered() < len(sent)
        second = rig.start()
        eventually(lambda: rig.registered() == len(sent), "all of it")
        server.kill()
        eventually(lambda: rig.said("can't be listed"), "the outage")
        eventually(lambda: rig.reason().startswith("degraded: "), "a receiver that does not count as connected")
        assert "can't be listed" in rig.reason()
        server.start()
        put("c.txt", ["last"])
        eventually(lambda: rig.registered() == len(sent), "what came after it")
        eventually(lambda: not rig.reason().startswith("degraded: "), "a receiver that is connected")
        stop(second)
        rows = rig.rows()
        assert sorted(row["value"] for row in rows) == sorted(sent)
        assert {row["path"] for row in rows} == {
            f"s3://{BUCKET}/incoming/{name}" for name in ("a.txt", "deep/er/b.txt.gz", "c.txt")
        }
        assert rig.failed_checks() == []
    finally:
        rig.close()
        print(rig.logs()[-6000:])  # noqa: T201  shown if the test fails

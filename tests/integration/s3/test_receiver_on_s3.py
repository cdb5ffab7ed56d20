"""Test a real receiver process whose write-ahead log is on a real S3 server; `make s3`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forebay.testing.cutting_proxy import CuttingProxy, through
from tests.integration.receiver_runtime.killed_process import kill_and_take_over
from tests.integration.receiver_runtime.receiver_rig import NumberedSource, ReceiverRig
from tests.support.servers.s3 import S3Server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.s3, pytest.mark.core]


@pytest.fixture
def source() -> Iterator[NumberedSource]:
    made = NumberedSource()
    yield made
    made.close()


@pytest.fixture
def proxy(database_url: str) -> Iterator[tuple[CuttingProxy, str]]:
    made = CuttingProxy(database_url)
    yield made, through(database_url, made.port)
    made.close()


@pytest.mark.parametrize("replicas", ["s3", "s3 and a directory"])
def test_blocks_stored_on_s3_by_a_killed_process_come_out_once(
    database_url: str, tmp_path: Path, source: NumberedSource, proxy: tuple[CuttingProxy, str], replicas: str
) -> None:
    server = S3Server(tmp_path / "s3")
    server.start()
    rig = ReceiverRig.on_socket(database_url, tmp_path / "receiver", source.port, block_queue_size=5)
    rig.roots = server.url("log") if replicas == "s3" else f"{server.url('log')},{tmp_path / 'here'}"
    try:
        kill_and_take_over(rig, source, proxy)
    finally:
        rig.close()
        server.kill()

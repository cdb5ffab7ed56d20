"""A stream whose blocks a page's streaming query reads, and the environment of such a program."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forebay import Stream
from forebay.sources import SocketText
from orchestration.declarations.settings import Settings
from tests.support.driver_log.stored_lines import LineReceiver
from tracker_store.batches.pipelines import apply_stream
from tracker_store.connection.engine import connect
from tracker_store.receivers.receivers import placements

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

ROOT = Path(__file__).parents[3]


@pytest.fixture
def environment(database_url: str, tmp_path: Path) -> dict[str, str]:
    return {
        **os.environ,
        "FOREBAY_DATABASE_URL": database_url,
        "FOREBAY_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


@pytest.fixture
def lines(engine: sa.Engine, environment: dict[str, str]) -> Iterator[LineReceiver]:
    settings = Settings(home=Path(environment["FOREBAY_HOME"]))
    with connect(engine) as connection:
        stream = Stream("lines", SocketText(host="127.0.0.1", port=9999))
        apply_stream(connection, name="lines", declaration=stream.declaration(), receivers=1)
        [placement] = placements(connection)
        receiver = LineReceiver(connection, settings.block_store_roots, placement.receiver_id)
        yield receiver
        receiver.close()

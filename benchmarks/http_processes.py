"""Start and end the processes that the benchmarks of HTTP compare, and measure nothing.

They are a receiver of an ``Http`` source, and the bare application.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil
import sqlalchemy as sa

from orchestration.declarations.pipeline import Stream
from tracker_store.batches.pipelines import apply_stream
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from benchmarks.server import Server
    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.sources.records.declared import Records

_START_SECONDS = 60.0
_POLL_SECONDS = 0.05


@contextlib.contextmanager
def running_bare() -> Iterator[tuple[int, psutil.Process]]:
    """Run the bare application; yield its port and its process."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.http_bare"], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def running_receiver(
    server: Server, directory: Path, source: Http, records: Records | None = None
) -> Iterator[tuple[int, psutil.Process]]:
    """Run a receiver of a stream ``s``, as the agent starts it; yield its port and its process."""
    stream = Stream("s", source, records=records)
    with connect(server.engine) as connection:
        apply_stream(connection, name="s", declaration=stream.declaration(), receivers=1)
        receiver_id = connection.execute(
            sa.text("UPDATE forebay.receivers SET assignment = 1, state = 'SCHEDULED' RETURNING id")
        ).scalar_one()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    environment |= {
        "FOREBAY_HOME": str(directory),
        "FOREBAY_DATABASE_URL": server.url,
        "FOREBAY_BLOCK_STORE": str(directory / "blocks"),
    }
    with (directory / "receiver.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603  our own command
            [sys.executable, "-m", "forebay.cli", "receiver", "--receiver", f"{receiver_id}:1"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
        )
    try:
        yield _port(server, process), psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()
        assert process.stdin is not None
        process.stdin.close()


def _port(server: Server, process: subprocess.Popen[bytes]) -> int:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        [(reason,)] = server.execute("SELECT coalesce(reason, '') FROM forebay.receivers")
        if str(reason).startswith("listening on "):
            return int(str(reason).rpartition(":")[2])
        time.sleep(_POLL_SECONDS)
    raise RuntimeError("the receiver does not listen: see receiver.log")

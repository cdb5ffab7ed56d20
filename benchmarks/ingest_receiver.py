"""Forebay's side of `benchmarks.ingest`: a receiver process as the agent starts it, and what it registers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import sqlalchemy as sa

from receiver_runtime.receivers.sockets.text_declaration import SocketText
from receiver_runtime.sources.receiver_settings import ReceiverSettings
from tracker_store.batches.pipelines import apply_stream
from tracker_store.connection.engine import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.server import Server

_POLL_SECONDS = 0.01
_START_SECONDS = 180.0


@dataclass(frozen=True, slots=True)
class Ingested:
    """Hold the figures of one receiver while it was measured. CPU of its process in seconds; sizes in bytes."""

    records_per_second: float
    stored_bytes_per_record: float
    block_records: float
    cpu_per_million: float
    grown: int
    bound: int


class Receiver:
    """Run and measure a receiver of its own stream."""

    def __init__(
        self, server: Server, directory: Path, port: int, name: str, *, block_key: str | None = None, **settings: object
    ) -> None:
        """Declare the stream; `block_key` is a reference to the key that encrypts its blocks."""
        self._server = server
        self.block_key = block_key
        self._directory = directory
        self.stream = name
        checked = ReceiverSettings.model_validate(settings)
        self.bound = checked.block_queue_size * checked.max_block_bytes
        with connect(server.engine) as connection:
            source = SocketText(host="127.0.0.1", port=port).model_dump(mode="json")
            declaration = {"source": source, "settings": checked.to_row()}
            self.stream_id = apply_stream(connection, name=name, declaration=declaration, receivers=1)
            self.receiver_id = int(
                connection.execute(
                    sa.text(
                        "UPDATE forebay.receivers SET assignment = 1, state = 'SCHEDULED' WHERE stream_id = :stream "
                        "RETURNING id"
                    ),
                    {"stream": self.stream_id},
                ).scalar_one()
            )

    @property
    def block_store(self) -> Path:
        """Return the directory of its blocks."""
        return self._directory / self.stream

    def measure(self, *, warm_up: float, seconds: float) -> Ingested:
        """Run it, wait for the warm-up, and measure what it registers."""
        with self._running() as (process, idle):
            time.sleep(warm_up)
            first, cpu_before = self._newest(), _cpu(process)
            time.sleep(seconds)
            last, cpu_after = self._newest(), _cpu(process)
            grown = _peak(process) - idle
        records = last.total_records - first.total_records
        return Ingested(
            records_per_second=records / (last.added_at - first.added_at).total_seconds(),
            stored_bytes_per_record=(last.total_bytes - first.total_bytes) / records,
            block_records=records / (last.sequence - first.sequence),
            cpu_per_million=(cpu_after - cpu_before) / records * 1e6,
            grown=grown,
            bound=self.bound,
        )

    def receive(self, records: int) -> None:
        """Run it until this many records are registered."""
        with self._running():
            while self._newest().total_records < records:
                time.sleep(_POLL_SECONDS)

    @contextlib.contextmanager
    def _running(self) -> Iterator[tuple[psutil.Process, int]]:
        """Run the process; yield it at its first block, with its resident bytes after the claim and before any read."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        environment |= {
            "FOREBAY_HOME": str(self._directory),
            "FOREBAY_DATABASE_URL": self._server.url,
            "FOREBAY_BLOCK_STORE": str(self.block_store),
        }
        if self.block_key is not None:
            environment["FOREBAY_BLOCK_KEY"] = self.block_key
        log_path = self._directory / f"{self.stream}.log"
        with log_path.open("wb") as log:
            popen = subprocess.Popen(  # noqa: S603  our own command
                [sys.executable, "-m", "forebay.cli", "receiver", "--receiver", f"{self.receiver_id}:1"],
                cwd=Path(__file__).parents[1],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )
        try:
            process = psutil.Process(popen.pid)
            deadline = time.monotonic() + _START_SECONDS
            idle = 0
            while not (newest := self._newest()).total_records:
                if popen.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"the receiver registered nothing:\n{log_path.read_text()}")
                if newest.sequence == 0 or not idle:
                    idle = process.memory_info().rss
                time.sleep(_POLL_SECONDS)
            yield process, idle
        finally:
            popen.terminate()
            popen.wait()
            if popen.stdin is not None:
                popen.stdin.close()

    def _newest(self) -> Any:  # noqa: ANN401  a row
        with connect(self._server.engine) as connection:
            row = connection.execute(
                sa.text(
                    "SELECT sequence, added_at, total_records, total_bytes FROM forebay.blocks "
                    "WHERE receiver_id = :receiver ORDER BY sequence DESC LIMIT 1"
                ),
                {"receiver": self.receiver_id},
            ).one_or_none()
        return row or _Nothing()


@dataclass(frozen=True, slots=True)
class _Nothing:
    sequence: int = 0
    total_records: int = 0


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _peak(process: psutil.Process) -> int:
    """Return the most bytes that were ever resident (Linux; elsewhere what is resident now)."""
    for line in Path(f"/proc/{process.pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return int(process.memory_info().rss)

"""A system left alone for an hour at a short interval: does a batch cost at the end what it cost at the beginning?

Run as ``python -m benchmarks.soak [--minutes N] [--interval 2s] [--rate RECORDS_PER_SECOND]``, or ``make soak``.
Everything is real: `forebay up` as its users run it, with its batch driver and its maintenance, and lines from a
socket. It prints each minute's batches as they come, and in the end compares the first and the last ten minutes (or
thirds of a shorter run): time per batch, how late batches are launched and started, and the size of database and logs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from benchmarks.forebay_process import await_start, start_forebay_up
from tracker_store.embedded_postgres import EmbeddedPostgres
from tracker_store.engine import connect, create_engine
from tracker_store.errors import DriverLogError

if TYPE_CHECKING:
    from collections.abc import Sequence

_START_SECONDS = 300.0
_SAMPLE_SECONDS = 60.0
_WINDOW_SECONDS = 600.0
_PAUSE_SECONDS = 0.05
# Not counted, because it is no steady state: Spark warms up.
_WARM_UP_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Batch:
    """A finished batch with records; times are in seconds from its boundary.

    `launch`: seconds from when it could run (its boundary has passed, the batch before is done) to its launch.
    """

    at: float
    launch: float | None
    launched: float | None
    started: float
    done: float

    @property
    def ended(self) -> float:
        """Return when it was done, in seconds since 1970."""
        return self.at + self.done

    @property
    def processing(self) -> float:
        """Return the seconds from its start to its end."""
        return self.done - self.started


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes at one moment: bytes stored, number of Dagster's runs, and the age of the newest boundary in seconds."""

    at: float
    database: int
    files: int
    runs: int
    late: float


def main() -> None:
    """Run it and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how many minutes to run after the start")
    parser.add_argument("--interval", default="2s", help="the batch interval")
    parser.add_argument("--rate", type=int, default=500, help="records per second")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="forebay-soak-", ignore_cleanup_errors=True) as directory:
        home = Path(directory)
        # The embedded server runs as another user, which must be able to enter the directory.
        home.chmod(0o755)
        batches, sizes = _soak(home, arguments.minutes * 60, arguments.interval, arguments.rate)
    _print(batches, sizes)


def _soak(home: Path, seconds: float, interval: str, rate: int) -> tuple[list[Batch], list[Size]]:
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve, args=(listener, rate), name="source", daemon=True).start()
    settings = {
        "BATCH_LATENCY_INTERVAL": interval,
        "BATCH_LATENCY_OUTPUT": str(home / "output"),
        "BATCH_LATENCY_PORT": str(listener.getsockname()[1]),
        "FOREBAY_HOME": str(home),
        "FOREBAY_SPARK_MASTER": "local[2]",
    }
    log = home / "up.log"
    up = start_forebay_up("benchmarks.batch_latency_pipeline", log, settings)
    sizes: list[Size] = []
    try:
        await_start(up, log, _START_SECONDS)
        engine = create_engine(EmbeddedPostgres(home / "postgres").url(), application_name="soak")
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(_SAMPLE_SECONDS, left))
            if (size := _size(engine, home)) is not None:
                sizes.append(size)
                _say(engine, size)
        with connect(engine) as connection:
            batches = _batches(connection)
        engine.dispose()
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(120)
        listener.close()
    return batches, sizes


def _serve(listener: socket.socket, rate: int) -> None:
    line = b"key%d ".ljust(99, b"-") + b"\n"
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        begun, sent = time.monotonic(), 0
        try:
            while True:
                due = int((time.monotonic() - begun) * rate)
                connection.sendall(b"".join(line % (number % 1_000) for number in range(sent, due)))
                sent = due
                time.sleep(_PAUSE_SECONDS)
        except OSError:
            connection.close()


def _batches(connection: sa.Connection) -> list[Batch]:
    rows = connection.execute(
        sa.text(
            "SELECT extract(epoch FROM b.batch_time)::float8 AS at, "
            "extract(epoch FROM b.launched_at - greatest(b.batch_time, before.done))::float8 AS launch, "
            "extract(epoch FROM b.launched_at - b.batch_time)::float8 AS launched, "
            "extract(epoch FROM a.started_at - b.batch_time)::float8 AS started, "
            "extract(epoch FROM b.completed_at - b.batch_time)::float8 AS done "
            "FROM forebay.batches b JOIN forebay.batch_attempts a USING (pipeline_id, batch_time, attempt) "
            "CROSS JOIN LATERAL (SELECT max(o.completed_at) AS done FROM forebay.batches o "
            "  WHERE o.pipeline_id = b.pipeline_id AND o.batch_time < b.batch_time "
            "  AND o.batch_time > b.batch_time - interval '1 hour') AS before "
            "WHERE b.state = 'COMPLETED' AND b.records > 0 AND a.state = 'SUCCEEDED' ORDER BY b.batch_time"
        )
    )
    return [Batch(row.at, row.launch, row.launched, row.started, row.done) for row in rows]


def _size(engine: sa.Engine, home: Path) -> Size | None:
    files = _bytes_below(home / "dagster")
    try:
        with connect(engine) as connection:
            row = connection.execute(
                sa.text(
                    "SELECT pg_database_size(current_database()) AS database, "
                    "(SELECT count(*) FROM dagster.runs) AS runs, "
                    "(SELECT extract(epoch FROM clock_timestamp() - max(last_batch_time))::float8 "
                    " FROM forebay.pipelines) AS late"
                )
            ).one()
    except DriverLogError as error:
        print(f"the driver log did not answer: {error}", file=sys.stderr)  # noqa: T201
        return None
    return Size(time.time(), row.database, files, row.runs, row.late)


def _bytes_below(folder: Path) -> int:
    """Return the size of all files; files that the maintenance deletes meanwhile are not counted."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += (Path(parent) / name).stat().st_size
    return size


def _say(engine: sa.Engine, size: Size) -> None:
    with connect(engine) as connection:
        newest = [batch for batch in _batches(connection) if batch.ended > size.at - _SAMPLE_SECONDS]
    done = f"{statistics.median(batch.done for batch in newest):.2f} s" if newest else "-"
    print(  # noqa: T201
        f"{time.strftime('%H:%M:%S')}  {len(newest)} batches, boundary to done {done} (median); "
        f"database {size.database / 1e6:.1f} MB, Dagster's files {size.files / 1e6:.2f} MB, {size.runs} runs; "
        f"the newest boundary in hand is {size.late:.1f} s old",
        flush=True,
    )


def _print(batches: Sequence[Batch], sizes: Sequence[Size]) -> None:
    if not batches or not sizes:
        print("no batch was completed")  # noqa: T201
        return
    end = batches[-1].ended
    begun = batches[0].ended + min(_WARM_UP_SECONDS, (end - batches[0].ended) / 4)
    window = min(_WINDOW_SECONDS, (end - begun) / 3)
    print(f"{'':34}{'first':>12}{'last':>12}   ({window / 60:.1f} minutes each, after the warm-up)")  # noqa: T201
    first = [batch for batch in batches if begun <= batch.ended < begun + window]
    last = [batch for batch in batches if batch.ended > end - window]
    titles = {
        "launch": "could run to launched",
        "launched": "boundary to launched",
        "started": "boundary to started",
        "processing": "started to done",
        "done": "boundary to done",
    }
    for title, what in titles.items():
        for name, of in (("median", statistics.median), ("p95", _p95)):
            cells = [[value for b in part if (value := getattr(b, title)) is not None] for part in (first, last)]
            print(f"{f'{what}, {name}':34}" + "".join(f"{of(c):>10.3f} s" if c else f"{'-':>12}" for c in cells))  # noqa: T201
    print(f"{'batches':34}{len(first):>12}{len(last):>12}")  # noqa: T201
    for title, part in (("database", "database"), ("Dagster's files", "files")):
        for name, of_window in (("at the beginning", _first_of), ("at the end", _last_of)):
            cells = [
                getattr(of_window([s for s in sizes if low <= s.at <= high] or list(sizes)), part) / 1e6
                for low, high in ((begun, begun + window), (end - window, time.time()))
            ]
            print(f"{f'{title}, {name}':34}" + "".join(f"{cell:>9.2f} MB" for cell in cells))  # noqa: T201


def _first_of(sizes: list[Size]) -> Size:
    return sizes[0]


def _last_of(sizes: list[Size]) -> Size:
    return sizes[-1]


def _p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


if __name__ == "__main__":
    main()

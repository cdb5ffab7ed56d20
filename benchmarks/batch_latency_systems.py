"""Run the two systems of `benchmarks.batch_latency`, as users run them: `forebay up` and Spark Streaming."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from benchmarks.forebay_process import await_start, start_forebay_up
from tracker_store.connection.engine import connect, create_engine
from tracker_store.connection.errors import DriverLogError
from tracker_store.server.embedded_postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_ROOT = Path(__file__).parents[1]
START_SECONDS = 300.0


@contextmanager
def place() -> Iterator[Path]:
    """Make a directory for one system, and delete it afterwards."""
    with tempfile.TemporaryDirectory(prefix="forebay-latency-", ignore_cleanup_errors=True) as directory:
        # The embedded server runs as another user, which must be able to enter the directory.
        Path(directory).chmod(0o755)
        yield Path(directory)


@contextmanager
def forebay_up(directory: Path, port: int, *, interval: int, drivers: int) -> Iterator[sa.Engine]:
    """Run `forebay up` with the pipeline of the benchmark, below `directory`; yield its driver log once it has started.

    The result is in `directory/output`. Raises TimeoutError if it does not start within five minutes.
    """
    log = directory / "up.log"
    settings = {
        "BATCH_LATENCY_INTERVAL": f"{interval}s",
        "BATCH_LATENCY_OUTPUT": str(directory / "output"),
        "BATCH_LATENCY_PORT": str(port),
        "FOREBAY_BATCH_DRIVERS": str(drivers),
        "FOREBAY_HOME": str(directory),
        "FOREBAY_SPARK_MASTER": "local[2]",
    }
    up = start_forebay_up("benchmarks.batch_latency_pipeline", log, settings)
    try:
        await_start(up, log, START_SECONDS)
        engine = create_engine(EmbeddedPostgres(directory / "postgres").url(), application_name="benchmark")
        yield engine
        engine.dispose()
    finally:
        up.send_signal(signal.SIGINT)
        up.wait(120)


def rows(engine: sa.Engine, statement: str) -> Sequence[sa.Row[tuple[object, ...]]]:
    """Return the rows of a question to the driver log; none while it can't be reached."""
    try:
        with connect(engine) as connection:
            return connection.execute(sa.text(statement)).all()
    except DriverLogError:
        return []


@contextmanager
def spark_streaming(directory: Path, port: int, *, interval: int) -> Iterator[Iterator[tuple[float, float]]]:
    """Run Spark Streaming with the same batches; yield an iterator of each batch's time and that of its output.

    The result is in `directory/output`. The iterator raises RuntimeError if Spark ends.
    """
    order = {"port": port, "directory": str(directory), "interval": interval}
    with (directory / "spark.log").open("wb") as log:
        spark = subprocess.Popen(  # noqa: S603  this package
            [sys.executable, "-m", "benchmarks.batch_latency_spark", json.dumps(order)],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield _written(spark, directory / "spark.log")
    finally:
        spark.kill()
        spark.wait()


def _written(spark: subprocess.Popen[str], log: Path) -> Iterator[tuple[float, float]]:
    assert spark.stdout is not None
    for line in spark.stdout:
        if line.startswith("{"):
            said = json.loads(line)
            yield said["batch_time"], said["written"]
    raise RuntimeError(f"Spark Streaming ended:\n{log.read_text(encoding='utf-8')[-4000:]}")


def until(predicate: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
    """Wait until `predicate` is true. Raises TimeoutError."""
    deadline = time.monotonic() + seconds
    while not predicate():
        if time.monotonic() > deadline:
            raise TimeoutError(f"this did not happen within {seconds:g} s: {what}")
        time.sleep(0.5)

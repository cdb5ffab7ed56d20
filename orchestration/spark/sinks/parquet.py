"""Parquet files by batch time, each batch once.

Layout below PATH: every attempt has an immutable directory `_attempts/TIME/attempt=N/` (hidden to Spark and Arrow,
which pass over names that begin with `_` or `.`); the committed one is published as
`date=YYYY-MM-DD/hour=HH/batch_time=TIME/`, by hard links into a hidden directory and one rename. An attempt that was
not committed is never published, so a zombie's is never seen.
"""

from __future__ import annotations

import os
import shutil
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orchestration.spark.sinks.sink import Guarantee, Sink, Written

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame

    from orchestration.spark.sinks.sink import OutputAttempt

ATTEMPTS = "_attempts"


def batch_directory(batch_time: datetime) -> str:
    """`date=…/hour=…/batch_time=…` in UTC, without colons; microseconds only where there are any."""
    return f"{batch_time.astimezone(UTC):date=%Y-%m-%d/hour=%H}/batch_time={batch_stamp(batch_time)}"


def batch_stamp(batch_time: datetime) -> str:
    """The batch time in UTC as a file's name has it."""
    time = batch_time.astimezone(UTC)
    return time.strftime("%Y%m%dT%H%M%S") + (f".{time.microsecond:06d}" if time.microsecond else "") + "Z"


class ParquetSink(Sink):
    """Writes an output as Parquet under `path`, partitioned by date, hour and batch time. Exactly once."""

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE

    def __init__(self, path: str | Path) -> None:
        """`path` is a directory; a relative one counts from the working directory of `forebay apply`."""
        self.path = Path(path).absolute()

    def declaration(self) -> dict[str, Any]:
        """What `forebay apply` writes of it."""
        return {"kind": "parquet", "path": str(self.path)}

    def write(self, result: DataFrame, attempt: OutputAttempt) -> Written:
        """Write to the attempt's own directory; every file and directory is synced on return."""
        directory = self.path / ATTEMPTS / batch_stamp(attempt.batch_time) / f"attempt={attempt.attempt}"
        # What an attempt of this number left behind was never committed: numbers are given out once.
        shutil.rmtree(directory, ignore_errors=True)
        # Hadoop's paths are not percent-encoded, so this is no `as_uri()`.
        result.write.parquet(f"file:{directory}")
        files = _data_files(directory)
        for file in files:
            _sync(file)
        for made in (directory, *directory.parents):
            _sync(made)
            if made == self.path:
                break
        return Written(str(directory), sum(_rows(file) for file in files))

    def publish(self, location: str, *, batch_time: datetime) -> None:
        """Link the files of `location` into place: readers see the former result, or this one, whole."""
        source = Path(location)
        target = self.path / batch_directory(batch_time)
        names = [file.name for file in _data_files(source)]
        if target.is_dir() and sorted(names) == sorted(entry.name for entry in target.iterdir()):
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.with_name(f".{target.name}.{source.name}")
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir()
        for name in names:
            os.link(source / name, staged / name)
        _sync(staged)
        replaced = target.with_name(f".{target.name}.replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        if target.exists():
            target.rename(replaced)
        staged.rename(target)
        _sync(target.parent)
        shutil.rmtree(replaced, ignore_errors=True)


def _data_files(directory: Path) -> list[Path]:
    return sorted(file for file in directory.iterdir() if file.name[0] not in "_." and file.suffix == ".parquet")


def _rows(file: Path) -> int:
    import pyarrow.parquet as pq  # noqa: PLC0415  declaring a sink needs no Arrow

    rows: int = pq.read_metadata(file).num_rows
    return rows


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Make an archive of the Java classes that Spark loads: a JVM that starts from it needs about half the time.

Most of the time to start Spark is for loading and verifying about 20,000 classes. Java can keep them in a file (class
data sharing) and map that file into later JVMs, and into several at the same time. The file belongs to one Java and one
Spark: a different JVM notices that, ignores the file, and starts normally. So an archive is never wrong, only missing.

Run as ``python -m orchestration.spark.session.class_archive``, it makes the archive in FOREBAY_HOME/spark, at the
lowest priority and in a process of its own; the agent starts it once its batch drivers have been ready for a while. No
process may wait for it or depend on it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from orchestration.declarations.settings import Settings
from orchestration.spark.session.class_archive_file import archive_file
from orchestration.spark.session.java import find_java_home
from orchestration.spark.session.session_configuration import JAVA_OPTIONS, JAVA_OPTIONS_KEY, session_configuration

if TYPE_CHECKING:
    from collections.abc import Iterator

# The nice value of the process that makes the archive.
LOWEST_PRIORITY = 19
# Free space below which no archive is made: it has about 200 MB, and must not fill the disk.
LEAST_FREE_BYTES = 2 * 1024**3
# How long the JVM may take to end, at the lowest priority on a busy machine; then it is killed without an archive.
JVM_END_SECONDS = 600.0
_PATTERN = "classes-*.jsa"
_UNFINISHED = "making-"

log = structlog.get_logger(__name__)


def options_to_make(file: Path) -> str:
    """Return the Java options that write an archive at the JVM's end, without a line for each class left out."""
    return f"-XX:ArchiveClassesAtExit={file} -Xlog:cds=error"


def make(settings: Settings) -> Path | None:
    """Make the archive unless it exists; return it, or None if it could not be made. Takes minutes."""
    if session_configuration(settings).get(JAVA_OPTIONS_KEY) != JAVA_OPTIONS:
        log.info("no archive of Spark's classes: the JVM is a Connect server's, or has options of yours")
        return None
    directory = settings.home.absolute() / "spark"
    file = archive_file(directory, find_java_home(settings.home.absolute() / "java"))
    directory.mkdir(parents=True, exist_ok=True)
    with _only_maker(directory) as is_only:
        if file.exists() or not is_only:
            return file if file.exists() else None
        if (free := shutil.disk_usage(directory).free) < LEAST_FREE_BYTES:
            log.warning("no archive of Spark's classes: the disk is too full", free_bytes=free)
            return None
        for left in directory.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=directory) as unfinished:
            made = Path(unfinished) / file.name
            _run_spark(settings, made)
            if not made.exists():
                log.warning("this Java has made no archive of Spark's classes")
                return None
            with made.open("rb") as written:
                os.fsync(written.fileno())
            made.replace(file)
        # Archives of an earlier Java or PySpark. A running JVM keeps its deleted archive open.
        for other in directory.glob(_PATTERN):
            if other != file:
                other.unlink(missing_ok=True)
    log.info("made the archive of Spark's classes", file=str(file), bytes=file.stat().st_size)
    return file


def _run_spark(settings: Settings, archive: Path) -> None:
    """Do what a first batch does, so that its classes are loaded, and end the JVM normally, so that it writes them."""
    from pyspark import SparkContext  # noqa: PLC0415  as above

    from orchestration.declarations.modules import load_pipelines  # noqa: PLC0415
    from orchestration.spark.session.session import spark_session  # noqa: PLC0415
    from orchestration.spark.session.warm_up import warm_up  # noqa: PLC0415

    session = spark_session(
        settings,
        application="forebay class archive",
        configuration={JAVA_OPTIONS_KEY: f"{JAVA_OPTIONS} {options_to_make(archive)}", "spark.master": "local[1]"},
    )
    if settings.database_url is not None:
        warm_up(session, settings, load_pipelines(settings.require_module()))
    with tempfile.TemporaryDirectory(prefix="forebay-warm-") as directory:
        frame = session.createDataFrame([(number, str(number)) for number in range(100)], "number int, text string")
        frame.groupBy("text").count().write.parquet(f"{directory}/counts")
        session.read.parquet(f"{directory}/counts").collect()
    session.stop()
    gateway: Any = SparkContext._gateway  # noqa: SLF001  PySpark has no other way to the JVM that it started
    gateway.shutdown()
    # The JVM ends when its standard input is closed.
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(JVM_END_SECONDS)
    finally:
        gateway.proc.kill()


@contextlib.contextmanager
def _only_maker(directory: Path) -> Iterator[bool]:
    """Yield True if no other process is making an archive in this directory; hold a lock for that."""
    with (directory / "classes.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _end_with_parent() -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            continue
    # The parent has ended. The JVM ends too, because this process's exit closes its standard input.
    os._exit(1)


def main() -> None:
    """Make the archive for this home."""
    os.nice(LOWEST_PRIORITY)
    threading.Thread(target=_end_with_parent, name="parent pipe", daemon=True).start()
    make(Settings())


if __name__ == "__main__":
    main()

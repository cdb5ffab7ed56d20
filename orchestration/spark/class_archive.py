"""An archive of the Java classes that Spark loads: a JVM that starts from it needs about half the time.

Starting Spark is mostly the loading and checking of some twenty thousand classes. Java can keep them in a file (class
data sharing) and map that file into the next JVM, and into all of them at once. The file belongs to one Java and one
Spark: a JVM that is another compares, does not use it, and starts as without it. So it is never wrong, only missing.

Run as ``python -m orchestration.spark.class_archive``, it makes the archive in FOREBAY_HOME/spark, at the lowest
priority and in a process of its own; the agent does that once its batch drivers have been ready for a while. It must
never be waited for, and nothing may depend on it.
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

from orchestration.java import find_java_home
from orchestration.settings import Settings
from orchestration.spark.class_archive_file import archive_file
from orchestration.spark.session_configuration import JAVA_OPTIONS, JAVA_OPTIONS_KEY, session_configuration

if TYPE_CHECKING:
    from collections.abc import Iterator

LOWEST_PRIORITY = 19
# An archive has about 200 MB; it must not be what fills a disk.
LEAST_FREE_BYTES = 2 * 1024**3
# With the lowest priority on a busy machine; then the JVM is killed, and there is no archive.
JVM_END_SECONDS = 600.0
_PATTERN = "classes-*.jsa"
_UNFINISHED = "making-"

log = structlog.get_logger(__name__)


def options_to_make(file: Path) -> str:
    """Return Java's options to write an archive at the JVM's end."""
    return f"-XX:ArchiveClassesAtExit={file}"


def make(settings: Settings) -> Path | None:
    """Make the archive unless it is there; return it, or None where there is none afterwards. Takes minutes."""
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
        # Of an earlier Java or PySpark. A JVM that runs from one keeps it as long as it needs it.
        for other in directory.glob(_PATTERN):
            if other != file:
                other.unlink(missing_ok=True)
    log.info("made the archive of Spark's classes", file=str(file), bytes=file.stat().st_size)
    return file


def _run_spark(settings: Settings, archive: Path) -> None:
    """Do what the first batch does, so that its classes are loaded, and end the JVM in order: then it writes them."""
    from pyspark import SparkContext  # noqa: PLC0415  as above

    from orchestration.modules import load_pipelines  # noqa: PLC0415
    from orchestration.run_launcher.warm_up import warm_up  # noqa: PLC0415
    from orchestration.spark.session import spark_session  # noqa: PLC0415

    session = spark_session(
        settings,
        application="forebay class archive",
        configuration={JAVA_OPTIONS_KEY: f"{JAVA_OPTIONS} {options_to_make(archive)}", "spark.master": "local[1]"},
    )
    if settings.database_url is not None:
        warm_up(session, settings, load_pipelines(settings.module))
    with tempfile.TemporaryDirectory(prefix="forebay-warm-") as directory:
        frame = session.createDataFrame([(number, str(number)) for number in range(100)], "number int, text string")
        frame.groupBy("text").count().write.parquet(f"{directory}/counts")
        session.read.parquet(f"{directory}/counts").collect()
    session.stop()
    gateway: Any = SparkContext._gateway  # noqa: SLF001  PySpark has no other way to the JVM that it started
    gateway.shutdown()
    # The JVM ends with its standard input.
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(JVM_END_SECONDS)
    finally:
        gateway.proc.kill()


@contextlib.contextmanager
def _only_maker(directory: Path) -> Iterator[bool]:
    """Whether nobody else makes one in this directory meanwhile."""
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
    # The JVM ends with the end of its standard input.
    os._exit(1)


def main() -> None:
    """Make the archive for this home."""
    os.nice(LOWEST_PRIORITY)
    threading.Thread(target=_end_with_parent, name="parent pipe", daemon=True).start()
    make(Settings())


if __name__ == "__main__":
    main()

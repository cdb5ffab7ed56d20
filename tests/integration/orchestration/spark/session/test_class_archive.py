"""Test the archive of Spark's classes: when a JVM starts from it, and which process makes it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from orchestration.declarations.settings import Settings
from orchestration.spark.session import class_archive
from orchestration.spark.session.class_archive import make
from orchestration.spark.session.class_archive_file import archive_file, options_to_use
from orchestration.spark.session.java import find_java_home
from tests.support.commands.run_program import run_program
from tests.support.machine.state_directory import state_directory
from tests.support.spark.class_archive import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

# A session as batches have it; prints whether its JVM has mapped the file, and fails unless Spark works.
_SESSION = """
import sys
from pathlib import Path
from pyspark import SparkContext
from orchestration.declarations.settings import Settings
from orchestration.spark.session.session import spark_session

session = spark_session(Settings(), application="tests")
assert session.range(10).count() == 10
maps = Path(f"/proc/{SparkContext._gateway.proc.pid}/maps").read_text()
print("mapped" if sys.argv[1] in maps else "not mapped")
"""


@pytest.fixture
def home() -> Iterator[Path]:
    with state_directory() as made:
        yield made


@pytest.fixture(autouse=True)
def without_the_archive_of_the_test_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def test_there_are_no_options_without_an_archive_or_for_a_name_that_java_would_split(tmp_path: Path) -> None:
    archive = tmp_path / "classes.jsa"
    assert options_to_use(archive) == ""
    archive.touch()
    assert f"-XX:SharedArchiveFile={archive}" in options_to_use(archive).split()
    for name in ("with space.jsa", "with:colon.jsa", 'with"quote.jsa'):
        odd = tmp_path / name
        odd.touch()
        assert options_to_use(odd) == ""


def test_another_java_has_another_archive(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for directory in (one, other):
        directory.mkdir()
    before = archive_file(tmp_path, one)
    assert archive_file(tmp_path, one) == before
    assert archive_file(tmp_path, other) != before
    (one / "release").write_text('JAVA_VERSION="99"')
    assert archive_file(tmp_path, one) != before, "it was upgraded in its place"


def test_another_spark_has_another_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check this because Java refuses an archive whose jars have changed: under the same name, it always would."""
    jar = tmp_path / "spark" / "jars" / "spark-core.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    os.utime(jar, (1, 1))
    of_pyspark = archive_file(tmp_path, tmp_path / "java")
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    before = archive_file(tmp_path, tmp_path / "java")
    assert before != of_pyspark
    assert archive_file(tmp_path, tmp_path / "java") == before
    os.utime(jar, (2, 2))
    installed_anew = archive_file(tmp_path, tmp_path / "java")
    assert installed_anew != before
    jar.write_bytes(b"another")
    os.utime(jar, (2, 2))
    assert archive_file(tmp_path, tmp_path / "java") not in (before, installed_anew)


@pytest.mark.parametrize(
    "configuration",
    [{"spark.driver.extraJavaOptions": "-XX:+UseG1GC"}, {"spark.remote": "sc://elsewhere"}],
)
def test_an_archive_that_no_session_would_use_is_not_made(
    home: Path, monkeypatch: pytest.MonkeyPatch, configuration: dict[str, str]
) -> None:
    monkeypatch.setattr(class_archive, "_run_spark", lambda *_: pytest.fail("it started Spark"))
    assert make(Settings(home=home, spark_configuration=configuration)) is None
    assert not (home / "spark").exists()


def test_an_archive_in_the_making_or_too_large_for_the_disk_is_not_made(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        pytest.fail("it started Spark")

    monkeypatch.setattr(class_archive, "_run_spark", fail)
    settings = Settings(home=home)
    (home / "spark").mkdir()
    with (home / "spark" / "classes.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert make(settings) is None
    monkeypatch.setattr(class_archive, "LEAST_FREE_BYTES", 2**62)
    assert make(settings) is None


def test_only_a_complete_archive_replaces_an_earlier_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(home=home)
    spark = home / "spark"
    earlier, left = spark / "classes-0123.jsa", spark / "making-by-one-that-was-killed"
    left.mkdir(parents=True)
    earlier.touch()
    monkeypatch.setattr(class_archive, "LEAST_FREE_BYTES", 0)
    monkeypatch.setattr(class_archive, "_run_spark", lambda _settings, _archive: None)
    assert make(settings) is None
    assert earlier.exists()
    monkeypatch.setattr(class_archive, "_run_spark", lambda _settings, archive: archive.write_bytes(b"classes"))
    made = make(settings)
    assert made is not None
    assert sorted(spark.iterdir()) == sorted([made, spark / "classes.lock"])


# Starts three JVMs and takes a minute of CPU.
@pytest.mark.systems
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="asks Linux what a process has mapped")
def test_a_session_starts_from_the_archive_and_without_it_if_it_is_damaged(home: Path) -> None:
    settings = Settings(home=home)
    file = archive_file(home / "spark", find_java_home(home / "java"))
    environment = {**os.environ, "FOREBAY_HOME": str(home), "FOREBAY_SPARK_MASTER": "local[1]"}
    environment.pop("FOREBAY_DATABASE_URL", None)
    with subprocess.Popen(
        # Not at the lowest priority: other tests run at the same time.
        [sys.executable, "-c", "from orchestration.spark import class_archive as c; c.LOWEST_PRIORITY = 0; c.main()"],
        env=environment,
        stdin=subprocess.PIPE,
    ) as making:
        assert making.wait(60) == 0
    assert make(settings) == file, "it is there already"

    def says() -> str:
        answer = run_program([sys.executable, "-c", _SESSION, file.name], env=environment)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.splitlines()[-1]

    assert says() == "mapped"
    file.chmod(0o644)
    with file.open("r+b") as damaged:
        damaged.seek(file.stat().st_size // 2)
        damaged.write(os.urandom(64 * 1024))
    assert says() == "not mapped"


def test_making_an_archive_ends_with_its_agent(home: Path) -> None:
    waiting = (
        "import time, orchestration.spark.session.class_archive as c; c.make = lambda _: time.sleep(600); c.main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", waiting], env={**os.environ, "FOREBAY_HOME": str(home)}, stdin=subprocess.PIPE
    ) as making:
        process = psutil.Process(making.pid)
        assert making.stdin is not None
        making.stdin.close()
        assert making.wait(120) == 1
        assert not process.is_running()

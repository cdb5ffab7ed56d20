"""A Spark standalone cluster and a Spark Connect server from pyspark's own package, on loopback at free ports."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from orchestration.spark.session.java import find_java_home
from tests.support.machine.held_ports import held_port
from tests.support.polling import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

SPARK_HOME = Path(pyspark.__file__).parent
_SECONDS = 120.0
_ROOT = Path(__file__).parents[3]


def environment(directory: Path, *, host: str = "127.0.0.1") -> dict[str, str]:
    """Return an environment whose Python finds no Forebay, even if installed: workers get only what a session ships."""
    site = directory / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(
        f"import sys\nsys.path[:] = [path for path in sys.path if path != {str(_ROOT)!r}]\n", encoding="utf-8"
    )
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    return {
        **kept,
        "JAVA_HOME": str(find_java_home(directory / "java")),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": host,
        "SPARK_LOCAL_HOSTNAME": host,
        "SPARK_LOG_DIR": str(directory),
        "SPARK_WORKER_DIR": str(directory / "work"),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(site),
        # Python must not import files from the directory in which a process happens to start.
        "PYTHONSAFEPATH": "1",
    }


class Program:
    """A program of Spark's, with a log that says where it listens."""

    def __init__(
        self,
        name: str,
        directory: Path,
        *command: str,
        host: str = "127.0.0.1",
        has_forebay: bool = False,
        more: Mapping[str, str] | None = None,
    ) -> None:
        self.log = directory / f"{name}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env=environment(directory, host=host)
                | ({"PYTHONPATH": str(_ROOT)} if has_forebay else {})
                | dict(more or {}),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def said(self, pattern: str) -> str:
        """Wait until the log matches `pattern`; return its first group."""

        def found() -> re.Match[str] | None:
            assert self._process.poll() is None, self.log.read_text(encoding="utf-8")
            return re.search(pattern, self.log.read_text(encoding="utf-8"))

        eventually(found, f"{pattern} in {self.log}", seconds=_SECONDS, step=0.1)
        match = found()
        assert match is not None
        return match[1]

    def signal(self, name: str) -> None:
        """Send a signal, by its name, to the JVM alone; its children don't get it."""
        # spark-class has replaced itself by the JVM.
        self._process.send_signal(signal.Signals[name])

    @property
    def pid(self) -> int:
        """Return the process id."""
        return self._process.pid

    def end(self) -> None:
        """End the program and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)


@dataclass(frozen=True)
class StandaloneCluster:
    """A running cluster: its URL and its programs."""

    url: str
    master: Program
    workers: Sequence[Program]


@contextlib.contextmanager
def standalone_cluster(directory: Path, *, hosts: Sequence[str] = ("127.0.0.1", "127.0.0.1")) -> Iterator[str]:
    """Start a master that has a worker on each of `hosts`, with a core and 512 MB; return its URL."""
    with running_cluster(directory, hosts=hosts) as cluster:
        yield cluster.url


@contextlib.contextmanager
def running_cluster(
    directory: Path,
    *,
    hosts: Sequence[str] = ("127.0.0.1", "127.0.0.1"),
    memory: str = "512m",
    decommission: bool = False,
) -> Iterator[StandaloneCluster]:
    """Start a cluster as ``standalone_cluster`` does.

    `memory`: of each worker, for its executors. `decommission`: whether SIGPWR decommissions a worker.
    """
    launch = [str(SPARK_HOME / "bin" / "spark-class")]
    # Workers and master take settings from files, or from the properties of their JVM.
    options = {"SPARK_DAEMON_JAVA_OPTS": "-Dspark.decommission.enabled=true"} if decommission else {}
    programs: list[Program] = []
    try:
        master = Program(
            "master",
            directory,
            *[*launch, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0"],
            *["--webui-port", "0"],
            more=options,
        )
        programs.append(master)
        url = master.said(r"Starting Spark master at (spark://\S+)")
        for number, host in enumerate(hosts):
            worker = Program(
                f"worker{number}",
                directory,
                *[*launch, "org.apache.spark.deploy.worker.Worker", "--host", host, "--port", "0"],
                *["--webui-port", "0", "--cores", "1", "--memory", memory, url],
                host=host,
                more=options,
            )
            programs.append(worker)
        for worker in programs[1:]:
            worker.said(r"(Successfully registered with master)")
        yield StandaloneCluster(url, master, programs[1:])
    finally:
        for program in reversed(programs):
            program.end()


@contextlib.contextmanager
def connect_server(directory: Path, *, has_forebay: bool = False) -> Iterator[str]:
    """Start a Spark Connect server with two local threads; return its address, sc://HOST:PORT.

    `has_forebay`: whether Forebay is importable in the server's Python, as if installed.
    """
    # With port 0 the server would not report which port it got.
    with held_port() as port:
        configuration = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
        }
        server = Program(
            "connect",
            directory,
            *[str(SPARK_HOME / "bin" / "spark-submit"), "--master", "local[2]"],
            *(f"--conf={name}={value}" for name, value in configuration.items()),
            *["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"],
            has_forebay=has_forebay,
        )
        try:
            server.said(r"(Spark Connect server started at: \S+)")
            yield f"sc://127.0.0.1:{port}"
        finally:
            server.end()

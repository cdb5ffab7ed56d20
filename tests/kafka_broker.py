"""Apache Kafka itself for tests: one KRaft node on loopback, which can be stopped, killed and started again.

Maven brings its jars once (93 of them, 54 MB) into a folder of the user's cache that outlives the checkout;
FOREBAY_TEST_KAFKA names a folder with such jars that is there already.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION = "4.1.1"
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
_DEADLINE_SECONDS = 60.0
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{VERSION}</version></dependency>
</dependencies></project>
"""


class NoBrokerError(Exception):
    """There is no Kafka to test against: install Java and Maven, or name a folder of jars in FOREBAY_TEST_KAFKA."""


def jars() -> Path:
    """The folder of the broker's jars; fetched if it is not there yet. Raises NoBrokerError."""
    named = os.environ.get("FOREBAY_TEST_KAFKA")
    if named:
        return Path(named)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forebay-tests" / "kafka"
    made = folder / VERSION
    if not made.exists():
        maven = shutil.which("mvn")
        if maven is None:
            raise NoBrokerError(NoBrokerError.__doc__)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pom.xml").write_text(_POM, encoding="utf-8")
        coming = folder / f"{VERSION}.{os.getpid()}"
        fetched = subprocess.run(
            [
                *(maven, "--batch-mode", "--quiet", "--file", str(folder / "pom.xml")),
                *("dependency:copy-dependencies", f"-DoutputDirectory={coming}"),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if fetched.returncode:
            raise NoBrokerError(f"{NoBrokerError.__doc__} {(fetched.stdout + fetched.stderr)[-500:]}")
        coming.rename(made)
    return made


class KafkaBroker:
    """One node that is broker and controller, on ports that it keeps over restarts."""

    def __init__(self, directory: Path, *, settings: Mapping[str, object] | None = None) -> None:
        self._directory = directory
        self._classes = f"{jars()}/*"
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        ports = []
        with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
            ports = [int(any_port.getsockname()[1]) for any_port in (one, other)]
        self.port, controller = ports
        properties = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": directory / "data",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1000,
            "log.retention.check.interval.ms": 500,
            "offsets.topic.num.partitions": 3,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 3,
            "transaction.state.log.replication.factor": 1,
            **(settings or {}),
        }
        self._properties = directory / "kraft.properties"
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), encoding="utf-8")
        said = subprocess.run(
            self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._properties)),
            capture_output=True,
            text=True,
            check=False,
        )
        assert said.returncode == 0, f"Kafka's storage could not be formatted: {said.stdout}{said.stderr}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; returns when it answers."""
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._properties)), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._wait_until_it_answers()

    def _wait_until_it_answers(self) -> None:
        from confluent_kafka import KafkaException  # noqa: PLC0415  an optional client
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415

        client = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while True:
            assert self._process is not None
            said = (self._directory / "log").read_text()[-2000:]
            assert self._process.poll() is None, f"Kafka ended: {said}"
            try:
                if client.list_topics(timeout=1).brokers:
                    return
            except KafkaException:
                assert time.monotonic() < deadline, f"Kafka does not answer: {said}"

    def kill(self) -> None:
        """End it at once, if it runs; its data stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _java(self, *arguments: str) -> list[str]:
        java = shutil.which("java")
        if java is None:
            raise NoBrokerError(NoBrokerError.__doc__)
        return [java, "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", self._classes, *arguments]

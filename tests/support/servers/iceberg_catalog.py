"""Real Iceberg REST catalog for tests: that of Apache Iceberg's own tests, on SQLite, with tables on an S3 server.

Maven downloads its jars once (34 of them, 92 MB) into a folder of the user's cache that outlives the checkout, for the
first test that needs them or for ``python -m tests.support.servers.iceberg_catalog``. Hadoop's jars are PySpark's.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.brokers.kafka import NoBrokerError, maven_jars
from tests.support.machine.held_ports import held_ports
from tests.support.servers.listening import killed, started

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping

VERSION = "1.10.1"
_DEADLINE_SECONDS = 120.0
_JETTY, _SQLITE = "11.0.26", "3.50.3.0"


def _dependency(group: str, artifact: str, version: str, classifier: str = "") -> str:
    kind = f"<classifier>{classifier}</classifier>" if classifier else ""
    return (
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>{kind}"
        "</dependency>\n"
    )


_POM = (
    '<project xmlns="http://maven.apache.org/POM/4.0.0">\n<modelVersion>4.0.0</modelVersion>'
    "<groupId>tests</groupId><artifactId>iceberg</artifactId><version>1</version>\n<dependencies>\n"
    + _dependency("org.apache.iceberg", "iceberg-open-api", VERSION, "test-fixtures")
    + _dependency("org.apache.iceberg", "iceberg-core", VERSION)
    + _dependency("org.apache.iceberg", "iceberg-core", VERSION, "tests")
    + _dependency("org.apache.iceberg", "iceberg-aws", VERSION)
    + _dependency("org.apache.iceberg", "iceberg-aws-bundle", VERSION)
    + _dependency("org.eclipse.jetty", "jetty-servlet", _JETTY)
    + _dependency("org.xerial", "sqlite-jdbc", _SQLITE)
    + "</dependencies></project>\n"
)


def jars() -> Path:
    """Return the folder of the catalog's jars; download them if they are missing. Raises NoBrokerError."""
    return maven_jars("iceberg", VERSION, _POM)


class IcebergCatalogServer:
    """One catalog on a port of loopback; `properties` are those of Iceberg's own catalog behind it.

    It vends no credentials, and asks for none.
    """

    def __init__(self, directory: Path, properties: Mapping[str, str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        [self.port] = held_ports(self, 1)
        self._properties = {
            "rest.port": str(self.port),
            "uri": f"jdbc:sqlite:{directory}/catalog.db",
            # Else each thread of the server may have a connection of its own, and SQLite takes one writer.
            "clients": "1",
            **properties,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start the server; return when it answers."""
        # Its variables: in upper case, `_` for a dot and `__` for a hyphen.
        environment = {
            "CATALOG_" + key.replace("-", "__").replace(".", "_").upper(): value
            for key, value in self._properties.items()
        }
        self._process = started(
            _java(),
            f"{self.uri}/v1/config",
            self._directory / "log",
            env={"PATH": "/usr/bin:/bin", **environment},
            seconds=_DEADLINE_SECONDS,
        )

    def kill(self) -> None:
        """Kill the server, if it runs; its tables stay."""
        killed(self._process)
        self._process = None


def _java() -> list[str]:
    java, spark = shutil.which("java"), importlib.util.find_spec("pyspark")
    if java is None or spark is None or spark.origin is None:
        raise NoBrokerError(NoBrokerError.__doc__)
    hadoop = sorted((Path(spark.origin).parent / "jars").glob("hadoop-client-*.jar"))
    classes = ":".join([f"{jars()}/*", *map(str, hadoop)])
    small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return [java, *small, "-cp", classes, "org.apache.iceberg.rest.RESTCatalogServer"]


if __name__ == "__main__":
    jars()

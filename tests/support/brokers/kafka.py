"""Apache Kafka for tests: one KRaft node on loopback or three, which can be killed and started again.

Maven downloads its jars once (93 of them, 54 MB) into a folder of the user's cache that outlives the checkout, for the
first test that needs them or for ``python -m tests.support.brokers.kafka``. If it can't, tests use librdkafka's own
mock cluster (`MockKafka`). FOREBAY_TEST_KAFKA overrides this: ``real`` requires Apache Kafka, ``mock`` uses the mock, a
path is a folder that already has these jars.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tests.support.commands.run_program import run_program
from tests.support.machine.held_ports import held_ports
from tests.support.polling import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

VERSION = "4.1.1"
USER = "forebay"
# The password of brokers that only live for a test.
PASSWORD = "only-for-tests-7c1f"
_CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
# In seconds. A JVM is slow beside other tests on few cores; each wait ends as soon as its condition holds.
_DEADLINE_SECONDS = 180.0
_ATTEMPTS = 3
_CONTROLLERS = "CONTROLLER"
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>kafka</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{VERSION}</version></dependency>
</dependencies></project>
"""


class NoBrokerError(Exception):
    """There is no Kafka to test against: install Java and Maven, or name a folder of jars in FOREBAY_TEST_KAFKA."""


def wanted() -> str:
    """Return ``real``, ``mock``, a folder of jars, or an empty string."""
    return os.environ.get("FOREBAY_TEST_KAFKA", "")


def jars() -> Path:
    """Return the folder of the broker's jars; download them if they are missing. Raises NoBrokerError."""
    if wanted() not in ("", "real", "mock"):
        return Path(wanted())
    return maven_jars("kafka", VERSION, _POM)


def maven_jars(name: str, version: str, pom: str) -> Path:
    """Return a folder of the cache with a pom's dependencies, downloaded once. Raises NoBrokerError."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forebay-tests" / name
    made = folder / version
    if not made.exists():
        maven = shutil.which("mvn")
        if maven is None:
            raise NoBrokerError(NoBrokerError.__doc__)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pom.xml").write_text(pom, encoding="utf-8")
        coming = folder / f"{version}.{os.getpid()}"
        for _ in range(_ATTEMPTS):
            fetched = subprocess.run(
                [
                    # Without --update-snapshots, Maven does not retry a failed download.
                    *(maven, "--batch-mode", "--quiet", "--update-snapshots", "--file", str(folder / "pom.xml")),
                    *("dependency:copy-dependencies", f"-DoutputDirectory={coming}"),
                ],
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )
            if fetched.returncode == 0:
                break
        else:
            raise NoBrokerError(f"{NoBrokerError.__doc__} {(fetched.stdout + fetched.stderr)[-500:]}")
        coming.rename(made)
    return made


@dataclass(frozen=True, slots=True)
class Secure:
    """A broker's second listener: TLS with a self-signed ``certificate``, and SASL with USER and PASSWORD."""

    keystore: Path
    certificate: Path

    @classmethod
    def make(cls, directory: Path) -> Secure:
        directory.mkdir(parents=True, exist_ok=True)
        made = cls(directory / "broker.p12", directory / "broker.pem")
        keytool = shutil.which("keytool")
        if keytool is None:
            raise NoBrokerError(NoBrokerError.__doc__)
        store = ["-keystore", str(made.keystore), "-storepass", PASSWORD, "-alias", "broker"]
        for arguments in (
            [
                *("-genkeypair", "-keyalg", "RSA", "-storetype", "PKCS12", "-dname", "CN=localhost", "-validity", "2"),
                *("-ext", "bc:c", "-ext", "SAN=IP:127.0.0.1,DNS:localhost"),
            ],
            ["-exportcert", "-rfc", "-file", str(made.certificate)],
        ):
            subprocess.run([keytool, *arguments, *store], check=True, capture_output=True, timeout=120)
        return made

    def properties(self) -> dict[str, object]:
        login = "org.apache.kafka.common.security"
        return {
            "ssl.keystore.location": self.keystore,
            "ssl.keystore.password": PASSWORD,
            "ssl.keystore.type": "PKCS12",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "listener.name.secure.plain.sasl.jaas.config": (
                f'{login}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
            ),
            "listener.name.secure.scram-sha-512.sasl.jaas.config": f"{login}.scram.ScramLoginModule required;",
        }


@dataclass(frozen=True, slots=True)
class _Place:
    """A node's ports, which it keeps over restarts."""

    port: int
    controller: int
    secure: int


def _places(owner: object, nodes: int) -> list[_Place]:
    """Reserve the nodes' ports, also while a node is down.

    Otherwise the system may use such a port as the local end of a connection, even of a connection to that very port,
    which is then connected to itself.
    """
    return [_Place(*held_ports(owner, 3)) for _ in range(nodes)]


class KafkaBroker:
    """One node that is broker and controller, alone or in a `KafkaCluster`.

    Args:
        heap_mib: the heap size of its JVM.
        secure: its second listener.
    """

    is_real: ClassVar[bool] = True
    replicas: ClassVar[int] = 1

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, object] | None = None,
        heap_mib: int = 512,
        secure: Secure | None = None,
        number: int = 1,
        places: Sequence[_Place] = (),
    ) -> None:
        self._directory = directory
        self._heap_mib = heap_mib
        self._classes = f"{jars()}/*"
        self._process: subprocess.Popen[bytes] | None = None
        self.secure = secure
        directory.mkdir(parents=True, exist_ok=True)
        places = places or _places(self, 1)
        self._place = places[number - 1]
        listeners = {"PLAINTEXT": self._place.port}
        protocols = {"PLAINTEXT": "PLAINTEXT", _CONTROLLERS: "PLAINTEXT"}
        if secure is not None:
            listeners["SECURE"] = self._place.secure
            protocols["SECURE"] = "SASL_SSL"
        advertised = [f"{name}://127.0.0.1:{port}" for name, port in listeners.items()]
        properties = {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": ",".join(
                f"{node}@127.0.0.1:{place.controller}" for node, place in enumerate(places, start=1)
            ),
            "listeners": ",".join([*advertised, f"{_CONTROLLERS}://127.0.0.1:{self._place.controller}"]),
            "advertised.listeners": ",".join(advertised),
            "controller.listener.names": _CONTROLLERS,
            "listener.security.protocol.map": ",".join(f"{name}:{kind}" for name, kind in protocols.items()),
            "log.dirs": directory / "data",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1000,
            "log.retention.check.interval.ms": 500,
            "offsets.topic.num.partitions": 3,
            "offsets.topic.replication.factor": len(places),
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 3,
            "transaction.state.log.replication.factor": len(places),
            **({} if secure is None else secure.properties()),
            **(settings or {}),
        }
        self._properties = directory / "kraft.properties"
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), encoding="utf-8")
        said = run_program(
            self._java("kafka.tools.StorageTool", "format", "-t", _CLUSTER_ID, "-c", str(self._properties))
        )
        assert said.returncode == 0, f"Kafka's storage could not be formatted: {said.stdout}{said.stderr}"

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._place.port}"

    @property
    def secure_address(self) -> str:
        return f"127.0.0.1:{self._place.secure}"

    def start(self) -> None:
        """Start the node; return when it answers."""
        self.launch()
        self.wait_until_it_answers()

    def launch(self) -> None:
        """Start the node; return at once."""
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._java("kafka.Kafka", str(self._properties)), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait_until_it_answers(self) -> None:
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
        """Kill the node, if it runs; its data stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def _java(self, *arguments: str) -> list[str]:
        java = shutil.which("java")
        if java is None:
            raise NoBrokerError(NoBrokerError.__doc__)
        small = [f"-Xmx{self._heap_mib}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [java, *small, "-cp", self._classes, *arguments]


class KafkaCluster:
    """Three nodes, each broker and controller; a topic has three replicas, two of which must have each record."""

    is_real: ClassVar[bool] = True
    replicas: ClassVar[int] = 3

    def __init__(self, directory: Path, *, settings: Mapping[str, object] | None = None) -> None:
        places = _places(self, 3)
        self.nodes = {
            number: KafkaBroker(
                directory / str(number),
                settings={"min.insync.replicas": 2, **(settings or {})},
                heap_mib=256,
                number=number,
                places=places,
            )
            for number in (1, 2, 3)
        }

    @property
    def address(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    def start(self) -> None:
        """Start the nodes; return when each knows all of them."""
        from confluent_kafka import KafkaException  # noqa: PLC0415  an optional client
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415

        def know_all() -> bool:
            try:
                return len(client.list_topics(timeout=5).brokers) == len(self.nodes)
            except KafkaException:
                return False

        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait_until_it_answers()
        client = AdminClient({"bootstrap.servers": self.address})
        eventually(know_all, "three brokers", seconds=_DEADLINE_SECONDS)

    def kill(self) -> None:
        for node in self.nodes.values():
            node.kill()


class MockKafka:
    """librdkafka's mock cluster, in this process: a broker's groups, offsets and records, nothing else."""

    is_real: ClassVar[bool] = False
    replicas: ClassVar[int] = 1

    def __init__(self) -> None:
        from confluent_kafka import Producer  # noqa: PLC0415  an optional client

        # The cluster lives as long as this producer, and creates topics on request.
        self._owner = Producer({"test.mock.num.brokers": 1, "log_level": 0})
        [broker] = self._owner.list_topics(timeout=10).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def make(self, topic: str) -> int:
        """Create a topic; return its number of partitions, which can't be chosen."""
        found = self._owner.list_topics(topic, timeout=10).topics[topic]
        return len(found.partitions)

    def start(self) -> None:
        """Do nothing."""

    def kill(self) -> None:
        """Do nothing: the mock can't be killed."""


AnyKafka = KafkaBroker | KafkaCluster | MockKafka


if __name__ == "__main__":
    jars()

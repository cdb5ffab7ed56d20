"""The system under test in two layouts, started as its users start it, with every service that it uses.

Owns processes, mounts, proxies and servers, and leaves none behind. It injects no fault and judges nothing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

import psutil
import psycopg2
from sqlalchemy import make_url

from tests.chaos import disks, reaper, shim
from tests.chaos.disks import Disk
from tests.chaos.proxies import Proxy
from tests.chaos.schedule import KINDS, Layout, Need
from tests.chaos.senders import TOPIC, FileSender, HttpSender, KafkaSender, Sender, SocketSender
from tests.chaos.servers import PostgresServer
from tests.support.brokers.kafka import KafkaBroker
from tests.support.machine.held_ports import held_ports
from tracker_store.server.embedded_postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from tests.chaos.shim import Shim

_ROOT = Path(__file__).parents[2]
_READY = "Ctrl-C stops everything"
_START_SECONDS = 300.0
_STOP_SECONDS = 90.0
_AGAIN_SECONDS = 1.0
_POLL_SECONDS = 0.2
_STORE_SIZE = "384m"
_DATABASE_SIZE = "2g"
_PARTITIONS = 3
# Each source's share of all records per second.
_SHARES = {"http": 0.4, "kafka": 0.3, "files": 0.2, "socket": 0.1}
#: Words in the command line by which a role's processes are found.
_ROLES: Mapping[str, tuple[str, ...]] = {
    "receiver": ("forebay.cli receiver",),
    "agent": ("forebay.cli agent",),
    "tracker": ("forebay.cli tracker",),
    "driver": ("forebay.cli batch-driver",),
    "daemon": ("dagster._daemon",),
    "code-server": ("dagster api grpc",),
    "webserver": ("dagster_webserver",),
    # If no batch driver runs the batch, a child of the code server does.
    "run": ("multiprocessing.spawn import spawn_main",),
}


class StartError(Exception):
    """The system did not start: its log is in the message."""


class Service:
    """A program that is restarted whenever it ends, as a service manager does. `restarts` lists these endings."""

    def __init__(self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.log = log
        self.restarts: list[str] = []
        self._command = command
        self._environment = environment
        self._wanted = True
        self._process = self._started()
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
        self._thread.start()

    def root(self) -> psutil.Process | None:
        """Return the service's process, or None while none runs."""
        process = self._process
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(process.pid) if process.poll() is None else None
        return None

    def wait_until(self, words: str) -> None:
        """Wait until the log contains `words`. Raises StartError."""
        deadline = time.monotonic() + _START_SECONDS
        while words not in (said := self.log.read_text(encoding="utf-8", errors="replace")):
            if time.monotonic() > deadline or self.restarts:
                raise StartError(f"{self.name} did not start:\n{said[-4000:]}")
            time.sleep(_POLL_SECONDS)

    def kill(self) -> None:
        """Kill the process."""
        self._wanted = False
        self._thread.join()
        self._process.kill()

    def end(self) -> None:
        """End the process in order, or else kill it."""
        self._wanted = False
        self._thread.join()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                self._command,
                cwd=_ROOT,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _watch(self) -> None:
        while self._wanted:
            code = self._process.poll()
            if code is not None:
                if self._process.stdin is not None:
                    self._process.stdin.close()
                self.restarts.append(f"{self.name} ended with {code} at {time.strftime('%H:%M:%S')}")
                time.sleep(_AGAIN_SECONDS)
                if self._wanted:
                    self._process = self._started()
            time.sleep(_POLL_SECONDS)


class System:
    """Everything in a run except faults and oracle. `root`: a new directory that other users may traverse."""

    layout: Layout

    def __init__(self, root: Path, *, replicas: int, rate: float) -> None:
        self.root = root
        #: Whether to copy the contents of this run's disks to `root`/kept before the disks are removed.
        self.keep = False
        self.replicas = replicas
        self.rate = rate
        #: Data that was written below a mount point while nothing was mounted there.
        self.wrong_disk: list[str] = []
        self.has_mounts = disks.is_possible()
        self.proxies: dict[str, Proxy] = {}
        self.services: list[Service] = []
        self.stores: list[Disk] = []
        self.senders: list[Sender] = []
        self.shim: Shim | None = None
        self._token = secrets.token_hex(8)
        self._stack = ExitStack()
        self._library: Path | None = None

    # -- for faults and oracle ---------------------------------------------------------------------------------------

    def lacks(self, kind: str) -> str:
        """Return what this run lacks for a kind of fault; empty if it lacks nothing."""
        has = {
            Need.MOUNTS: self.has_mounts,
            Need.SHIM: self.shim is not None,
            Need.REPLICAS: self.replicas > 1,
            Need.TWO_HOSTS: self.layout is Layout.TWO,
        }
        return ", ".join(sorted(need.value for need in KINDS[kind].needs if not has[need]))

    def processes(self, role: str) -> list[psutil.Process]:
        """Return the processes of a role, by pid."""
        found = []
        for process in self._tree():
            try:
                line = " ".join(process.cmdline())
                is_guard = "guard.py" in line
                if role == "jvm":
                    matches = process.name() == "java"
                elif role == "guard":
                    matches = is_guard
                else:
                    matches = not is_guard and any(words in line for words in _ROLES[role])
            except psutil.Error:
                continue
            if matches:
                found.append(process)
        return sorted(found, key=lambda process: int(process.pid))

    def store_points(self) -> dict[str, list[Path]]:
        """Return the paths of the block store's roots on each host."""
        raise NotImplementedError

    def log_dsn(self) -> str:
        """Return the driver log's address for psycopg2, bypassing every proxy."""
        raise NotImplementedError

    def status_environment(self) -> Mapping[str, str]:
        """Return the environment of an operator's command."""
        raise NotImplementedError

    def database_disk(self) -> Disk:
        """Return the disk that holds the data of the driver log's server."""
        raise NotImplementedError

    @property
    def output(self) -> Path:
        """Return the directory of the Parquet outputs."""
        return self.root / "output"

    @property
    def ledgers(self) -> Path:
        """Return the directory of the senders' ledgers."""
        return self.root / "ledgers"

    # -- its life ----------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            for service in self.services:
                service.kill()
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            # Interrupted: the process that waits for this one may wait for seconds only, so skip the copy.
            self.keep = self.keep and kind is not KeyboardInterrupt
            for service in self.services:
                service.kill()
        self._stack.close()

    def _start(self) -> None:
        self.output.mkdir()
        self._start_disks()
        self._stack.callback(self._preserve)
        self._start_reaper()
        if shim.is_possible():
            self._library = shim.compiled(self.root)
            self.shim = shim.Shim(self._library, self.root / "shim-hosts")
        self.target = PostgresServer(self.root / "target", "data")
        self._stack.callback(self.target.stop)
        self.target.initialise("target")
        self._start_broker()
        [self.http_port] = held_ports(self, 1)
        for name, port in (("http", self.http_port), ("target", self.target.port)):
            self._proxy(name, port)
        rates = {source: share * self.rate for source, share in _SHARES.items()}
        sockets = SocketSender(self.ledgers, rates["socket"])
        self.socket_port = sockets.port
        self.senders = [
            HttpSender(self.ledgers, rates["http"], self.proxies["http"].port),
            KafkaSender(self.ledgers, rates["kafka"], f"127.0.0.1:{self.proxies['kafka'].port}"),
            FileSender(self.ledgers, rates["files"], self.root / "files"),
            sockets,
        ]
        self._start_services()
        for sender in self.senders:
            self._stack.enter_context(sender)

    def _preserve(self) -> None:
        backing = self.root / "backing"
        if self.keep and backing.exists():
            subprocess.run(["cp", "-a", "--sparse=always", str(backing), str(self.root / "kept")], check=False)

    def _start_disks(self) -> None:
        if self.has_mounts:
            self.stores = [self._disk(f"store-{number + 1}", _STORE_SIZE) for number in range(self.replicas)]

    def _start_broker(self) -> None:
        proxy = self._proxy("kafka", 0)
        address = f"PLAINTEXT://127.0.0.1:{proxy.port}"
        self.broker = KafkaBroker(
            self.root / "kafka", settings={"advertised.listeners": address, "num.partitions": _PARTITIONS}, heap_mib=256
        )
        proxy.target = int(self.broker.address.rpartition(":")[2])
        self._stack.callback(self.broker.kill)
        self.broker.start()
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415  an optional client
        from confluent_kafka.cimpl import NewTopic  # noqa: PLC0415

        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{proxy.port}", "log_level": 0})
        [made] = admin.create_topics([NewTopic(TOPIC, _PARTITIONS, 1)]).values()
        made.result(60)

    def _start_services(self) -> None:
        raise NotImplementedError

    def _service(self, name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Service:
        command = [sys.executable, "-m", "forebay.cli", *arguments]
        service = Service(name, command, environment, self.root / f"{name}.log")
        self._stack.callback(service.end)
        # Resume stopped processes first: they could not end in order.
        self._stack.callback(self._wake)
        self.services.append(service)
        return service

    def _environment(self, home: Path, points: Sequence[Path], **more: str) -> dict[str, str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("FOREBAY_", "DAGSTER_", "CHAOS_"))}
        return environment | {
            "FOREBAY_HOME": str(home),
            "FOREBAY_BLOCK_STORE": ",".join(map(str, points)),
            "FOREBAY_TRACKER_HTTP": "127.0.0.1:0",
            "FOREBAY_SPARK_MASTER": "local[2]",
            reaper.VARIABLE: self._token,
            "CHAOS_REPLICAS": str(self.replicas),
            "CHAOS_HTTP_PORT": str(self.http_port),
            "CHAOS_SOCKET_PORT": str(self.socket_port),
            "CHAOS_KAFKA": f"127.0.0.1:{self.proxies['kafka'].port}",
            "CHAOS_FILES": str(self.root / "files"),
            "CHAOS_OUTPUT": str(self.output),
            "CHAOS_TARGET": self.target.url("target", self.proxies["target"].port),
            **more,
        }

    def _shim_environment(self) -> Mapping[str, str]:
        return {} if self.shim is None else self.shim.environment()

    def _proxy(self, name: str, target: int) -> Proxy:
        self.proxies[name] = self._stack.enter_context(Proxy(target))
        return self.proxies[name]

    def _disk(self, name: str, size: str) -> Disk:
        disk = Disk(self.root / "backing" / name, size)
        self._stack.callback(_unmount_all, disk.backing)
        return disk

    def _mounted(self, disk: Disk, point: Path, part: str = "") -> None:
        disk.mount(point, part)
        # Faults may unmount and bind it again, so at the end unmount it as often as it takes.
        self._stack.callback(_unmount_all, point)

    def _tree(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for service in self.services:
            root = service.root()
            if root is not None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    found += [root, *root.children(recursive=True)]
        return found

    def _wake(self) -> None:
        for process in reaper.processes(str(self.root), self._token):
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)

    def _start_reaper(self) -> None:
        """Make sure that no process of the run outlives this one, even if this one is killed."""
        waiting = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.reaper", str(self.root), self._token],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

        def end() -> None:
            waiting.communicate()

        self._stack.callback(end)


class OneHost(System):
    """`forebay up` with its embedded Postgres. Its home is on a disk of its own; its logs share one with the blocks."""

    layout = Layout.ONE

    def store_points(self) -> dict[str, list[Path]]:
        return {"here": [self.root / f"store-{number + 1}" for number in range(self.replicas)]}

    def log_dsn(self) -> str:
        # Of the form postgresql+psycopg2://…, whose driver's name libpq does not know.
        url = make_url(EmbeddedPostgres(self.postgres_data).url()).set(drivername="postgresql")
        url = url.update_query_dict({"connect_timeout": "5", "application_name": "oracle"})
        return url.render_as_string(hide_password=False)

    def status_environment(self) -> Mapping[str, str]:
        return self._environment(self.home, self.store_points()["here"])

    def database_disk(self) -> Disk:
        return self._database

    @property
    def home(self) -> Path:
        """FOREBAY_HOME."""
        return self.root / "home"

    @property
    def postgres_data(self) -> Path:
        """Return the embedded server's data directory."""
        return self.home / "postgres"

    def _start_disks(self) -> None:
        super()._start_disks()
        for point in self.store_points()["here"]:
            point.mkdir()
        self.home.mkdir()
        if not self.has_mounts:
            return
        self._database = self._disk("home", _DATABASE_SIZE)
        self._mounted(self._database, self.home)
        self._mounted(self.stores[0], self.home / "logs", "logs")
        for disk, point in zip(self.stores, self.store_points()["here"], strict=True):
            self._mounted(disk, point, "data")

    def _start_services(self) -> None:
        environment = self._environment(self.home, self.store_points()["here"], **self._shim_environment())
        up = self._service("up", ["up", "tests.chaos.pipeline", "--ui-port", "0"], environment)
        up.wait_until(_READY)


class TwoHosts(System):
    """`forebay up` on one host and an agent on another; a Postgres with a synchronous standby; a store for both."""

    layout = Layout.TWO
    hosts = ("a", "b")
    primary: PostgresServer
    standby: PostgresServer
    postgres_shim: Shim | None = None

    def store_points(self) -> dict[str, list[Path]]:
        return {
            host: [self.root / host / f"store-{number + 1}" for number in range(self.replicas)] for host in self.hosts
        }

    def log_dsn(self) -> str:
        return self.primary.dsn()

    def status_environment(self) -> Mapping[str, str]:
        return self._environment(self.root / "a" / "home", self.store_points()["a"], **self._database_url("a"))

    def database_disk(self) -> Disk:
        return self._databases[self.primary.data.parent.name]

    def fail_over(self) -> PostgresServer:
        """Kill the primary and let the standby take its place; return the one that was killed."""
        dead = self.primary
        dead.kill()
        self.standby.promote()
        self.primary, self.standby = self.standby, dead
        for host in self.hosts:
            self.proxies[f"log-{host}"].target = self.primary.port
        return dead

    def _start_disks(self) -> None:
        super()._start_disks()
        # Without mounts, both hosts see the same directories through links.
        for host, points in self.store_points().items():
            (self.root / host).mkdir()
            for number, point in enumerate(points):
                if self.has_mounts:
                    self._mounted(self.stores[number], point, "data")
                else:
                    shared = self.root / f"store-{number + 1}"
                    shared.mkdir(exist_ok=True)
                    point.symlink_to(shared)
        self._databases: dict[str, Disk] = {}
        if self.has_mounts:
            for name in ("log-1", "log-2"):
                self._databases[name] = self._disk(name, "1g")
                self._mounted(self._databases[name], self.root / name)

    def _start_services(self) -> None:
        environment: Mapping[str, str] = {}
        if self._library is not None:
            self.postgres_shim = shim.Shim(self._library, self.root / "shim-postgres")
            environment = self.postgres_shim.environment()
        self.primary, self.standby = (
            PostgresServer(self.root / name, "data", environment) for name in ("log-1", "log-2")
        )
        for server in (self.primary, self.standby):
            self._stack.callback(server.stop)
        self.primary.initialise("forebay")
        self.standby.follow(self.primary)
        for host in self.hosts:
            self._proxy(f"log-{host}", self.primary.port)
        points = self.store_points()
        more = {host: {**self._database_url(host), **self._shim_environment()} for host in self.hosts}
        (self.root / "b" / "home").mkdir()
        up = self._environment(self.root / "a" / "home", points["a"], **more["a"])
        self._service("up", ["up", "tests.chaos.pipeline", "--ui-port", "0"], up).wait_until(_READY)
        agent = self._environment(self.root / "b" / "home", points["b"], **more["b"])
        self._service("agent-b", ["agent", "--host", "b", "--slots", "16", "--parent-pipe"], agent)

    def _database_url(self, host: str) -> dict[str, str]:
        return {"FOREBAY_DATABASE_URL": self.primary.url("forebay", self.proxies[f"log-{host}"].port)}


def _unmount_all(point: Path) -> None:
    while os.path.ismount(point):
        disks.unmount(point)


def answers(dsn: str) -> bool:
    """Return whether the driver log answers."""
    try:
        psycopg2.connect(dsn).close()
    except psycopg2.Error:
        return False
    return True

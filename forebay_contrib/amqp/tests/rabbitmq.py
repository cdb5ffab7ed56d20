"""Debian's RabbitMQ as a private node of a test: its own ports, home, cookie, logs and epmd."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pika
from pika.exceptions import AMQPError

from tests.support.machine.held_ports import held_ports
from tests.support.polling import eventually
from tests.unit.receiver_runtime.receivers.certificates import Authority

_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_START_SECONDS = 180.0
_PASSWORD = "hunter2"


class RabbitMq:
    """A node on loopback, also with TLS, and with one user. ``start`` after ``kill`` finds what was confirmed."""

    username = "forebay"

    def __init__(self, directory: Path) -> None:
        assert _SERVER.exists(), "there is no RabbitMQ here: install Debian's rabbitmq-server"
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.port, self.tls_port, self._distribution_port, self._epmd_port = held_ports(self, 4)
        self._epmd: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.authority = Authority(directory / "authority")
        certificate = self.authority.issue("rabbitmq.test")
        self.password_file = directory / "password"
        self.password_file.write_text(_PASSWORD)
        settings = {
            "listeners.tcp.1": f"127.0.0.1:{self.port}",
            "listeners.ssl.1": f"127.0.0.1:{self.tls_port}",
            "ssl_options.cacertfile": self.authority.ca_file,
            "ssl_options.certfile": certificate.certificate_file,
            "ssl_options.keyfile": certificate.key_file,
            "default_user": self.username,
            "default_pass": _PASSWORD,
            "vm_memory_high_watermark.absolute": "1GB",
            "disk_free_limit.absolute": "1MB",
        }
        lines = [f"{name} = {value}\n" for name, value in settings.items()]
        (directory / "rabbitmq.conf").write_text("".join(lines), encoding="utf-8")
        (directory / "env.conf").write_text("")
        (directory / "plugins").write_text("[].\n")

    def start(self) -> None:
        if self._epmd is None:
            # In the foreground, so that this process can end it.
            self._epmd = subprocess.Popen(
                [shutil.which("epmd") or "epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"]
            )
        with (self._directory / "out.log").open("ab") as out:
            self._process = subprocess.Popen(
                [str(_SERVER)], env=self._environment(), stdout=out, stderr=out, start_new_session=True
            )
        eventually(self._answers, "RabbitMQ to answer", seconds=_START_SECONDS, step=0.1)

    def kill(self) -> None:
        """Kill the node at once, with everything in its process group."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(60)
            self._process = None
            # The node's name is free once epmd has noticed its end; by then the rest of its process group is gone.
            eventually(lambda: not self._is_open(), "RabbitMQ to be gone")

    def close(self) -> None:
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait(60)
            self._epmd = None

    def connect(self, *, heartbeat: int = 10) -> pika.BlockingConnection:
        """Connect; with a heartbeat of 0 the connection may be left idle."""
        credentials = pika.PlainCredentials(self.username, _PASSWORD)
        return pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self.port, credentials=credentials, heartbeat=heartbeat)
        )

    def has_on_disk(self, quorum_queue: str) -> bool:
        """Return whether the queue survives `kill`.

        RabbitMQ writes the name of a new quorum queue to disk some seconds after it has declared it. Killed before, it
        starts with a queue without a leader and without messages, confirmed or not (seen with 3.10.8).
        """
        [names] = (self._directory / "data").glob("*/quorum/*/names.dets")
        return quorum_queue.encode() in names.read_bytes()

    def log(self) -> str:
        return (self._directory / "out.log").read_text(errors="replace")

    def _is_open(self) -> bool:
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log()
        try:
            self.connect().close()
        except (AMQPError, OSError):
            return False
        return True

    def _environment(self) -> dict[str, str]:
        root = self._directory
        return {
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "HOME": str(root),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"forebay-{self.port}@localhost",
            "RABBITMQ_CONF_ENV_FILE": str(root / "env.conf"),
            "RABBITMQ_CONFIG_FILE": str(root / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(root / "none.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(root / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(root / "data"),
            "RABBITMQ_LOG_BASE": str(root / "logs"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(root / "config"),
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_PID_FILE": str(root / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
        }

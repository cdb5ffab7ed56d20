"""Send numbered records over HTTP, Kafka, files and a socket, and record what was acknowledged.

Each sender is a thread that sends unless it is paused. A sender knows only an address of the system.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import select
import socket
import threading
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from tests.chaos.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

TOPIC = "numbers"
_PAUSE = 0.1
_HTTP_TIMEOUT = 40.0
# Statuses of answers after which a sender sends the same request again.
_RETRIED_STATUSES = frozenset({408, 429, 500, 502, 503})
_LINES_PER_FILE = 2000
_SOCKET_SECONDS = 1.0


class Sender(ABC):
    """The sender of one source. `rate`: records per second."""

    source: str

    def __init__(self, ledgers: Path, rate: float) -> None:
        self.ledger = Ledger(ledgers, self.source)
        self.rate = rate
        #: Answers that no sender should ever get.
        self.refusals: list[str] = []
        self._numbers = itertools.count(1)
        self._sending = threading.Event()
        self._stopped = threading.Event()
        self._guard = threading.Lock()
        self._threads: list[threading.Thread] = []

    def send(self) -> None:
        """Resume sending."""
        self._sending.set()

    def pause(self) -> None:
        """Send nothing new; keep retrying what is under way."""
        self._sending.clear()

    @abstractmethod
    def unsettled(self) -> int:
        """Return how many records are under way: neither acknowledged nor given up."""

    @abstractmethod
    def run(self) -> None:
        """Send until stopped. Runs in its own threads."""

    def take(self, count: int) -> tuple[int, int]:
        """Return the next numbers, first and last, and record them as sent."""
        with self._guard:
            numbers = [next(self._numbers) for _ in range(count)]
        self.ledger.sent(numbers[0], numbers[-1])
        return numbers[0], numbers[-1]

    def lines(self, first: int, last: int) -> Iterator[bytes]:
        """Return the records of these numbers."""
        return (b"%s %d." % (self.source.encode(), number) for number in range(first, last + 1))

    def may_send(self) -> bool:
        """Wait a moment for permission to send; return whether it was given."""
        return self._sending.wait(_PAUSE) and not self._stopped.is_set()

    @property
    def stopped(self) -> bool:
        """Return whether the sender is to end."""
        return self._stopped.is_set()

    def start(self, threads: int = 1) -> None:
        """Start the sender's threads."""
        self._threads = [threading.Thread(target=self.run, name=self.source, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._sending.set()
        for thread in self._threads:
            thread.join(10)
        self.ledger.close()


class HttpSender(Sender):
    """Post lines with a key, and repeat the same request until it is answered with 200."""

    source = "http"
    _threads_count = 3
    _batch = 8

    def __init__(self, ledgers: Path, rate: float, port: int) -> None:
        super().__init__(ledgers, rate)
        self._port = port
        self._under_way = 0

    def start(self, threads: int = _threads_count) -> None:
        super().start(threads)

    def unsettled(self) -> int:
        return self._under_way

    def run(self) -> None:
        pause = self._batch * self._threads_count / self.rate
        while not self.stopped:
            if not self.may_send():
                continue
            # Count the batch first: a caller that paused this and sees nothing under way then knows that no more comes.
            with self._guard:
                self._under_way += self._batch
            first, last = self.take(self._batch)
            while not self.stopped and not self._post(first, last):
                time.sleep(_PAUSE)
            with self._guard:
                self._under_way -= self._batch
            time.sleep(pause)

    def _post(self, first: int, last: int) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_HTTP_TIMEOUT)
        headers = {"Content-Type": "text/plain", "Idempotency-Key": f"{first}-{last}"}
        try:
            connection.request("POST", "/v1/http", b"\n".join(self.lines(first, last)), headers)
            answer = connection.getresponse()
            said = answer.read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        if answer.status == http.HTTPStatus.OK:
            self.ledger.acknowledged(first, last)
            return True
        if answer.status not in _RETRIED_STATUSES:
            self.refusals.append(f"{first} to {last}: {answer.status} {said[:200]!r}")
            return True
        return False


class KafkaSender(Sender):
    """Send with an idempotent producer, which retries until the broker has the record."""

    source = "kafka"

    def __init__(self, ledgers: Path, rate: float, servers: str) -> None:
        super().__init__(ledgers, rate)
        from confluent_kafka import Producer  # noqa: PLC0415  an optional client

        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                "socket.timeout.ms": 10_000,
                "reconnect.backoff.max.ms": 1_000,
                "linger.ms": 20,
                "log_level": 0,
            }
        )

    def unsettled(self) -> int:
        return len(self._producer)

    def run(self) -> None:
        while not self.stopped:
            self._producer.poll(0)
            if not self.may_send():
                continue
            first, last = self.take(max(1, int(self.rate * _PAUSE)))
            for number, line in enumerate(self.lines(first, last), start=first):
                self._producer.produce(TOPIC, line, key=b"%d" % number, on_delivery=self._delivered)
            time.sleep(_PAUSE)

    def _delivered(self, error: object, message: object) -> None:
        number = int(message.key())  # type: ignore[attr-defined]
        if error is None:
            self.ledger.acknowledged(number, number)
        else:
            self.refusals.append(f"{number}: {error}")


class FileSender(Sender):
    """Append to a file and sync it; rotate it every `_LINES_PER_FILE` lines."""

    source = "files"

    def __init__(self, ledgers: Path, rate: float, directory: Path) -> None:
        super().__init__(ledgers, rate)
        self._directory = directory
        directory.mkdir()

    def unsettled(self) -> int:
        return 0

    def run(self) -> None:
        path = self._directory / "numbers.log"
        for rotation in itertools.count(1):
            written = 0
            with path.open("ab", buffering=0) as file:
                while written < _LINES_PER_FILE:
                    if self.stopped:
                        return
                    if not self.may_send():
                        continue
                    first, last = self.take(max(1, int(self.rate * _PAUSE)))
                    file.write(b"".join(line + b"\n" for line in self.lines(first, last)))
                    os.fsync(file.fileno())
                    self.ledger.acknowledged(first, last)
                    written += last - first + 1
                    time.sleep(_PAUSE)
            path.rename(path.with_name(f"numbers.log.{rotation}"))


class SocketSender(Sender):
    """Serve lines to any client that connects, each line once; lines are never acknowledged."""

    source = "socket"

    def __init__(self, ledgers: Path, rate: float) -> None:
        super().__init__(ledgers, rate)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(_SOCKET_SECONDS)

    @property
    def port(self) -> int:
        """Return the port on which the sender listens."""
        port: int = self._listener.getsockname()[1]
        return port

    def unsettled(self) -> int:
        return 0

    def run(self) -> None:
        with self._listener:
            while not self.stopped:
                with contextlib.suppress(OSError):
                    connection, _ = self._listener.accept()
                    connection.settimeout(_SOCKET_SECONDS)
                    with connection:
                        self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        while not self.stopped:
            # Notice that the peer is gone even while nothing is sent.
            if select.select([connection], [], [], 0)[0]:
                return
            if self.may_send():
                first, last = self.take(max(1, int(self.rate * _PAUSE)))
                connection.sendall(b"".join(line + b"\n" for line in self.lines(first, last)))
                time.sleep(_PAUSE)

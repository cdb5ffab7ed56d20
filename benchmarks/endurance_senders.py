"""The senders of `benchmarks.endurance`: four of each kind, at a rate that may be changed; they count what they sent.

A number is counted when it is acknowledged; a socket's when it is handed over, because no connection is cut.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

TOPIC = "numbers"
#: How many senders of each kind there are; the pipeline has as many receivers.
EACH = 4
_TICK = 0.1
_TIMEOUT = 120.0
# A sender that was delayed catches up on at most this many seconds of its rate.
_MOST_SECONDS = 5.0
_MOST_RECORDS = 20_000
_LINES_PER_FILE = 500_000
_AGAIN = frozenset({429, 500, 502, 503})


class Sender(ABC):
    """A sending thread. `rate`: records per second that it offers now; `late`: start and length of its newest sends."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rate = 0.0
        self.count = 0
        self.total = 0
        self.late: deque[tuple[float, float]] = deque(maxlen=100_000)
        self._next = 1
        self._stopped = threading.Event()
        self._idle = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; it sends nothing before it has a rate."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join(5)

    def wait_until_idle(self, seconds: float) -> bool:
        """Wait until everything that was sent is acknowledged; return whether it was in time. Needs a rate of 0."""
        self._idle.clear()
        return self._idle.wait(seconds)

    def _run(self) -> None:
        due = 0.0
        before = time.monotonic()
        while not self._stopped.is_set():
            time.sleep(_TICK)
            now = time.monotonic()
            due = min(due + self.rate * (now - before), max(1.0, self.rate * _MOST_SECONDS))
            before = now
            count = min(int(due), _MOST_RECORDS)
            if not self.rate:
                due = 0.0
                if self._flush():
                    self._idle.set()
                continue
            if not count:
                continue
            due -= count
            begun = time.monotonic()
            self._send(self._next, self._next + count - 1)
            self.late.append((begun, time.monotonic() - begun))
            self._next += count

    def _lines(self, first: int, last: int) -> bytes:
        name = self.name.encode()
        return b"".join(b"%s %d\n" % (name, number) for number in range(first, last + 1))

    def _took(self, first: int, last: int) -> None:
        self.count += last - first + 1
        self.total += (first + last) * (last - first + 1) // 2

    def _flush(self) -> bool:
        """Return whether nothing is in flight."""
        return True

    @abstractmethod
    def _send(self, first: int, last: int) -> None:
        """Send these numbers, and again until they are taken."""


class HttpSender(Sender):
    """Sends a request per tick, again until the answer is 200."""

    def __init__(self, name: str, port: int) -> None:
        super().__init__(name)
        self._port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT)

    def _send(self, first: int, last: int) -> None:
        body = self._lines(first, last)
        headers = {"Content-Type": "text/plain", "Idempotency-Key": f"{first}-{last}"}
        while not self._stopped.is_set():
            try:
                self._connection.request("POST", f"/v1/{self.name}", body, headers)
                answer = self._connection.getresponse()
                said = answer.read()
            except (OSError, http.client.HTTPException):
                self._connection.close()
                time.sleep(_TICK)
                continue
            if answer.status == http.HTTPStatus.OK:
                self._took(first, last)
                return
            if answer.status not in _AGAIN:
                raise RuntimeError(f"{self.name}: {answer.status} {said[:200]!r}")
            time.sleep(_TICK)


class SocketSender(Sender):
    """Serves the first connection; while the receiver does not read, the sender waits."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connection: socket.socket | None = None

    @property
    def port(self) -> int:
        """Return the port that it listens on."""
        port: int = self._listener.getsockname()[1]
        return port

    def _send(self, first: int, last: int) -> None:
        if self._connection is None:
            self._connection, _ = self._listener.accept()
        self._connection.sendall(self._lines(first, last))
        self._took(first, last)


class FileSender(Sender):
    """Appends to a file and syncs it; rotates it when it is long."""

    def __init__(self, name: str, directory: Path) -> None:
        super().__init__(name)
        directory.mkdir(parents=True)
        self._path = directory / "numbers.log"
        self._file = self._path.open("ab", buffering=0)
        self._lines_written = 0
        self._rotations = 0

    def _send(self, first: int, last: int) -> None:
        self._file.write(self._lines(first, last))
        os.fsync(self._file.fileno())
        self._took(first, last)
        self._lines_written += last - first + 1
        if self._lines_written > _LINES_PER_FILE:
            self._file.close()
            self._rotations += 1
            self._path.rename(self._path.with_name(f"numbers.log.{self._rotations}"))
            self._file = self._path.open("ab", buffering=0)
            self._lines_written = 0


class KafkaSender(Sender):
    """Sends with its own idempotent producer."""

    def __init__(self, name: str, servers: str) -> None:
        super().__init__(name)
        from confluent_kafka import Producer  # noqa: PLC0415  an optional client

        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "enable.idempotence": True,
                "linger.ms": 50,
                "queue.buffering.max.messages": 1_000_000,
            }
        )

    def _send(self, first: int, last: int) -> None:
        for line in self._lines(first, last).split(b"\n")[:-1]:
            while not self._stopped.is_set():
                try:
                    self._producer.produce(TOPIC, line)
                    break
                except BufferError:
                    self._producer.poll(_TICK)
        self._producer.poll(0)
        # Messages don't time out before the benchmark does: `_flush` says whether all have arrived.
        self._took(first, last)

    def _flush(self) -> bool:
        return not self._producer.flush(_TICK)


class Senders:
    """All 16 senders."""

    def __init__(self, directory: Path, http_ports: Sequence[int], kafka: str) -> None:
        self.sockets = [SocketSender(f"socket{number}") for number in range(EACH)]
        self.https = [HttpSender(f"http{number}", port) for number, port in enumerate(http_ports)]
        self._all: list[Sender] = [
            *self.https,
            *self.sockets,
            *(FileSender(f"files{number}", directory / str(number)) for number in range(EACH)),
            *(KafkaSender(f"kafka{number}", kafka) for number in range(EACH)),
        ]

    def start(self) -> None:
        """Start all."""
        for sender in self._all:
            sender.start()

    def stop(self) -> None:
        """Stop all."""
        for sender in self._all:
            with contextlib.suppress(RuntimeError):
                sender.stop()

    def set_rate(self, rate: float) -> None:
        """Offer this many records per second in all, in equal parts."""
        for sender in self._all:
            sender.rate = rate / len(self._all)

    def pause(self, seconds: float) -> list[str]:
        """Offer nothing; return the names of the senders that are not done within this many seconds."""
        self.set_rate(0)
        deadline = time.monotonic() + seconds
        return [
            sender.name for sender in self._all if not sender.wait_until_idle(max(1.0, deadline - time.monotonic()))
        ]

    def count(self) -> int:
        """Return how many records were taken in total."""
        return sum(sender.count for sender in self._all)

    def sums(self) -> Mapping[str, tuple[int, int]]:
        """Return for each sender how many of its numbers were taken, and their sum."""
        return {sender.name: (sender.count, sender.total) for sender in self._all if sender.count}

    def answer_seconds(self, since: float, until: float) -> list[float]:
        """Return how long HTTP's answers took in a span of the monotonic clock, in seconds."""
        return [late for sender in self.https for at, late in list(sender.late) if since <= at < until]

"""Hold many open connections, and post now and then on each in turn, at a bounded rate; for `benchmarks.connections`.

Run as ``python -m benchmarks.connections_sender PORT NUMBER ADDRESS``: it connects from this loopback address. It obeys
the lines of standard input, and answers each with a line of JSON:

- ``open N``: have N connections open; the answer is the seconds that this took.
- ``send RATE SECONDS``: post one record RATE times a second; the answer is the list of seconds to each answer.
- ``end``: the answer is the list of acknowledged records, and how many connections were closed by the other side. A
  record is a number that no other sender, and no other post of this one, sends.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from typing import cast

import uvloop

_BY_SENDER = 1_000_000_000
_OPENING_AT_ONCE = 100
_ANSWER_SECONDS = 60.0


class _Connection(asyncio.Protocol):
    """One connection, with at most one request under way."""

    def __init__(self, sender: _Sender) -> None:
        self._sender = sender
        self._buffer = b""
        self._record: int | None = None
        self._at = 0.0
        self.transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not a subclass of asyncio's.
        self.transport = cast("asyncio.WriteTransport", transport)

    def post(self, record: int) -> bool:
        """Post a record; return whether this was possible."""
        if self._record is not None or self.transport.is_closing():
            return False
        body = b"%d" % record
        self._record = record
        self._at = time.perf_counter()
        self.transport.write(
            b"POST /v1/s HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n%s"
            % (len(body), body)
        )
        return True

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) < length or self._record is None:
            return
        self._sender.answered(self._record, time.perf_counter() - self._at, ok=head.startswith(b"HTTP/1.1 200 "))
        self._buffer, self._record = b"", None

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        if not self._sender.ending:
            self._sender.lost += 1
            if self._record is not None:
                self._sender.answered(self._record, time.perf_counter() - self._at, ok=False)


class _Sender:
    def __init__(self, port: int, number: int, address: str) -> None:
        self._port = port
        self._next = number * _BY_SENDER
        self._address = address
        self._connections: list[_Connection] = []
        self._turn = 0
        self._waiting = 0
        self._quiet = asyncio.Event()
        self._seconds: list[float] = []
        self._acknowledged: list[int] = []
        self.lost = 0
        self.ending = False

    def answered(self, record: int, seconds: float, *, ok: bool) -> None:
        """Count an answer."""
        self._waiting -= 1
        if not self._waiting:
            self._quiet.set()
        if ok:
            self._seconds.append(seconds)
            self._acknowledged.append(record)

    async def open(self, count: int) -> float:
        """Open connections until there are this many; return the seconds."""
        loop = asyncio.get_running_loop()
        began = time.perf_counter()
        while (missing := min(_OPENING_AT_ONCE, count - len(self._connections))) > 0:
            made = await asyncio.gather(
                *(
                    loop.create_connection(
                        lambda: _Connection(self), "127.0.0.1", self._port, local_addr=(self._address, 0)
                    )
                    for _ in range(missing)
                )
            )
            self._connections += [connection for _, connection in made]
        return time.perf_counter() - began

    async def send(self, rate: float, seconds: float) -> list[float]:
        """Post at this rate, on each connection in turn; return the seconds to each answer."""
        self._seconds = []
        began = time.perf_counter()
        for sent in range(int(rate * seconds)):
            wait = began + sent / rate - time.perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            connection = self._connections[self._turn % len(self._connections)]
            self._turn += 1
            if connection.post(self._next):
                self._waiting += 1
                self._next += 1
        self._quiet.clear()
        if self._waiting:
            await asyncio.wait_for(self._quiet.wait(), _ANSWER_SECONDS)
        return self._seconds

    def end(self) -> tuple[list[int], int]:
        """Close all; return the acknowledged records, and how many connections the other side had closed."""
        self.ending = True
        for connection in self._connections:
            connection.transport.abort()
        return self._acknowledged, self.lost


async def _obey(sender: _Sender) -> None:
    loop = asyncio.get_running_loop()
    while words := (await loop.run_in_executor(None, sys.stdin.readline)).split():
        match words:
            case ["open", count]:
                answer: object = await sender.open(int(count))
            case ["send", rate, seconds]:
                answer = await sender.send(float(rate), float(seconds))
            case _:
                answer = sender.end()
        print(json.dumps(answer), flush=True)  # noqa: T201  for the benchmark


async def _main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    await _obey(_Sender(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))


if __name__ == "__main__":
    uvloop.run(_main())

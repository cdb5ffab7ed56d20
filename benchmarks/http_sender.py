"""Send one request repeatedly on many connections, each as soon as the last was answered; for `benchmarks.http`.

Run as ``python -m benchmarks.http_sender PORT CONNECTIONS LINES IDENTITY SECONDS [LINE]``; prints the answers per
second and the median time to an answer, in seconds. IDENTITY: 0 sends no key, 1 a key with each request, and 2 the
requests of each connection as those of a channel.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from typing import cast

import uvloop

_LINE = b'{"n": 12345, "text": "%s"}' % (b"x" * 75)
_WARM_UP_SECONDS = 1.0


class _Connection(asyncio.Protocol):
    def __init__(self, number: int, body: bytes, times: list[float], *, lines: int, identity: int) -> None:
        self._number = number
        self._body = body
        self._times = times
        self._lines = lines
        self._identity = identity
        self._sent = 0
        self._at = 0.0
        self._buffer = b""
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is not a subclass of asyncio's.
        self._transport = cast("asyncio.WriteTransport", transport)
        self._send()

    def _send(self) -> None:
        name = b"%d-%d" % (os.getpid(), self._number)
        identity = (
            b"",
            b"Idempotency-Key: %s-%d\r\n" % (name, self._sent),
            b"Forebay-Channel: %s\r\nForebay-Offset: %d\r\n" % (name, self._sent * self._lines),
        )[self._identity]
        self._sent += 1
        self._at = time.perf_counter()
        self._transport.write(
            b"POST /v1/s HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-ndjson\r\n"
            b"%sContent-Length: %d\r\n\r\n%s" % (identity, len(self._body), self._body)
        )

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, separator, body = self._buffer.partition(b"\r\n\r\n")
        if not separator:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        if not head.startswith(b"HTTP/1.1 200 "):
            raise RuntimeError(self._buffer.decode())
        self._buffer = b""
        self._times.append(time.perf_counter() - self._at)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc


async def _run(port: int, connections: int, lines: int, seconds: float, *, identity: int, line: bytes) -> None:
    loop = asyncio.get_running_loop()
    times: list[float] = []
    body = b"\n".join([line] * lines)
    made = [
        await loop.create_connection(
            lambda n=n: _Connection(n, body, times, lines=lines, identity=identity),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        for n in range(connections)
    ]
    await asyncio.sleep(_WARM_UP_SECONDS)
    first, began = len(times), time.perf_counter()
    await asyncio.sleep(seconds)
    answered, took = len(times) - first, time.perf_counter() - began
    print(answered / took, statistics.median(times[first:]))  # noqa: T201  for the benchmark
    for transport, _ in made:
        transport.abort()


if __name__ == "__main__":
    _PORT, _CONNECTIONS, _LINES, _IDENTITY = map(int, sys.argv[1:5])
    _SENT = sys.argv[6].encode() if len(sys.argv) > 6 else _LINE  # noqa: PLR2004  the last argument
    uvloop.run(_run(_PORT, _CONNECTIONS, _LINES, float(sys.argv[5]), identity=_IDENTITY, line=_SENT))

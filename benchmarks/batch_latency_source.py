"""Send lines of 100 bytes at a steady pace, to one connection after the other: `benchmarks.batch_latency`'s source."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RECORDS_PER_SECOND = 10_000
CHUNKS_PER_SECOND = 20
_KEYS = 1_000
_LINE_BYTES = 100
_PER_CHUNK = RECORDS_PER_SECOND // CHUNKS_PER_SECOND


def keyed_chunks() -> Callable[[int], bytes]:
    """Return a function that makes the chunk of a number: its lines begin with one of 1,000 keys."""
    chunks = [
        b"".join(_line(f"key{(number * 7919 + index) % _KEYS}") for index in range(_PER_CHUNK))
        for number in range(CHUNKS_PER_SECOND)
    ]
    return lambda number: chunks[number % len(chunks)]


def stamped_chunk(_number: int) -> bytes:
    """Return a chunk whose lines begin with the moment at which it is sent, in seconds since the epoch."""
    return _line(f"{time.time():.4f}") * _PER_CHUNK


@contextmanager
def source(chunk: Callable[[int], bytes], begins: threading.Event | None = None) -> Iterator[int]:
    """Serve 20 chunks a second, each made at the moment at which it is sent; yield the port.

    With `begins`, nothing is sent before it is set.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                if begins is not None:
                    begins.wait()
                _send(connection, chunk, stop)

    thread = threading.Thread(target=serve, name="source", daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        if begins is not None:
            begins.set()
        listener.close()


def _line(word: str) -> bytes:
    return f"{word} ".encode().ljust(_LINE_BYTES - 1, b"-") + b"\n"


def _send(connection: socket.socket, chunk: Callable[[int], bytes], stop: threading.Event) -> None:
    begun, sent = time.monotonic(), 0
    try:
        while not stop.is_set():
            connection.sendall(chunk(sent))
            sent += 1
            # Sleep until a time on the clock: fixed pauses would add up their errors.
            time.sleep(max(0.0, begun + sent / CHUNKS_PER_SECOND - time.monotonic()))
    except OSError:
        return

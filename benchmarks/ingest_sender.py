"""Send lines of 100 bytes, as fast as the connected process reads them: the sender of `benchmarks.ingest`.

One process serves all that is measured. It sends a prepared file by `sendfile`, again and again: no line passes
through Python, and the file is far larger than any codec's window.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

LINE_BYTES = 100
CORPUS_LINES = 320_000
_PATHS = ("/api/v1/orders", "/api/v1/users", "/static/app.js", "/login", "/api/v2/search", "/cart/items")
_SEND_BYTES = 4 * 2**20


def write_corpus(path: Path, lines: int = CORPUS_LINES) -> None:
    """Write a web server's log: times, addresses, paths, durations, and an id of 64 random bits in each line."""
    chance = random.Random(1)  # noqa: S311  the same lines in each run
    with path.open("w", encoding="ascii", newline="\n") as file:
        for number in range(lines):
            second, millisecond = divmod(number * 3, 1000)
            line = (
                f"12:{second // 60 % 60:02d}:{second % 60:02d}.{millisecond:03d} "
                f"10.{chance.randrange(4)}.{chance.randrange(256)}.{chance.randrange(256)} "
                f"{chance.choice(('GET', 'GET', 'GET', 'POST', 'PUT'))} {chance.choice(_PATHS)}/"
                f"{chance.randrange(10**6)} {chance.choice((200, 200, 200, 200, 304, 404, 500))} "
                f"{chance.randrange(20_000)}b {chance.randrange(900)}ms request={chance.getrandbits(64):016x} "
            )
            file.write(line[: LINE_BYTES - 1].ljust(LINE_BYTES - 1, "-") + "\n")


@contextlib.contextmanager
def sender(corpus: Path) -> Iterator[int]:
    """Run a sender, which serves one connection after the other; yield its port."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(str(corpus), theirs), daemon=True)
    process.start()
    try:
        port: int = ours.recv()
        yield port
    finally:
        process.kill()
        process.join()


def _serve(corpus: str, pipe: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pipe.send(listener.getsockname()[1])
        while True:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                _send(connection, corpus)


def _send(connection: socket.socket, corpus: str) -> None:
    """Send the file repeatedly until the other side is gone."""
    file = os.open(corpus, os.O_RDONLY)
    try:
        size = os.fstat(file).st_size
        while True:
            offset = 0
            while offset < size:
                offset += os.sendfile(connection.fileno(), file, offset, min(_SEND_BYTES, size - offset))
    finally:
        os.close(file)

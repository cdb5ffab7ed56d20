"""Run a bare loop that does the least that a receiver must do: the limit for `benchmarks.ingest` on this machine.

It reads bytes from the same sender, counts newlines, and writes 16 MiB at a time past the page cache, synced. It makes
no records, blocks or checksums, registers nothing, and nothing can be read again. One thread reads and counts, a second
one writes; both reuse the same buffers.
"""

from __future__ import annotations

import mmap
import os
import queue
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

_NEWLINE = 10
_READ_BYTES = 2**20
_BUFFER_BYTES = 16 * 2**20
_BUFFERS = 4
_SEGMENT_BYTES = 128 * 2**20


@dataclass(frozen=True, slots=True)
class Bare:
    """Hold the figures of the loop while it was measured; CPU of both threads in seconds."""

    records_per_second: float
    cpu_per_million: float


def bare_loop(directory: Path, port: int, *, warm_up: float, seconds: float) -> Bare:
    """Receive, count and write for `warm_up` seconds, then measure for `seconds`."""
    free: queue.Queue[mmap.mmap] = queue.Queue()
    full: queue.Queue[mmap.mmap | None] = queue.Queue()
    for _ in range(_BUFFERS):
        free.put(mmap.mmap(-1, _BUFFER_BYTES))
    writer = threading.Thread(target=_write, args=(directory, full, free), name="bare writer")
    writer.start()
    lines = 0
    counted_from, cpu_from, began = 0, 0.0, 0.0
    end = time.perf_counter() + warm_up
    try:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            while True:
                lines += _fill(connection, buffer := free.get())
                full.put(buffer)
                now = time.perf_counter()
                if now < end:
                    continue
                if began:
                    cpu = time.process_time() - cpu_from
                    found = lines - counted_from
                    return Bare(found / (now - began), cpu / found * 1e6)
                counted_from, cpu_from, began = lines, time.process_time(), now
                end = now + seconds
    finally:
        full.put(None)
        writer.join()


def _fill(connection: socket.socket, buffer: mmap.mmap) -> int:
    """Read until the buffer is full; return how many newlines are in it."""
    view, octets = memoryview(buffer), np.frombuffer(buffer, dtype=np.uint8)
    done = lines = 0
    while done < _BUFFER_BYTES:
        count = connection.recv_into(view[done : done + _READ_BYTES])
        if count == 0:
            raise ConnectionError("the sender is gone")
        lines += int(np.count_nonzero(octets[done : done + count] == _NEWLINE))
        done += count
    return lines


def _write(directory: Path, full: queue.Queue[mmap.mmap | None], free: queue.Queue[mmap.mmap]) -> None:
    """Write and sync each buffer, in segments of Forebay's size; each new segment's file replaces the one before."""
    path = directory / "bare"
    file, written = -1, _SEGMENT_BYTES
    try:
        while (buffer := full.get()) is not None:
            if written >= _SEGMENT_BYTES:
                if file >= 0:
                    os.close(file)
                    path.unlink()
                file, written = _create(path), 0
            written += os.write(file, buffer)
            os.fdatasync(file)
            free.put(buffer)
    finally:
        if file >= 0:
            os.close(file)
            path.unlink()


def _create(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return os.open(path, flags | getattr(os, "O_DIRECT", 0), 0o644)
    except OSError:
        # A file system without direct writes. Some create the file before they report the error.
        path.unlink(missing_ok=True)
        return os.open(path, flags, 0o644)

"""Measure the disk's own rate for what the write-ahead log does: append a block, sync, repeat."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_SEGMENT_BYTES = 128 * 2**20


def synced_write_rate(directory: Path, block_bytes: int, seconds: float) -> float:
    """Return the bytes per second of incompressible blocks, each appended and synced, in segments of Forebay's size."""
    block = os.urandom(block_bytes)
    written = 0
    segments: list[Path] = []
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        segments.append(directory / f"disk-{len(segments)}")
        file = os.open(segments[-1], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        for _ in range(max(1, _SEGMENT_BYTES // block_bytes)):
            written += os.write(file, block)
            os.fdatasync(file)
            if time.perf_counter() - began >= seconds:
                break
        os.close(file)
    took = time.perf_counter() - began
    for segment in segments:
        segment.unlink()
    return written / took

"""Write large frames past the page cache, which takes a tenth of the processor time of copying them into it.

A log is written once and read once, soon or never. In the page cache it displaces data that others read again, and on a
machine where memory must first be freed for it, that costs more than everything else a receiver does.

Such a write takes whole pages, from memory at a page's start. Frames follow each other without gaps, so each has a
*head*, up to the next page's start, a *middle* of whole pages, and a *tail*. Only the middle is written here, in
portions through a buffer; head and tail are appended as usual. Because the parts are written in order, a file after a
crash is a prefix of what was written, as with plain writes.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from typing import TYPE_CHECKING

from receiver_runtime.block_store.frames.files import DIRECT_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

#: A frame from this size on is written past the page cache. Smaller ones come from streams that are slow enough for
#: the cache, where the batch that reads them next finds them.
LEAST_DIRECT_BYTES = 4 * 2**20
#: Bytes written at once: enough that the disk, and not the cost of a call, sets the speed.
PORTION_BYTES = 4 * 2**20


class Portions:
    """Hold buffers of ``PORTION_BYTES``, at a page's start. Safe from any thread; a returned buffer is used again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: mmap.mmap | None = None

    @contextlib.contextmanager
    def borrowed(self) -> Iterator[mmap.mmap]:
        """Lend a buffer, with any content."""
        with self._lock:
            free, self._free = self._free, None
        buffer = free or mmap.mmap(-1, PORTION_BYTES)
        try:
            yield buffer
        finally:
            # One buffer is kept: few threads write at the same time.
            with self._lock:
                self._free = buffer


def size_of(buffers: Sequence[pa.Buffer | bytes]) -> int:
    """Return the buffers' total size in bytes."""
    return sum(map(len, buffers))


def split(
    buffers: Sequence[pa.Buffer | bytes], offset: int
) -> tuple[list[pa.Buffer], list[pa.Buffer], list[pa.Buffer]]:
    """Return the head, the middle and the tail of a frame that begins at ``offset`` in its file; nothing is copied."""
    import pyarrow as pa  # noqa: PLC0415  see `frame`

    parts = [part if isinstance(part, pa.Buffer) else pa.py_buffer(part) for part in buffers]
    total = size_of(parts)
    head = min(total, -offset % DIRECT_BYTES)
    middle = (total - head) // DIRECT_BYTES * DIRECT_BYTES
    return _range(parts, 0, head), _range(parts, head, middle), _range(parts, head + middle, total - head - middle)


def copies(parts: Sequence[pa.Buffer], buffer: mmap.mmap) -> Iterator[memoryview]:
    """Yield the content of these parts, copied into ``buffer`` a portion at a time; each is valid until the next."""
    import pyarrow as pa  # noqa: PLC0415  see `frame`

    view = memoryview(buffer)
    target = pa.py_buffer(buffer)
    total = size_of(parts)
    for start in range(0, total, PORTION_BYTES):
        size = min(PORTION_BYTES, total - start)
        # Arrow copies without holding the GIL.
        sink = pa.FixedSizeBufferWriter(target)
        for part in _range(parts, start, size):
            sink.write(part)
        yield view[:size]


def _range(parts: Sequence[pa.Buffer], start: int, length: int) -> list[pa.Buffer]:
    found = []
    for part in parts:
        if length <= 0:
            break
        if start >= part.size:
            start -= part.size
            continue
        piece = part.slice(start, min(length, part.size - start))
        found.append(piece)
        length -= piece.size
        start = 0
    return found

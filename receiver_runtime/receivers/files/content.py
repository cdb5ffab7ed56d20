"""Reads the bytes of one file from any offset: of a plain file, a compressed one, or an object.

Owns descriptors and streams; knows no directory and no record. To get to an offset in a compressed file, it is read
from its beginning, unless the read continues where the last one ended.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from receiver_runtime.receivers.files.local_tree import open_local

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from receiver_runtime.receivers.files.local_tree import LocalTree

#: pyarrow's codec by the suffix of a compressed file's name.
CODECS = {".bz2": "bz2", ".gz": "gzip", ".zst": "zstd"}

_SKIP_BYTES = 2**20  # how much to decompress at a time on the way to an offset


class Content(Protocol):
    """One open file. Every method raises OSError."""

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on, fewer only at the file's end."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


def codec_of(path: str) -> str | None:
    """Return the codec of a file of this name; None: it is not compressed."""
    return next((codec for suffix, codec in CODECS.items() if path.endswith(suffix)), None)


class LocalFile:
    """A plain file, read by its descriptor: renaming or deleting it does not matter.

    Args:
        path: of a regular file.
        tree: the directory below which it must be; None: the caller trusts the file's directory.
    """

    def __init__(self, path: str, tree: LocalTree | None = None) -> None:
        self.descriptor = open_local(path) if tree is None else tree.open(path)

    @property
    def stat(self) -> os.stat_result:
        """Return the file's status as it is now."""
        return os.fstat(self.descriptor)

    def read(self, offset: int, size: int) -> bytes:
        """See ``Content``."""
        data = os.pread(self.descriptor, size, offset)
        while len(data) < size and (more := os.pread(self.descriptor, size - len(data), offset + len(data))):
            data += more
        return data

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)


def open_compressed(path: str, tree: LocalTree) -> Any:  # noqa: ANN401  pyarrow has no types
    """Open a file's compressed bytes from their beginning, as pyarrow's file. Raises OSError."""
    return pa.PythonFile(os.fdopen(tree.open(path), "rb", buffering=0), mode="r")


class OpenedFile:
    """A file that pyarrow has opened for random access, such as an object."""

    def __init__(self, file: Any) -> None:  # noqa: ANN401  pyarrow has no types
        self._file = file

    def read(self, offset: int, size: int) -> bytes:
        """See ``Content``."""
        data: bytes = self._file.read_at(max(0, min(size, self._file.size() - offset)), offset)
        return data

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class DecompressedFile:
    """The decompressed content of a file.

    Args:
        open_raw: opens the compressed bytes from their beginning, as pyarrow's file or stream.
    """

    def __init__(self, open_raw: Callable[[], Any], codec: str) -> None:
        self._open_raw = open_raw
        self._codec = codec
        self._stream: Any = None
        self._at = 0
        # The result of the last read, which ends at ``_at``. The next read begins within it, at the line it cut off.
        self._last = b""

    def read(self, offset: int, size: int) -> bytes:
        """See ``Content``. Raises OSError also where the file is cut short or is not compressed like this."""
        try:
            if self._stream is None or offset < self._at - len(self._last):
                self.close()
                self._stream = pa.CompressedInputStream(self._open_raw(), self._codec)
            while self._at < offset:
                self._last = self._next(min(_SKIP_BYTES, offset - self._at))
                if not self._last:
                    return b""
                self._at += len(self._last)
            held = self._last[len(self._last) - (self._at - offset) :]
            found = [held] if held else []
            size -= len(held)
            while size > 0 and (data := self._next(size)):
                found.append(data)
                size -= len(data)
                self._at += len(data)
        except pa.ArrowException as error:
            self.close()
            raise OSError(f"it can't be decompressed: {error}") from error
        except OSError:
            self.close()
            raise
        self._last = found[0] if len(found) == 1 else b"".join(found)
        return self._last[: len(self._last) + size] if size < 0 else self._last

    def _next(self, size: int) -> bytes:
        # Not the stream's `read`: where it fails, pyarrow never frees the bytes that it had made room for.
        data: bytes = self._stream.read_buffer(size).to_pybytes()
        return data

    def close(self) -> None:
        """Close the stream."""
        self._at = 0
        self._last = b""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


class OpenContents:
    """Keep at most ``most`` files open, and close the least recently used one beyond that."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: OrderedDict[Hashable, Content] = OrderedDict()

    def get(self, key: Hashable) -> Content | None:
        """Return the open file; None: it is not open."""
        found = self._open.get(key)
        if found is not None:
            self._open.move_to_end(key)
        return found

    def put(self, key: Hashable, content: Content) -> None:
        """Keep a file open."""
        self._open[key] = content
        while len(self._open) > self._most:
            self._open.popitem(last=False)[1].close()

    def close(self, key: Hashable) -> None:
        """Close a file, if it is open."""
        found = self._open.pop(key, None)
        if found is not None:
            found.close()

    def close_all(self) -> None:
        """Close all files."""
        for key in list(self._open):
            self.close(key)

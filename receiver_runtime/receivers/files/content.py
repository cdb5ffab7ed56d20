"""Reads the bytes of one file from any offset: of a plain file, a compressed one, or an object.

Owns descriptors and streams; knows no directory and no record. To get to an offset in a compressed file, it is read
from its beginning, unless the read continues where the last one ended.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import pyarrow as pa

from receiver_runtime.receivers.files.file_kinds import KIND_BYTES, check_decompressed, first_bytes, open_decompressed
from receiver_runtime.receivers.files.local_tree import open_local

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from receiver_runtime.receivers.files.file_kinds import Codec, Decompressed
    from receiver_runtime.receivers.files.local_tree import LocalTree

_SKIP_BYTES = 2**20  # how much to decompress at a time on the way to an offset
_FIRST_BYTES = 2**16  # how much of an object is read for its first bytes: all of a small one


class Content(Protocol):
    """One open file. Every method raises OSError."""

    def read(self, offset: int, size: int) -> bytes:
        """Return ``size`` bytes from ``offset`` on, fewer only at the file's end."""
        ...

    def next_data(self, offset: int) -> int:
        """Return where the next bytes are that are no hole of the file system, or ``offset`` where that is unknown."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class _Closable(Protocol):
    def close(self) -> None: ...


_Opened = TypeVar("_Opened", bound=_Closable)


class LocalFile:
    """Read a plain file by its descriptor: renaming or deleting it does not matter.

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

    def next_data(self, offset: int) -> int:
        """See ``Content``."""
        try:
            return os.lseek(self.descriptor, offset, os.SEEK_DATA)
        except (OSError, AttributeError):
            # It is a hole up to its end, or its file system or operating system knows no holes.
            return offset

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)


def open_compressed(path: str, tree: LocalTree) -> Any:  # noqa: ANN401  pyarrow has no types
    """Open a file's compressed bytes from their beginning, as pyarrow's file. Raises OSError."""
    return pa.PythonFile(os.fdopen(tree.open(path), "rb", buffering=0), mode="r")


class OpenedFile:
    """Read a file that pyarrow has opened for random access, such as an object.

    Its first bytes are kept: they are looked at before the file is read, and each read of an object is a request.
    """

    def __init__(self, file: Any) -> None:  # noqa: ANN401  pyarrow has no types
        self._file = file
        self._first: bytes | None = None

    def read(self, offset: int, size: int) -> bytes:
        """See ``Content``."""
        size = max(0, min(size, self._file.size() - offset))
        if offset + size <= _FIRST_BYTES:
            if self._first is None:
                self._first = self._file.read_at(min(_FIRST_BYTES, self._file.size()), 0)
            return self._first[offset : offset + size]
        data: bytes = self._file.read_at(size, offset)
        return data

    def next_data(self, offset: int) -> int:
        """See ``Content``: an object has no holes."""
        return offset

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class StreamedFile:
    """Read what is opened as a stream.

    Args:
        open_stream: opens the bytes from their beginning.
        check: raises OSError for first bytes of a kind that is not read.
    """

    def __init__(self, open_stream: Callable[[], Decompressed], check: Callable[[bytes], None]) -> None:
        self._open_stream = open_stream
        self._check = check
        self._stream: Decompressed | None = None
        self._at = 0
        # The result of the last read, which ends at ``_at``. The next read begins within it, at the line it cut off.
        self._last = b""

    def read(self, offset: int, size: int) -> bytes:
        """See ``Content``. Raises OSError also where the file is cut short or is not compressed like this.

        Raises UnreadableKindError where what is compressed has no lines.
        """
        try:
            stream = self._stream
            if stream is None or offset < self._at - len(self._last):
                self.close()
                stream = self._stream = self._open_stream()
                self._last = first_bytes(stream, KIND_BYTES)
                self._at = len(self._last)
                self._check(self._last)
            while self._at < offset:
                self._last = stream.read(min(_SKIP_BYTES, offset - self._at))
                if not self._last:
                    return b""
                self._at += len(self._last)
            held = self._last[len(self._last) - (self._at - offset) :]
            found = [held] if held else []
            size -= len(held)
            while size > 0 and (data := stream.read(size)):
                found.append(data)
                size -= len(data)
                self._at += len(data)
        except OSError:
            self.close()
            raise
        self._last = found[0] if len(found) == 1 else b"".join(found)
        return self._last[: len(self._last) + size] if size < 0 else self._last

    def next_data(self, offset: int) -> int:
        """See ``Content``: what is compressed has no holes."""
        return offset

    def close(self) -> None:
        """Close the stream."""
        self._at = 0
        self._last = b""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


class DecompressedFile(StreamedFile):
    """Read the decompressed content of a file.

    Args:
        open_raw: opens the compressed bytes from their beginning, as pyarrow's file or stream.
    """

    def __init__(self, open_raw: Callable[[], Any], codec: Codec) -> None:
        super().__init__(lambda: open_decompressed(open_raw(), codec), lambda head: check_decompressed(head, codec))


class OpenContents(Generic[_Opened]):
    """Keep at most ``most`` files open, and close the least recently used one beyond that."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: OrderedDict[Hashable, _Opened] = OrderedDict()

    def get(self, key: Hashable) -> _Opened | None:
        """Return the open file; None: it is not open."""
        found = self._open.get(key)
        if found is not None:
            self._open.move_to_end(key)
        return found

    def put(self, key: Hashable, content: _Opened) -> None:
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

"""List the directories and prefixes in which files arrive, and open their files. Must not remember a file."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from receiver_runtime.receivers.files.content import Content, LocalFile, OpenedFile, open_compressed
from receiver_runtime.receivers.files.local_tree import LocalTree, SymlinkRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Found:
    """Describe a file of a listing; ``path`` is relative to the listed directory or prefix."""

    path: str
    size: int
    modified_ms: int


class Folder(Protocol):
    """List a directory or prefix, and open its files. Every method raises OSError."""

    @property
    def refused(self) -> Sequence[tuple[str, OSError]]:
        """Return the entries that the last listing left out although they lead to files, each with the reason."""
        ...

    def files(self) -> Iterator[Found]:
        """Yield every file below, in any order."""
        ...

    def open_plain(self, path: str) -> Content:
        """Open a file to read it as it is."""
        ...

    def open_raw(self, path: str) -> Any:  # noqa: ANN401  pyarrow has no types
        """Open a file as one of pyarrow's that can seek, to be decompressed."""
        ...

    def shown(self, path: str) -> str:
        """Return the whole path, as the file's records have it."""
        ...


class LocalFolder:
    """List a directory of this host, and open its files.

    With ``follow_symlinks``, links to files below it are read too.
    """

    def __init__(self, root: str, *, follow_symlinks: bool = False) -> None:
        self._root = root.rstrip("/") or "/"
        self._tree = LocalTree(self._root, follow_symlinks=follow_symlinks)
        self.refused: list[tuple[str, OSError]] = []

    def files(self) -> Iterator[Found]:
        """See ``Folder``. Raises also where a subdirectory can't be listed."""
        directories = [""]
        self.refused = []
        while directories:
            below = directories.pop()
            with os.scandir(f"{self._root}/{below}") as entries:
                for entry in entries:
                    if entry.name.startswith(("_", ".")):
                        continue
                    path = f"{below}{entry.name}"
                    status = self._status(entry, path)
                    if status is None:
                        continue
                    if stat.S_ISDIR(status.st_mode) and not entry.is_symlink():
                        directories.append(f"{path}/")
                    elif stat.S_ISREG(status.st_mode):
                        yield Found(path, status.st_size, status.st_mtime_ns // 10**6)

    def _status(self, entry: os.DirEntry[str], path: str) -> os.stat_result | None:
        """Return the status of an entry; None: it is gone, or a link that is not followed. Raises OSError."""
        if not entry.is_symlink():
            try:
                return entry.stat()
            except FileNotFoundError:
                return None
        try:
            return self._tree.status(self.shown(path))
        except SymlinkRefusedError as error:
            if _leads_to_file(entry):
                self.refused.append((path, error))
        except OSError:
            # It leads to itself, or to nothing.
            pass
        return None

    def open_plain(self, path: str) -> Content:
        """See ``Folder``."""
        return LocalFile(self.shown(path), self._tree)

    def open_raw(self, path: str) -> Any:  # noqa: ANN401
        """See ``Folder``."""
        return open_compressed(self.shown(path), self._tree)

    def shown(self, path: str) -> str:
        """See ``Folder``."""
        return f"{self._root}/{path}"


class ObjectFolder:
    """List the objects below a prefix, and open them.

    Args:
        filesystem: one of pyarrow's.
        prefix: the bucket and the path in it.
        url: the prefix's URL, for records and messages.
    """

    def __init__(self, filesystem: Any, prefix: str, url: str) -> None:  # noqa: ANN401
        self.refused = ()
        self._filesystem = filesystem
        self._prefix = prefix.strip("/")
        self._url = url.rstrip("/")

    def files(self) -> Iterator[Found]:
        """See ``Folder``."""
        from pyarrow.fs import FileSelector, FileType  # noqa: PLC0415  most read directories

        below = len(self._prefix) + 1
        # A prefix without objects is no error, but a missing bucket is one.
        if self._filesystem.get_file_info(self._prefix.partition("/")[0]).type == FileType.NotFound:
            raise FileNotFoundError(f"{self._url}: there is no such bucket")
        for info in self._filesystem.get_file_info(FileSelector(self._prefix, allow_not_found=True, recursive=True)):
            if info.type == FileType.File:
                yield Found(info.path[below:], info.size, info.mtime_ns // 10**6)

    def open_plain(self, path: str) -> Content:
        """See ``Folder``."""
        return OpenedFile(self._filesystem.open_input_file(f"{self._prefix}/{path}"))

    def open_raw(self, path: str) -> Any:  # noqa: ANN401
        """See ``Folder``."""
        return self._filesystem.open_input_file(f"{self._prefix}/{path}")

    def shown(self, path: str) -> str:
        """See ``Folder``."""
        return f"{self._url}/{path}"


def _leads_to_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:
        return False

"""Keep the files of sinks at one place: in a directory, or on an object store. What a file is for is up to its sink.

Spark's tasks write through a store, so this module loads neither Spark nor Dagster nor the driver log. A store is
pickled with its secrets for them, so its text never shows any.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestration.sinks.directories import hidden_beside, sync
from receiver_runtime.block_store.roots import without_secrets

if TYPE_CHECKING:
    from orchestration.declarations.sink import Check


class FileStore(ABC):
    """Keep files below one place, by keys that are relative to it. Picklable. Every method may raise OSError."""

    __slots__ = ()

    @property
    @abstractmethod
    def place(self) -> str:
        """Return the directory, or the URL without secrets; with a slash and a key it names a file."""

    @abstractmethod
    def create(self, key: str) -> Any:  # noqa: ANN401  a stream of pyarrow's
        """Open a stream to write the new file `key`."""

    @abstractmethod
    def keep(self, key: str, stream: Any) -> int:  # noqa: ANN401
        """Finish the stream of `create`, so that the file is durable on return; return its size in bytes."""

    @abstractmethod
    def open(self, key: str) -> Any:  # noqa: ANN401  a file of pyarrow's
        """Open a file to read it at random."""

    @abstractmethod
    def exists(self, key: str) -> bool:
        """Return whether there is a file."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """Delete a file; a missing one is no error."""

    @abstractmethod
    def show(self, key: str, to: str, check: Check) -> None:
        """Give a file a second name, atomically and durably in place of an earlier file; `check` is called before."""

    def put(self, key: str, data: bytes) -> None:
        """Write a new file, durably."""
        stream = self.create(key)
        stream.write(data)
        self.keep(key, stream)


@dataclass(frozen=True, slots=True)
class LocalFiles(FileStore):
    """Keep files in a directory that all writers share; each name down to a file is durable with it."""

    directory: str

    @property
    def place(self) -> str:
        """Return the directory."""
        return self.directory

    def create(self, key: str) -> Any:  # noqa: ANN401
        """Open a stream, and make the folders above it."""
        import pyarrow as pa  # noqa: PLC0415

        file = self._at(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        return pa.OSFile(str(file), "wb")

    def keep(self, key: str, stream: Any) -> int:  # noqa: ANN401
        """Sync the file, and each folder above it up to the directory."""
        stream.close()
        file = self._at(key)
        sync(file)
        for folder in file.parents:
            sync(folder)
            if folder == Path(self.directory):
                break
        return file.stat().st_size

    def open(self, key: str) -> Any:  # noqa: ANN401
        """Open a file."""
        import pyarrow as pa  # noqa: PLC0415

        return pa.OSFile(str(self._at(key)), "rb")

    def exists(self, key: str) -> bool:
        """Return whether there is a file."""
        return self._at(key).exists()

    def remove(self, key: str) -> None:
        """Delete a file."""
        file = self._at(key)
        file.unlink(missing_ok=True)
        sync(file.parent)

    def show(self, key: str, to: str, check: Check) -> None:
        """Link the file under the other name."""
        shown = self._at(to)
        shown.parent.mkdir(parents=True, exist_ok=True)
        linked = hidden_beside(shown)
        os.link(self._at(key), linked)
        check()
        linked.replace(shown)
        sync(shown.parent)

    def _at(self, key: str) -> Path:
        return Path(self.directory) / key


class ArrowFiles(FileStore):
    """Keep objects by one of pyarrow's file systems. An object is there as a whole when its stream is closed."""

    __slots__ = ()

    @abstractmethod
    def _at(self, key: str) -> tuple[Any, str]:
        """Return the file system and the path in it."""

    def create(self, key: str) -> Any:  # noqa: ANN401
        """Open a stream; one that is never closed makes no object."""
        filesystem, path = self._at(key)
        return filesystem.open_output_stream(path)

    def keep(self, key: str, stream: Any) -> int:  # noqa: ANN401, ARG002
        """Complete the object."""
        size: int = stream.tell()
        stream.close()
        return size

    def open(self, key: str) -> Any:  # noqa: ANN401
        """Open an object."""
        filesystem, path = self._at(key)
        return filesystem.open_input_file(path)

    def exists(self, key: str) -> bool:
        """Ask the store for the object."""
        from pyarrow.fs import FileType  # noqa: PLC0415

        filesystem, path = self._at(key)
        return bool(filesystem.get_file_info(path).type == FileType.File)

    def remove(self, key: str) -> None:
        """Delete an object."""
        filesystem, path = self._at(key)
        try:
            filesystem.delete_file(path)
        except FileNotFoundError:
            return

    def show(self, key: str, to: str, check: Check) -> None:
        """Copy the object, which is small: not each of the file systems has a copy of its own."""
        with self.open(key) as file:
            data = file.read()
        check()
        self.put(to, data)


@dataclass(frozen=True, slots=True)
class ObjectFiles(ArrowFiles):
    """Keep objects below a URL as the block store has them, with its secrets in it."""

    url: str = field(repr=False)

    @property
    def place(self) -> str:
        """Return the URL without secrets."""
        return without_secrets(self.url).rstrip("/")

    def _at(self, key: str) -> tuple[Any, str]:
        from receiver_runtime.block_store.stores.objects import open_objects  # noqa: PLC0415

        return open_objects(self.url).place(key)

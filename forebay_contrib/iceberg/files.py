"""Keep the files of an Iceberg table where it lies: in a directory, or where pyiceberg's FileIO of the table writes.

Spark's tasks get the properties of the FileIO, with the credentials that the catalog gave for this table, and none of
the catalog's own. This module loads neither Spark nor Dagster nor the driver log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from orchestration.declarations.sink import SinkError
from orchestration.sinks.file_stores import FileStore, LocalFiles

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

    from orchestration.declarations.sink import Check

#: Characters in a location that programs read in several ways, because it may be a URL.
AMBIGUOUS = frozenset("%#?")
# Beginnings of the properties of files; the others are of the catalog itself.
_OF_FILES = ("s3.", "client.", "gcs.", "adls.", "hdfs.", "hf.", "oss.", "py-io-impl")
_SIGNER = "s3.signer"


def store_of(table: Table | None, place: str, where: str) -> FileStore:
    """Return the files at `place` as the table's FileIO has them. Raises SinkError."""
    parts = urlsplit(place)
    is_local = parts.scheme in ("", "file")
    # Of these, pyiceberg, pyarrow and Spark read different paths.
    if AMBIGUOUS & set(place) or (is_local and (parts.netloc or not parts.path.startswith("/"))):
        raise SinkError(
            f"{where}: its Iceberg table lies at {place!r}, which programs read in several ways: give the catalog a "
            "warehouse of file:///DIRECTORY, or s3://BUCKET/PREFIX, without %, # and ?"
        )
    if is_local:
        return LocalFiles(parts.path)
    if table is None:
        raise SinkError(f"{where}: the Iceberg table of {place} does not exist any more")
    properties = {
        key: value
        for key, value in table.io.properties.items()
        if isinstance(value, str | int | float) and key.startswith(_OF_FILES)
    }
    if _SIGNER in properties:
        raise SinkError(
            f"{where}: the catalog of its Iceberg table signs each request of S3 itself ({_SIGNER}), for which "
            "Spark's tasks can't ask: have it vend credentials, or give the catalog s3.access-key-id and "
            "s3.secret-access-key"
        )
    from pyiceberg.io import load_file_io  # noqa: PLC0415

    return IcebergFiles(place, load_file_io(properties, place))


def place_of(table: Table) -> str:
    """Return where the table's data files lie."""
    place: str = table.properties.get("write.data.path") or f"{table.location()}/data"
    return place.rstrip("/")


@dataclass(frozen=True, slots=True)
class IcebergFiles(FileStore):
    """Keep objects by pyiceberg's FileIO. An object is there as a whole when its stream is closed."""

    location: str
    io: FileIO = field(repr=False)

    @property
    def place(self) -> str:
        """Return the URL."""
        return self.location

    def create(self, key: str) -> Any:  # noqa: ANN401
        """Open a stream; one that is never closed makes no object."""
        return self.io.new_output(self._at(key)).create(overwrite=True)

    def keep(self, key: str, stream: Any) -> int:  # noqa: ANN401, ARG002
        """Complete the object."""
        size: int = stream.tell()
        stream.close()
        return size

    def open(self, key: str) -> Any:  # noqa: ANN401
        """Open an object."""
        return self.io.new_input(self._at(key)).open()

    def exists(self, key: str) -> bool:
        """Ask the store for the object."""
        return self.io.new_input(self._at(key)).exists()

    def remove(self, key: str) -> None:
        """Delete an object."""
        try:
            self.io.delete(self._at(key))
        except FileNotFoundError:
            return

    def show(self, key: str, to: str, check: Check) -> None:
        """Copy the object, which is small."""
        with self.open(key) as file:
            data = file.read()
        check()
        self.put(to, data)

    def _at(self, key: str) -> str:
        return f"{self.location}/{key}"

"""Keep a table's files on an object store, by deltalake's client. Spark's workers load it, so it loads little else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestration.sinks.file_stores import ArrowFiles

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class DeltaFiles(ArrowFiles):
    """Keep objects below a table's URL with deltalake's client, so that its options mean the same to Spark's tasks."""

    url: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def place(self) -> str:
        """Return the URL."""
        return self.url

    def create(self, key: str) -> Any:  # noqa: ANN401
        """Open a stream; one that is never closed makes no object."""
        import pyarrow as pa  # noqa: PLC0415
        from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415

        handler = DeltaStorageHandler(self.url, dict(self.options))
        # Its own file of Arrow's hands on buffers, which the stream below does not take.
        return pa.PythonFile(_BytesOf(handler._handler.open_output_stream(key)), mode="w")  # noqa: SLF001

    def _at(self, key: str) -> tuple[Any, str]:
        from deltalake.fs import DeltaStorageHandler  # noqa: PLC0415
        from pyarrow.fs import PyFileSystem  # noqa: PLC0415

        return PyFileSystem(DeltaStorageHandler(self.url, dict(self.options))), key


@dataclass(slots=True)
class _BytesOf:
    """Give deltalake's stream the bytes of what is written."""

    stream: Any
    closed: bool = False

    def write(self, data: Any) -> int:  # noqa: ANN401  bytes, or a buffer
        written = bytes(data)
        self.stream.write(written)
        return len(written)

    def flush(self) -> None:
        self.stream.flush()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.stream.close()

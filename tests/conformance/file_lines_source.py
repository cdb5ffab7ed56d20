"""Complete files for the conformance suite: a directory that files are moved into, and every line in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from receiver_runtime.receivers.files.declaration import FileLines
from tests.conformance.lines_in_directory import LinesInDirectory

if TYPE_CHECKING:
    from pathlib import Path

_LINES = 25


class Incoming(LinesInDirectory):
    """A directory that complete files are moved into under their final names."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "incoming")
        self._made = root / "made"
        self._files = 0

    def source(self, **changes: Any) -> FileLines:  # noqa: ANN401  fields of the source
        return FileLines(**{"path": str(self.root), "poll_interval": "50ms", "min_age": 0, **changes})

    def send(self, records: int) -> None:
        """Write numbered lines, in new files."""
        with self._lock:
            lines = [f"line {len(self.sent) + number}" for number in range(records)]
            for first in range(0, records, _LINES):
                self._put(lines[first : first + _LINES])

    def _write(self, lines: list[str]) -> None:
        with self._lock:
            self._put(lines)

    def _put(self, lines: list[str]) -> None:
        self._files += 1
        self._made.write_bytes(b"".join(line.encode() + b"\n" for line in lines))
        self._made.rename(self.root / f"{self._files}.txt")
        self.sent += lines

"""Followed files for the conformance suite: a directory of logs that are rotated, and every line written there."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

from receiver_runtime.receivers.files.declaration import FollowedFiles
from tests.conformance.lines_in_directory import LinesInDirectory

if TYPE_CHECKING:
    from pathlib import Path

_FILES = 4
_ROTATE_BYTES = 40_000
# The header line of half of the logs.
_HEADER = "time,host,value"


class LogDirectory(LinesInDirectory):
    """A directory of logs that are rotated by renaming (some are then compressed), and every line written to them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "logs")
        self._rotated = 0

    def source(self, **changes: Any) -> FollowedFiles:  # noqa: ANN401  fields of the source
        return FollowedFiles(**{"path": f"{self.root}/*.log*", "poll_interval": "100ms", **changes})

    def send(self, records: int) -> None:
        """Write numbered lines, to all files in turn."""
        self._write([f"line {len(self.sent) + number}" for number in range(records)])

    def _write(self, lines: list[str]) -> None:
        with self._lock:
            for number in range(_FILES):
                path = self.root / f"{number}.log"
                begins = number % 2 == 0 and not path.exists()
                with path.open("ab") as file:
                    if begins:
                        file.write(_HEADER.encode() + b"\n")
                        self.sent.append(_HEADER)
                    file.write(b"".join(line.encode() + b"\n" for line in lines[number::_FILES]))
                if path.stat().st_size > _ROTATE_BYTES:
                    self._rotated += 1
                    rotated = path.rename(self.root / f"{number}.log.{self._rotated}")
                    if self._rotated % 2:
                        made = self.root / f".{rotated.name}.gz"
                        made.write_bytes(gzip.compress(rotated.read_bytes()))
                        made.rename(self.root / made.name[1:])
                        rotated.unlink()
            self.sent += lines

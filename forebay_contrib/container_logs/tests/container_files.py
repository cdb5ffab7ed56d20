"""Logs of containers for the conformance suite: lines of stdout and stderr, in pieces, in files that are rotated."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

from forebay_contrib.container_logs.declaration import ContainerLogs
from tests.conformance.lines_in_directory import LinesInDirectory

if TYPE_CHECKING:
    from pathlib import Path

_FILES = 4
_ROTATE_BYTES = 240_000
_PIECE_BYTES = 16_384


class ContainerFiles(LinesInDirectory):
    """A directory of logs of containers, half of them Docker's, and every text that was written to them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / "pods")
        self._rotated = 0
        self._lines = 0

    def source(self, **changes: Any) -> ContainerLogs:  # noqa: ANN401  fields of the source
        return ContainerLogs(**{"path": f"{self.root}/*.log*", "poll_interval": "100ms", **changes})

    def send(self, records: int) -> None:
        """Write numbered texts, to all files in turn."""
        self._write([f"line {len(self.sent) + number}" for number in range(records)])

    def _write(self, lines: list[str]) -> None:
        with self._lock:
            for number in range(_FILES):
                path = self.root / f"{number}.log"
                with path.open("ab") as file:
                    file.write(
                        b"".join(self._lines_of(text, is_docker=number % 2 > 0) for text in lines[number::_FILES])
                    )
                if path.stat().st_size > _ROTATE_BYTES:
                    self._rotated += 1
                    rotated = path.rename(self.root / f"{number}.log.{self._rotated}")
                    if self._rotated % 2:
                        made = self.root / f".{rotated.name}.gz"
                        made.write_bytes(gzip.compress(rotated.read_bytes()))
                        made.rename(self.root / made.name[1:])
                        rotated.unlink()
            self.sent += lines

    def _lines_of(self, text: str, *, is_docker: bool) -> bytes:
        """Return a text as the lines of a file: in two pieces and more where it is long, or now and then."""
        self._lines += 1
        stream = ("stdout", "stderr")[self._lines % 2]
        size = _PIECE_BYTES if len(text) > _PIECE_BYTES or self._lines % 3 else max(1, len(text) // 2)
        pieces = [text[at : at + size] for at in range(0, len(text), size)] or [""]
        time = f"2026-11-30T12:00:00.{self._lines:09d}Z"
        lines = b""
        for number, piece in enumerate(pieces):
            is_last = number == len(pieces) - 1
            if is_docker:
                log = {"log": piece + "\n" * is_last, "stream": stream, "time": time}
                lines += json.dumps(log).encode() + b"\n"
            else:
                lines += f"{time} {stream} {'F' if is_last else 'P'} {piece}\n".encode()
        return lines

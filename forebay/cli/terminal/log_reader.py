"""Read the log files of FOREBAY_HOME/logs: the newest lines, and new ones as they come.

Owns how a log that is rolled meanwhile is read on without losing or repeating a line (see
tracker_store.host.log_files). It never writes, and holds no more than the lines that are asked for.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING

from tracker_store.host.log_files import MOST_KEPT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCK_BYTES = 65_536
# A longer line is shown in parts: a program may write without newlines.
_LONGEST_LINE_BYTES = 1_048_576


def newest_lines(path: Path, count: int, *, whole: bool = False) -> tuple[list[str], int]:
    """Return the newest lines of a log, also of its rolled files, and the position after them in the log.

    `whole`: leave out a last line that has no newline yet, for what follows the log from that position on.
    Raises FileNotFoundError if there is no such log.
    """
    lines, end = _last_lines(path, count, whole=whole)
    for number in range(1, MOST_KEPT + 1):
        if len(lines) >= count:
            break
        try:
            older, _ = _last_lines(_rolled(path, number), count - len(lines))
        except FileNotFoundError:
            break
        lines = older + lines
    return lines, end


class LogFollower:
    """Give what is appended to a log after a position, also when it is rolled. For one thread.

    A log is rolled when it has 16 MiB. This notices that it has become shorter, so look several times a second.
    """

    def __init__(self, path: Path, position: int) -> None:
        """Follow the log at `path` from `position` on, as `newest_lines` returned it."""
        self._path = path
        self._position = position
        self._part = b""

    def read(self) -> Iterator[str]:
        """Yield the lines that are complete now; nothing if there is no new one, or no file."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size < self._position:
            # It was rolled: the copy has what came after the position, and the log begins again.
            yield from self._lines(_rolled(self._path, 1), self._position)
            self._position = 0
        yield from self._lines(self._path, self._position)

    def _lines(self, path: Path, position: int) -> Iterator[str]:
        try:
            log = path.open("rb")
        except FileNotFoundError:
            return
        with log:
            log.seek(position)
            while data := log.read(_BLOCK_BYTES):
                self._position = position = position + len(data)
                *complete, self._part = (self._part + data).split(b"\n")
                if len(self._part) > _LONGEST_LINE_BYTES:
                    complete.append(self._part)
                    self._part = b""
                yield from map(_text, complete)


def _last_lines(path: Path, count: int, *, whole: bool = False) -> tuple[list[str], int]:
    """Return at most `count` lines at the end of a file, and the position after them."""
    newest: deque[bytes] = deque(maxlen=count)
    position = 0
    with path.open("rb") as log:
        # A process may write faster than this reads.
        size = os.fstat(log.fileno()).st_size
        for line in log:
            if position >= size or (whole and not line.endswith(b"\n")):
                break
            newest.append(line)
            position += len(line)
    return [_text(line.removesuffix(b"\n")) for line in newest], position


def _rolled(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="backslashreplace")

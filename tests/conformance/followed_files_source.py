"""Followed files for the conformance suite: a directory of logs that are rotated, and every line written there."""

from __future__ import annotations

import gzip
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from forebay.testing.sending import Sending
from receiver_runtime.receivers.files.declaration import FollowedFiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forebay.testing.source_rig import SourceRig

_FILES = 4
_ROTATE_BYTES = 40_000
# The header line of half of the logs.
_HEADER = "time,host,value"


class LogDirectory:
    """A directory of logs that are rotated by renaming (some are then compressed), and every line written to them."""

    def __init__(self, root: Path) -> None:
        self.root = root / "logs"
        self.root.mkdir()
        self.sent: list[str] = []
        self._lock = threading.Lock()
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

    def send_odd(self) -> int:
        """Write an empty line, NUL bytes, a carriage return within a line, non-ASCII text, and nearly a megabyte."""
        odd = ["", "a\0b", "a\rb", "zwölf €", "y" * 1_000_000]
        self._write(odd)
        return len(odd)

    def sending(self) -> Sending:
        return Sending(lambda: self.send(50))

    @contextmanager
    def away(self) -> Iterator[None]:
        """Move the directory elsewhere, and back at the end."""
        with self._lock:
            elsewhere = self.root.rename(self.root.parent / "elsewhere")
            try:
                yield
            finally:
                elsewhere.rename(self.root)

    def all_came(self, rig: SourceRig) -> bool:
        return rig.registered() >= len(self.sent)

    def check(self, rig: SourceRig) -> None:
        """Check that each line came once."""
        assert sorted(row["value"] for row in rig.rows()) == sorted(self.sent)
        assert rig.failed_checks() == []

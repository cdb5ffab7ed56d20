"""Complete files for the conformance suite: a directory that files are moved into, and every line in them."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from forebay.testing.sending import Sending
from receiver_runtime.receivers.files.declaration import FileLines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forebay.testing.source_rig import SourceRig

_LINES = 25


class Incoming:
    """A directory that complete files are moved into under their final names."""

    def __init__(self, root: Path) -> None:
        self.root = root / "incoming"
        self.root.mkdir()
        self.sent: list[str] = []
        self._made = root / "made"
        self._files = 0
        self._lock = threading.Lock()

    def source(self, **changes: Any) -> FileLines:  # noqa: ANN401  fields of the source
        return FileLines(**{"path": str(self.root), "poll_interval": "50ms", "min_age": 0, **changes})

    def send(self, records: int) -> None:
        """Write numbered lines, in new files."""
        with self._lock:
            lines = [f"line {len(self.sent) + number}" for number in range(records)]
            for first in range(0, records, _LINES):
                self._put(lines[first : first + _LINES])

    def _put(self, lines: list[str]) -> None:
        self._files += 1
        self._made.write_bytes(b"".join(line.encode() + b"\n" for line in lines))
        self._made.rename(self.root / f"{self._files}.txt")
        self.sent += lines

    def send_odd(self) -> int:
        """Write an empty line, NUL bytes, a carriage return within a line, non-ASCII text, and nearly a megabyte."""
        odd = ["", "a\0b", "a\rb", "zwölf €", "y" * 1_000_000]
        with self._lock:
            self._put(odd)
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

"""Share what the conformance adapters of files have: a directory, and every line that was written there."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from forebay.testing.sending import Sending

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forebay.testing.source_rig import SourceRig


class LinesInDirectory:
    """A directory of files. A subclass writes lines to them, and declares the source."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.root.mkdir()
        self.sent: list[str] = []
        self._lock = threading.Lock()

    def send(self, records: int) -> None:
        """Write numbered lines."""
        raise NotImplementedError

    def _write(self, lines: list[str]) -> None:
        raise NotImplementedError

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

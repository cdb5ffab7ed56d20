"""Complete files for the conformance suite: a directory into which they are moved, and every line that was in them."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from receiver_runtime.sources.files import FileLines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conformance.source_rig import SourceRig

_LINES = 25


class Incoming:
    """A directory of files that are moved there under their names."""

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
        """Numbered lines, in files of their own."""
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
        """Nothing, NUL bytes, a carriage return within, more than ASCII, and nearly a megabyte."""
        odd = ["", "a\0b", "a\rb", "zwölf €", "y" * 1_000_000]
        with self._lock:
            self._put(odd)
        return len(odd)

    def sending(self) -> Sending:
        return Sending(self)

    @contextmanager
    def away(self) -> Iterator[None]:
        """The directory is elsewhere, and comes back."""
        with self._lock:
            elsewhere = self.root.rename(self.root.parent / "elsewhere")
            try:
                yield
            finally:
                elsewhere.rename(self.root)

    def all_came(self, rig: SourceRig) -> bool:
        return rig.registered() >= len(self.sent)

    def check(self, rig: SourceRig) -> None:
        """Each line came once."""
        assert sorted(row["value"] for row in rig.rows()) == sorted(self.sent)
        assert rig.failed_checks() == []


class Sending:
    """Moves files there all the time, on a thread."""

    def __init__(self, incoming: Incoming, *, records: int = 50, pause: float = 0.02) -> None:
        self._incoming = incoming
        self._records = records
        self._pause = pause
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(90)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        while not self._done.is_set():
            self._incoming.send(self._records)
            time.sleep(self._pause)

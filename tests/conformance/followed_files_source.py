"""Followed files for the conformance suite: a directory of logs that are rotated, and every line written there."""

from __future__ import annotations

import gzip
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from receiver_runtime.sources.files import FollowedFiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.conformance.source_rig import SourceRig

_FILES = 4
_ROTATE_BYTES = 40_000
# Half of the logs begin with it.
_HEADER = "time,host,value"


class LogDirectory:
    """A directory of logs that are rotated by renaming, some compressed after that, and every line that was written."""

    def __init__(self, root: Path) -> None:
        self.root = root / "logs"
        self.root.mkdir()
        self.sent: list[str] = []
        self._lock = threading.Lock()
        self._rotated = 0

    def source(self, **changes: Any) -> FollowedFiles:  # noqa: ANN401  fields of the source
        return FollowedFiles(**{"path": f"{self.root}/*.log*", "poll_interval": "100ms", **changes})

    def send(self, records: int) -> None:
        """Numbered lines, to all files in turn."""
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
        """Nothing, NUL bytes, a carriage return within, more than ASCII, and nearly a megabyte."""
        odd = ["", "a\0b", "a\rb", "zwölf €", "y" * 1_000_000]
        self._write(odd)
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
    """Writes small groups all the time, on a thread."""

    def __init__(self, logs: LogDirectory, *, records: int = 50, pause: float = 0.02) -> None:
        self._logs = logs
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
            self._logs.send(self._records)
            time.sleep(self._pause)

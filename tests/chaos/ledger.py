"""Record what each sender sent and what was acknowledged, outside the system's disks; read it back.

A ledger has one line per range of numbers. It does not depend on the system under test.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Ledger:
    """The ledger of one source; its senders append to it. Thread-safe."""

    def __init__(self, directory: Path, source: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.source = source
        self._file = (directory / f"{source}.jsonl").open("a", encoding="utf-8", buffering=1)
        self._guard = threading.Lock()

    def sent(self, first: int, last: int) -> None:
        """Record that these numbers may come out, before they are sent."""
        self._write("sent", first, last)

    def acknowledged(self, first: int, last: int) -> None:
        """Record that these numbers must come out."""
        self._write("acknowledged", first, last)

    def close(self) -> None:
        with self._guard:
            self._file.close()

    def _write(self, what: str, first: int, last: int) -> None:
        with self._guard:
            self._file.write(json.dumps([what, first, last]) + "\n")


@dataclass(slots=True)
class Told:
    """A source's numbers according to its senders: those sent, and among these the acknowledged ones."""

    sent: set[int] = field(default_factory=set)
    acknowledged: set[int] = field(default_factory=set)


def read(directory: Path) -> dict[str, Told]:
    """Read all ledgers, by source."""
    found: dict[str, Told] = {}
    for path in sorted(directory.glob("*.jsonl")):
        told = found.setdefault(path.stem, Told())
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                what, first, last = json.loads(line)
                (told.sent if what == "sent" else told.acknowledged).update(range(first, last + 1))
    return found

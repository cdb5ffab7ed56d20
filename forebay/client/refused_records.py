"""Keep the records that the receiver refused, with its reason, in a file of the spool's folder.

The file is for people: they correct and send its records again, or delete it. Nothing of a channel's offsets depends on
it. It never drops a record.
"""

from __future__ import annotations

import base64
import json
import os
import time
from typing import TYPE_CHECKING

from forebay.client.errors import SpoolDamagedError

if TYPE_CHECKING:
    from pathlib import Path

NAME = "refused.jsonl"


class RefusedRecords:
    """Append to the file, and count what it has."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.count = 0
        self.size = 0
        # The index and the record of the last line.
        self._last: tuple[int, bytes] | None = None
        try:
            with self.path.open("rb+") as file:
                for line in file:
                    if not line.endswith(b"\n"):
                        # A kill cut it short: the record is still in the spool, and is refused again.
                        file.truncate(self.size)
                        break
                    self._last = _kept(json.loads(line))
                    self.size += len(line)
                    self.count += 1
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SpoolDamagedError(
                f"{self.path}, line {self.count + 1}, is none of a refused record: {error}: move it away"
            ) from error

    def notice_removal(self) -> None:
        """Count none if the file is gone: somebody has dealt with its records."""
        if not self.path.exists():
            self.count, self.size, self._last = 0, 0, None

    def add(self, index: int, status: int, reason: str, record: bytes) -> None:
        """Keep a record durably, unless it was kept before a kill. Raises OSError."""
        self.notice_removal()
        # The indexes begin again if the spool has lost its segments: then another record may have this one.
        if self._last == (index, record):
            return
        kept: dict[str, object] = {
            "index": index,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "status": status,
            "reason": reason,
        }
        try:
            kept["record"] = record.decode()
        except UnicodeDecodeError:
            kept["record_base64"] = base64.b64encode(record).decode()
        line = json.dumps(kept).encode() + b"\n"
        with self.path.open("ab", buffering=0) as file:
            os.fchmod(file.fileno(), 0o600)
            if file.write(line) != len(line):
                file.truncate(self.size)
                raise OSError(28, "the line was not written whole", str(self.path))
            os.fsync(file.fileno())
        self.size += len(line)
        self.count += 1
        self._last = index, record


def _kept(line: dict[str, str]) -> tuple[int, bytes]:
    """Return the index and the record of a line. Raises if it is none of this file."""
    record = line["record"].encode() if "record" in line else base64.b64decode(line["record_base64"])
    return int(line["index"]), record

"""Keep copies of a state's frames on this host, decoded: the rows of some keys are then read without the others.

A copy is an Arrow file that is mapped into memory. A frame never changes, so that its copy is right or not there; the
frames of the versions that are read are kept, and any copy may be lost. Copies are not encrypted, and not synced: their
directory is of one process of a driver, which makes it and deletes it. Python workers load this module.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestration.state.state_frame import StateFrame

_SUFFIX = ".arrow"
# A copy that is being written by another task is younger than this, in seconds; an older one was left by a killed task.
_LONGEST_WRITE = 600.0


class LocalCopies:
    """Keep the copies of one bucket's frames.

    Args:
        directory: of the state on this host; made with the first copy.
        bucket: whose frames they are.
    """

    def __init__(self, directory: str, bucket: int) -> None:
        self._directory = Path(directory) / str(bucket)

    def get(self, frame: StateFrame, schema: pa.Schema) -> pa.Table | None:
        """Return a frame's rows from its copy; None: there is none that can be read."""
        try:
            with pa.memory_map(str(self._path(frame.path, frame.offset))) as source:
                table = pa.ipc.open_file(source).read_all()
        except (OSError, pa.ArrowException):
            return None
        return table if table.num_rows == frame.rows and table.schema.equals(schema) else None

    def put(self, path: str, offset: int, rows: pa.Table) -> None:
        """Keep the rows of the frame at this place; without room on the disk, do nothing."""
        copy = self._path(path, offset)
        partial = copy.with_suffix(f".{secrets.token_hex(8)}")
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # In one piece: a search goes through all of a column.
            with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
                writer.write_table(rows.combine_chunks())
            partial.replace(copy)
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)

    def keep_only(self, frames: Iterable[StateFrame], now: float) -> None:
        """Delete the copies of all other frames, and what killed tasks left. `now`: seconds since 1970."""
        kept = {self._path(frame.path, frame.offset).name for frame in frames}
        with contextlib.suppress(OSError), os.scandir(self._directory) as entries:
            for entry in entries:
                is_copy = entry.name.endswith(_SUFFIX)
                if entry.name not in kept and (is_copy or entry.stat().st_mtime < now - _LONGEST_WRITE):
                    Path(entry.path).unlink(missing_ok=True)

    def _path(self, path: str, offset: int) -> Path:
        # A segment's name is of one task attempt.
        return self._directory / f"{hashlib.sha256(path.encode()).hexdigest()[:32]}-{offset}{_SUFFIX}"

"""Keep copies of a state's frames as files that are mapped into memory: a batch then reads the pages that it needs.

Spark gives each driver and each executor a directory, tells its Python workers, and deletes it with the process. Owns
the copies in it. The first batch of a process copies nothing that it reads, because it may be the only one; later
ones do, all copy what they write, and delete what no version needs any more. A frame without a copy is read from the
block store: nothing is lost with the copies. Of a state that is encrypted there are none, because others could read
them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from orchestration.state.state_segments import read_frame

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestration.state.state_frame import StateFrame
    from orchestration.state.state_segments import StatePlace
    from receiver_runtime.block_store.stores.interface import BlockStore

# Spark's own variable for its Python workers: the directories, separated by commas.
_DIRECTORIES = "SPARK_LOCAL_DIRS"
# The part of the disk that is left free.
_LEFT_FREE = 0.1


@dataclass(frozen=True, slots=True)
class BucketCopies:
    """Read the frames of one bucket, from copies where there are some, and make copies if `keeps`."""

    store: BlockStore
    schema: pa.Schema
    directory: Path | None
    keeps: bool

    def read(self, frames: Iterable[StateFrame]) -> list[pa.Table]:
        """Return the rows of each frame. Raises as ``read_frame``."""
        return [self._read(frame) for frame in frames]

    def _read(self, frame: StateFrame) -> pa.Table:
        if self.keeps and self.directory is not None:
            with contextlib.suppress(OSError, pa.ArrowInvalid):
                mapped = pa.memory_map(str(self.directory / _name(frame.path, frame.offset, frame.crc32c)))
                copy = pa.ipc.open_file(mapped).read_all()
                # Another schema is declared than it was written with: reading the frame says so.
                if copy.schema.equals(self.schema) and copy.num_rows == frame.rows:
                    return copy
        rows = read_frame(self.store, frame, self.schema)
        self.keep(frame.path, frame.offset, frame.crc32c, rows)
        return rows

    def keep(self, path: str, offset: int, crc32c: int, rows: pa.Table) -> None:
        """Make a copy of a frame, unless the disk is nearly full."""
        if not self.keeps or self.directory is None:
            return
        part = self.directory / f"{secrets.token_hex(8)}.part"
        try:
            disk = shutil.disk_usage(self.directory)
            if disk.free - rows.nbytes < disk.total * _LEFT_FREE:
                return
            rows = rows.combine_chunks()
            with pa.OSFile(str(part), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
                writer.write_table(rows)
            part.replace(self.directory / _name(path, offset, crc32c))
        except OSError:
            # There is no copy, then.
            part.unlink(missing_ok=True)

    def delete_others(self, frames: Iterable[StateFrame]) -> None:
        """Delete the copies of all frames but these."""
        if not self.keeps or self.directory is None:
            return
        needed = {_name(frame.path, frame.offset, frame.crc32c) for frame in frames}
        with contextlib.suppress(OSError), os.scandir(self.directory) as entries:
            for entry in entries:
                if entry.name not in needed:
                    Path(entry.path).unlink(missing_ok=True)


def bucket_copies(
    place: StatePlace, store: BlockStore, schema: pa.Schema, folder: str, bucket: int, *, begins: bool
) -> BucketCopies:
    """Return the copies of a bucket in this process's directory.

    Args:
        place: of the state.
        store: the same, opened.
        schema: of the frames.
        folder: of any version of the state.
        bucket: its number.
        begins: whether the process makes copies from its next batch on, if it has made none yet.
    """
    given = os.environ.get(_DIRECTORIES, "").split(",")[0]
    if not given or place.block_keys:
        return BucketCopies(store, schema, None, keeps=False)
    state = _digest(place.roots, folder.rpartition("/")[0])
    directory = Path(given) / "forebay-state" / state / str(bucket)
    keeps = directory.is_dir()
    if begins and not keeps:
        with contextlib.suppress(OSError):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return BucketCopies(store, schema, directory, keeps)


def _name(path: str, offset: int, crc32c: int) -> str:
    return f"{_digest(path, offset, crc32c)}.arrow"


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()[:32]

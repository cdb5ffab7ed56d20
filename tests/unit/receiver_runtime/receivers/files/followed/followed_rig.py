"""Follow files in tests step by step, on a clock that the test moves; write, compress and truncate such files."""

from __future__ import annotations

import bz2
import gzip
import os
import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from receiver_runtime.receivers.files.declaration import FollowedFiles
from receiver_runtime.receivers.files.followed.catalog import FollowedCatalog
from receiver_runtime.receivers.files.records import LineReader
from tests.unit.receiver_runtime.receivers.files.files_rig import Log, Reader

if TYPE_CHECKING:
    from pathlib import Path


def follow(root: Path, log: Log, *, pattern: str = "*.log*", clock: Any = None, **fields: Any) -> Reader:  # noqa: ANN401
    settings = fields.pop("settings", {})
    source = FollowedFiles(path=f"{root}/{pattern}", **fields)
    return Reader(
        log,
        lambda receiver, sharing, host, clock: FollowedCatalog(
            source, LineReader.of(source), receiver, sharing, host, clock=clock
        ),
        clock=clock,
        **settings,
    )


def write(path: Path, *lines: str, end: str = "\n") -> None:
    with path.open("a") as file:
        file.write("".join(f"{line}{end}" for line in lines))


def compress(path: Path, to: Path) -> None:
    data = path.read_bytes()
    match to.suffix:
        case ".gz":
            to.write_bytes(gzip.compress(data))
        case ".bz2":
            to.write_bytes(bz2.compress(data))
        case _:
            to.write_bytes(pa.compress(data, "zstd", asbytes=True))
    path.unlink()


def copy_and_cut(path: Path, to: Path) -> None:
    """Copy and truncate a file, as logrotate's copytruncate does."""
    shutil.copy(path, to)
    os.truncate(path, 0)

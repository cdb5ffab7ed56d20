"""Small file systems that are filled, made read-only and unmounted, in a mount namespace of the harness's own.

A disk is a file system in memory (`backing`) that is bound to one mount point per host. Unmounting it there exposes the
empty directory below, as with a lost mount; binding it again heals that.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def is_possible() -> bool:
    """Return whether this process may mount file systems that no other process sees."""
    return os.geteuid() == 0 and os.environ.get("CHAOS_NAMESPACE") == "1"


class Disk:
    """One disk of a fixed size."""

    def __init__(self, backing: Path, size: str) -> None:
        self.backing = backing
        backing.mkdir(parents=True)
        _run("mount", "-t", "tmpfs", "-o", f"size={size},mode=0711", "tmpfs", str(backing))
        self._ballast = backing / "ballast"

    def mount(self, point: Path, part: str = "") -> None:
        """Bind the disk, or a directory of it, to a mount point."""
        point.mkdir(parents=True, exist_ok=True)
        source = self.backing / part
        source.mkdir(exist_ok=True)
        _run("mount", "--bind", str(source), str(point))

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        with self._ballast.open("wb", buffering=0) as file:
            for piece in (2**24, 2**20, 2**12):
                with contextlib.suppress(OSError):
                    while True:
                        os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), piece)

    def keep_full(self) -> None:
        """Fill again the space that was freed since."""
        with self._ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), 2**12)

    def free(self) -> None:
        """Free the space again."""
        self._ballast.unlink(missing_ok=True)


def unmount(point: Path) -> None:
    """Unmount lazily, even while files are open; these stay usable."""
    _run("umount", "--lazy", str(point))


def make_read_only(point: Path, disk: Disk, part: str) -> None:
    """Bind the disk again, read-only. Files that are open for writing stay writable; the system rotates them soon."""
    unmount(point)
    disk.mount(point, part)
    _run("mount", "-o", "remount,bind,ro", str(point))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)

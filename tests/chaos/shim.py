"""Compile the library that steps clocks and slows syncs, and control it through a file that processes map.

The machine's own clock is never changed.
"""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_SOURCE = Path(__file__).with_name("shim.c")
_CONTROL = struct.Struct("qq")


def is_possible() -> bool:
    """Return whether there is a compiler."""
    return shutil.which("cc") is not None


def compiled(directory: Path) -> Path:
    """Compile the library into `directory`."""
    library = directory / "shim.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl"], check=True)
    library.chmod(0o755)
    return library


class Shim:
    """The control file of some processes."""

    def __init__(self, library: Path, control: Path) -> None:
        control.write_bytes(_CONTROL.pack(0, 0))
        control.chmod(0o644)
        self._library = library
        self._path = control
        descriptor = os.open(control, os.O_RDWR)
        self._map = mmap.mmap(descriptor, _CONTROL.size)
        os.close(descriptor)

    def environment(self) -> Mapping[str, str]:
        """Return the environment variables that a process needs."""
        return {"LD_PRELOAD": str(self._library), "CHAOS_SHIM": str(self._path)}

    def step_clock(self, seconds: int) -> None:
        """Step the wall clock of these processes by `seconds`; 0 restores it."""
        self._write(seconds, _CONTROL.unpack(self._map[:])[1])

    def slow_syncs(self, milliseconds: int) -> None:
        """Delay each sync by `milliseconds`; 0 ends the delay."""
        self._write(_CONTROL.unpack(self._map[:])[0], milliseconds)

    def _write(self, seconds: int, milliseconds: int) -> None:
        self._map[:] = _CONTROL.pack(seconds, milliseconds)

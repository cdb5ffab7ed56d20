"""Detect whether the user's code on the disk differs from the code that this process has loaded."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestration.declarations.project_code import is_of_project
from tracker_store.host.code_in_force import loaded_copy


class LoadedCode:
    """Remember the files of the user's loaded modules, as they were when each was first seen here.

    A user's module is one that is not part of Python, of an installed package or of Forebay; `module` always counts as
    one.
    """

    def __init__(self, module: str | None) -> None:
        """Record the modules that are loaded now."""
        # A module given as a file is loaded under the file's stem.
        self._module = Path(module).stem if module is not None and module.endswith(".py") else module
        self._passed_over: set[str] = set()
        self._seen: dict[str, tuple[int, int] | None] = {}
        self.changed()

    def changed(self) -> str | None:
        """Return the first file that has changed since it was loaded, or None; record newly loaded modules.

        None in a process that loads a copy: its files may be edited, and the copy in force says when that counts.
        """
        if loaded_copy() is not None:
            return None
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and file not in self._seen and file not in self._passed_over:
                if self._is_users(name, file):
                    self._seen[file] = _stamp(file)
                else:
                    self._passed_over.add(file)
        return next((file for file, stamp in self._seen.items() if _stamp(file) != stamp), None)

    def _is_users(self, name: str, file: str) -> bool:
        return name == self._module or is_of_project(name, Path(file))


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        status = Path(file).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size

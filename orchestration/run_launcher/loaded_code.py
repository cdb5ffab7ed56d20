"""Whether the user's code on the disk is still what this process has loaded."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

# Another version of Forebay is an upgrade: whoever makes it starts everything anew.
_OWN_PACKAGES = ("forebay", "orchestration", "receiver_runtime", "tracker_store", "migrations")


class LoadedCode:
    """The files of the user's loaded modules, as they were when each was first seen here.

    A user's module is one that is no part of Python, of an installed package or of Forebay; `module` is one whatever it
    is part of.
    """

    def __init__(self, module: str) -> None:
        """Looks at what is loaded now."""
        # A file's is loaded under its bare name.
        self._module = Path(module).stem if module.endswith(".py") else module
        paths = sysconfig.get_paths()
        installed = ("stdlib", "platstdlib", "purelib", "platlib")
        self._installed = tuple({str(Path(paths[key]).resolve()) for key in installed})
        self._passed_over: set[str] = set()
        self._seen: dict[str, tuple[int, int] | None] = {}
        self.changed()

    def changed(self) -> str | None:
        """The first file that is not as it was loaded; None while all are. Modules loaded since are added."""
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file and file not in self._seen and file not in self._passed_over:
                if self._is_users(name, file):
                    self._seen[file] = _stamp(file)
                else:
                    self._passed_over.add(file)
        return next((file for file, stamp in self._seen.items() if _stamp(file) != stamp), None)

    def _is_users(self, name: str, file: str) -> bool:
        if name == self._module:
            return True
        if name.partition(".")[0] in _OWN_PACKAGES or name == "__main__":
            return False
        return not str(Path(file).resolve()).startswith(self._installed)


def _stamp(file: str) -> tuple[int, int] | None:
    try:
        status = Path(file).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size

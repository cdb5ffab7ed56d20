"""Load the modules of a user's project from the copy that is in force, and not from the files that a person edits.

`forebay up` keeps a copy of the project's modules for each version of its code (``orchestration.declarations.
project_code`` makes them), and FOREBAY_CODE names the link to the one in force. A process takes the copy that is in
force when it first loads a module of the project, and keeps it to its end: none ever runs two versions. Modules keep
the names and paths of their files, so that what lies beside a file is found. Without FOREBAY_CODE modules are imported
as ever.

Light: Spark's Python workers import it. It never makes a copy, and never decides which one is in force.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import types
    from collections.abc import Collection, Mapping, Sequence

CODE_VARIABLE = "FOREBAY_CODE"
#: Name of the link to the copy in force, in the folder of the copies.
LINK = "in-force"


@dataclass(frozen=True, slots=True)
class CodeState:
    """Say what people should know of changed code that is not in force, and which pipelines the code in force has.

    pipelines: None: not known, as where no `forebay up` runs.
    """

    notice: str = ""
    pipelines: Collection[str] | None = None


NO_CODE = CodeState()


class CodeCopy(MetaPathFinder):
    """Find the modules of one version of a project, in its copy; stands first on this process's `sys.meta_path`."""

    def __init__(self, file: Path) -> None:
        """Read the copy. Raises RuntimeError."""
        self.file = file
        try:
            copy = json.loads(file.read_bytes())
            self.version: str = copy["version"]
            self._modules: Mapping[str, Mapping[str, str]] = copy["modules"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RuntimeError(
                f"{file}: {error}. Start `forebay up` again, which makes a new copy of the project's modules: this one "
                "can't be read."
            ) from error

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002  Python's interface
        target: types.ModuleType | None = None,  # noqa: ARG002  the same
    ) -> ModuleSpec | None:
        """Return where the module is loaded from; None if it is no module of the project."""
        found = self._modules.get(fullname)
        if found is None:
            return None
        place = Path(found["path"])
        return spec_from_file_location(
            fullname,
            place,
            loader=_CopyLoader(fullname, str(place), found["source"].encode("latin-1")),
            submodule_search_locations=[str(place.parent)] if place.name == "__init__.py" else None,
        )

    def sources(self) -> dict[str, bytes]:
        """Return the source of each module, by name."""
        return {name: found["source"].encode("latin-1") for name, found in self._modules.items()}

    def is_in_force(self) -> bool:
        """Return whether the version of this process is still the one in force."""
        return Path(os.path.realpath(self.file.parent / LINK)) == self.file


class _CopyLoader(SourceFileLoader):
    """Load a module from its source in the copy, under the path of its file."""

    def __init__(self, fullname: str, path: str, source: bytes) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_data(self, path: str) -> bytes:
        """Return the module's source; other files of its package are read where they are."""
        return self._source if path == self.path else super().get_data(path)

    def get_code(self, fullname: str) -> types.CodeType:  # noqa: ARG002  Python's interface
        """Compile the source: compiled files beside the file may be those of another version."""
        code: types.CodeType = self.source_to_code(self._source, self.path)
        return code


def loaded_copy() -> CodeCopy | None:
    """Return the copy that this process loads its project from; None if it imports the files, or nothing so far."""
    return next((finder for finder in sys.meta_path if isinstance(finder, CodeCopy)), None)


def load_code_in_force() -> CodeCopy | None:
    """Let this process load the project from the copy that is in force now, unless it has one; return its copy.

    None without FOREBAY_CODE. Raises RuntimeError.
    """
    copy = loaded_copy()
    if copy is None and (link := os.environ.get(CODE_VARIABLE)):
        copy = CodeCopy(Path(os.path.realpath(link)))
        sys.meta_path.insert(0, copy)
    return copy

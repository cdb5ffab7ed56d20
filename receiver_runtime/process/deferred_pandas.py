"""Keep pyarrow from importing pandas until something else does.

Where pandas is installed, pyarrow imports it for the first array that it makes, to recognise pandas' own objects: that
takes half a second of CPU and 55 MiB in each process. Nothing has such an object before something has imported pandas.
From then on pyarrow must recognise them, and no import of pandas may fail that would not have failed without this.
"""

from __future__ import annotations

import importlib.abc
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_PANDAS = "pandas"


def defer_pandas() -> None:
    """Let pyarrow import pandas when something else does. Changes nothing if pandas is loaded, or at a second call."""
    import pyarrow as pa  # noqa: PLC0415  a process that makes no arrays does not load it

    if _PANDAS in sys.modules or any(isinstance(finder, _PandasFinder) for finder in sys.meta_path):
        return
    finder = _PandasFinder()
    sys.meta_path.insert(0, finder)
    # pyarrow looks for pandas once, and finds none.
    pa.array([None])
    finder.is_hidden = False


class _PandasFinder(importlib.abc.MetaPathFinder):
    """Finds pandas as the other finders do, and lets its import tell pyarrow; while it is hidden there is none."""

    def __init__(self) -> None:
        self.is_hidden = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _PANDAS:
            return None
        if self.is_hidden:
            raise ModuleNotFoundError("pandas is not looked for yet", name=_PANDAS)
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(fullname, path, target)) is not None:
                if spec.loader is not None:
                    spec.loader = _TellingLoader(spec.loader)
                return spec
        return None


class _TellingLoader(importlib.abc.Loader):
    """Loads pandas as its own loader does, and then lets pyarrow look for it again."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        import pyarrow as pa  # noqa: PLC0415  as above

        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        api: Any = pa.lib._pandas_api  # noqa: SLF001  pyarrow has no other way to look again
        _ = api.compat

"""Tell which loaded modules a test has written itself: many call theirs `shop` or `definitions`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

_ROOT = str(Path(__file__).parents[3])
# The checkout, or a Python, may be in a temporary directory too.
_OTHERS = tuple(f"{folder}/" for folder in (_ROOT, sys.prefix, sys.base_prefix))


def forget_written_modules(before: frozenset[str]) -> None:
    """Forget the modules in temporary files that were not loaded before: the next test's would not be read."""
    temporary = f"{tempfile.gettempdir()}/"
    for name in sys.modules.keys() - before:
        file = str(getattr(sys.modules[name], "__file__", None))
        if file.startswith(temporary) and not file.startswith(_OTHERS):
            del sys.modules[name]

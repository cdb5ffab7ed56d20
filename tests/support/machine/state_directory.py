"""A directory for the state of one test, as a FOREBAY_HOME is: its owner's alone, with a short path.

pytest's tmp_path is long: a Unix socket in it needs a link with a shorter name.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def state_directory() -> Iterator[Path]:
    """Make a new directory; remove it at the end."""
    path = Path(tempfile.mkdtemp(prefix="forebay-test-")).resolve()
    try:
        yield path
    finally:
        # A killed process that still writes may make this fail; the machine's own clean-up removes the rest.
        shutil.rmtree(path, ignore_errors=True)

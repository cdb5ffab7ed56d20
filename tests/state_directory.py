"""A directory for the state of one test that the embedded server's own account can traverse.

pytest's tmp_path does not work: when run as root its base is closed to other users, and each run closes it again.
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
    path.chmod(0o711)
    try:
        yield path
    finally:
        # A killed process that still writes may make this fail; the machine's own clean-up removes the rest.
        shutil.rmtree(path, ignore_errors=True)

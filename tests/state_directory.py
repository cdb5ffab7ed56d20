"""A directory for the state of one test, that an embedded server's own account can pass through.

Not pytest's tmp_path: as root its base is closed to all others, and each run of pytest closes it again.
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
    """A new directory, removed at the end."""
    path = Path(tempfile.mkdtemp(prefix="forebay-test-")).resolve()
    path.chmod(0o711)
    try:
        yield path
    finally:
        # What a killed process still writes may make this fail: the machine's own clean-up has the rest.
        shutil.rmtree(path, ignore_errors=True)

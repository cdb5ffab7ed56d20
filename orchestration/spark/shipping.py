"""Forebay's own code for Spark's workers on other machines: one archive, of the very version that plans the batch.

Tasks import the `forebay` format by name; on Spark Connect the server plans, and so needs the driver log's statements
too. Only pure Python is shipped: what our code needs of others (pyarrow, google-crc32c; on a Connect server also
SQLAlchemy, psycopg2, pydantic, pydantic-settings, structlog) is installed there.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

# What a planner and a task of the format may import, and no more.
PACKAGES = ("orchestration", "receiver_runtime", "tracker_store")
_ROOT = Path(__file__).resolve().parents[2]
# The same content is the same archive, byte for byte.
_TIME = (2020, 1, 1, 0, 0, 0)


def code_archive(directory: Path) -> Path:
    """An archive of our packages in `directory`, named after its content; an earlier one is used again."""
    files = sorted(path for package in PACKAGES for path in (_ROOT / package).rglob("*.py"))
    contents = {str(path.relative_to(_ROOT)): path.read_bytes() for path in files}
    digest = hashlib.sha256(b"".join(name.encode() + b"\0" + text for name, text in contents.items())).hexdigest()
    archive = directory / f"forebay-{digest[:16]}.zip"
    if not archive.exists():
        directory.mkdir(parents=True, exist_ok=True)
        # Of this process alone: another may be writing it too.
        partial = archive.with_suffix(f".{os.getpid()}.part")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as written:
            for name, text in contents.items():
                written.writestr(zipfile.ZipInfo(name, _TIME), text)
        partial.replace(archive)
    return archive

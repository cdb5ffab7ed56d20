"""Ship Forebay's own code to Spark's workers on other machines: one archive of the version that plans the batch.

Tasks import the `forebay` format by name; on Spark Connect the server plans, so it also needs the code that reads the
driver log. Only pure Python is shipped: dependencies (pyarrow, google-crc32c; on a Connect server also SQLAlchemy,
psycopg2, pydantic, pydantic-settings, structlog) must be installed there.
"""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

# The packages that a planner and a task of the format may import.
PACKAGES = ("orchestration", "receiver_runtime", "tracker_store")
_ROOT = Path(__file__).resolve().parents[3]
# A fixed timestamp for all entries, so that equal content gives equal archives byte for byte.
_TIME = (2020, 1, 1, 0, 0, 0)


def code_archive(directory: Path) -> Path:
    """Return an archive of our packages in `directory`, named after its content; reuse an existing one."""
    files = sorted(path for package in PACKAGES for path in (_ROOT / package).rglob("*.py"))
    contents = {str(path.relative_to(_ROOT)): path.read_bytes() for path in files}
    digest = hashlib.sha256(b"".join(name.encode() + b"\0" + text for name, text in contents.items())).hexdigest()
    archive = directory / f"forebay-{digest[:16]}.zip"
    if not archive.exists():
        directory.mkdir(parents=True, exist_ok=True)
        # A name with this process's id, because another process may be writing the same archive.
        partial = archive.with_suffix(f".{os.getpid()}.part")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as written:
            for name, text in contents.items():
                written.writestr(zipfile.ZipInfo(name, _TIME), text)
        partial.replace(archive)
    return archive

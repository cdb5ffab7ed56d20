"""Find the class archive that belongs to a Java and a Spark, and start a JVM from it. Makes no archive."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def archive_file(directory: Path, java_home: Path) -> Path:
    """Return the path in `directory` of the archive of this Java and this Spark, whether it exists or not."""
    import pyspark  # noqa: PLC0415  takes a second, and a process that starts Spark has it anyway

    java = java_home.resolve()
    spark = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent).resolve()
    parts = [str(java), _stamp(java / "release"), str(spark), *_jars(spark / "jars")]
    return directory / f"classes-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}.jsa"


def options_to_use(file: Path) -> str:
    """Return the Java options to start from an archive; empty if there is none."""
    # A colon would split the file's name; quotes and spaces would split the options.
    if not file.is_file() or any(character in str(file) for character in ":\"' "):
        return ""
    # VerifySharedSpaces detects a damaged file before it is used; that takes 0.1 s.
    return f"-XX:SharedArchiveFile={file} -XX:+VerifySharedSpaces"


def _stamp(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _jars(directory: Path) -> list[str]:
    """Return what Java compares of each jar: after a reinstallation Java refuses the archive even for equal jars."""
    try:
        found = [(jar.name, jar.stat()) for jar in directory.iterdir()]
    except OSError:
        return []
    return sorted(f"{name} {status.st_size} {int(status.st_mtime)}" for name, status in found)

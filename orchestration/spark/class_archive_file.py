"""Which archive of Java's classes belongs to a Java and a Spark, and how a JVM starts from it. Makes none."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path


def archive_file(directory: Path, java_home: Path) -> Path:
    """Return where the archive of this Java and this Spark lies in `directory`, whether it is there or not."""
    import pyspark  # noqa: PLC0415  takes a second, and a process that starts Spark has it anyway

    java = java_home.resolve()
    spark = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent).resolve()
    parts = [str(java), _stamp(java / "release"), str(spark), *_jars(spark / "jars")]
    return directory / f"classes-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}.jsa"


def options_to_use(file: Path) -> str:
    """Return Java's options to start from an archive; empty where there is none."""
    # The first would divide the file's name in two, the others the options.
    if not file.is_file() or any(character in str(file) for character in ":\"' "):
        return ""
    # A damaged file is found before anything of it is used; that takes a tenth of a second.
    return f"-XX:SharedArchiveFile={file} -XX:+VerifySharedSpaces"


def _stamp(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _jars(directory: Path) -> list[str]:
    """What Java compares of each: where one was installed anew it refuses the archive, were the jar the same."""
    try:
        found = [(jar.name, jar.stat()) for jar in directory.iterdir()]
    except OSError:
        return []
    return sorted(f"{name} {status.st_size} {int(status.st_mtime)}" for name, status in found)

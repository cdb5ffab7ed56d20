"""The command that runs Spark's Python workers on this machine, without the second that each would take to load.

Spark puts ``pyspark.zip`` and a jar before everything else on the path of its Python daemons. There are no compiled
modules in that file, so each daemon compiles PySpark again; a session that has just started has four of them start one
after the other before its first batch is read. PySpark installed as a package lies beside the very file, compiled. So
workers are started by a script that leaves the two out of the path, and is the interpreter from then on.

It must not be used where Spark is another installation than the package: its workers need their own modules.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
import tempfile
from pathlib import Path

import structlog

_NAME = "worker-python"

log = structlog.get_logger(__name__)


def worker_python(directory: Path) -> str:
    """Return what workers are started by: a script that is written into `directory`, or this interpreter itself."""
    import pyspark  # noqa: PLC0415  takes half a second, and a process that starts Spark has it anyway

    package = Path(pyspark.__file__).parent
    home = os.environ.get("SPARK_HOME")
    if home is not None and Path(home).resolve() != package.resolve():
        return sys.executable
    text = _script(package)
    # A session starts workers by it as long as it lives: another installation with the same home has another one.
    script = directory / f"{_NAME}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    try:
        if not script.is_file() or script.read_text(encoding="utf-8") != text:
            directory.mkdir(parents=True, exist_ok=True)
            _write(script, text)
    except OSError as error:
        log.warning("workers of Spark start slower than they could", file=str(script), error=str(error))
        return sys.executable
    # A mount may forbid it.
    return str(script) if os.access(script, os.X_OK) else sys.executable


def _write(script: Path, text: str) -> None:
    """At once: another process may start a worker by it meanwhile."""
    descriptor, name = tempfile.mkstemp(prefix=f"{_NAME}-", dir=script.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        os.fchmod(file.fileno(), 0o755)
    Path(name).replace(script)


def _script(package: Path) -> str:
    # Spark names them by SPARK_HOME, which may be another way to the package.
    places = dict.fromkeys((str(package), os.environ.get("SPARK_HOME", str(package)).rstrip("/")))
    left_out = [f"{shlex.quote(f'{at}/python/lib/')}*.zip | {shlex.quote(f'{at}/jars/')}*.jar" for at in places]
    return f"""#!/bin/sh
# Starts Spark's Python workers: see orchestration/spark/worker_python.py.
path=
set -f
IFS=:
for entry in $PYTHONPATH; do
  case $entry in
    {" | ".join(left_out)}) ;;
    *) path=${{path:+$path:}}$entry ;;
  esac
done
unset IFS
PYTHONPATH=$path exec {shlex.quote(sys.executable)} "$@"
"""

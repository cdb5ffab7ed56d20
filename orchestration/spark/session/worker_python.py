"""Make a command that starts Spark's Python workers on this machine without 1 s of loading time for each.

Spark puts ``pyspark.zip`` and a jar first on the path of its Python daemons. The zip has no compiled modules, so each
daemon compiles PySpark again; a new session starts four of them one after the other before it reads its first batch.
The installed package PySpark has the same modules compiled. So workers are started by a script that removes the two
from the path and then executes the interpreter.

The script must not be used if Spark is not part of the installed package: other workers need their own modules.
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
    """Return the command that starts workers: a script that is written to `directory`, or this interpreter itself."""
    import pyspark  # noqa: PLC0415  takes half a second, and a process that starts Spark has it anyway

    package = Path(pyspark.__file__).parent
    home = os.environ.get("SPARK_HOME")
    if home is not None and Path(home).resolve() != package.resolve():
        return sys.executable
    text = _script(package)
    # A session uses the script while it lives, so another installation with the same home gets a script of its own.
    script = directory / f"{_NAME}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    try:
        if not script.is_file() or script.read_text(encoding="utf-8") != text:
            directory.mkdir(parents=True, exist_ok=True)
            _write(script, text)
    except OSError as error:
        log.warning("workers of Spark start slower than they could", file=str(script), error=str(error))
        return sys.executable
    # The file system may be mounted noexec.
    return str(script) if os.access(script, os.X_OK) else sys.executable


def _write(script: Path, text: str) -> None:
    """Write the script atomically, because another process may start a worker with it at the same time."""
    descriptor, name = tempfile.mkstemp(prefix=f"{_NAME}-", dir=script.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        os.fchmod(file.fileno(), 0o755)
    Path(name).replace(script)


def _script(package: Path) -> str:
    # Spark builds the paths from SPARK_HOME, which may be another path to the same package.
    places = dict.fromkeys((str(package), os.environ.get("SPARK_HOME", str(package)).rstrip("/")))
    left_out = [f"{shlex.quote(f'{at}/python/lib/')}*.zip | {shlex.quote(f'{at}/jars/')}*.jar" for at in places]
    return f"""#!/bin/sh
# Starts Spark's Python workers: see orchestration/spark/session/worker_python.py.
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
# What all of them need is loaded once: see orchestration/spark/session/python_daemon.py.
if [ "$1 $2" = "-m pyspark.daemon" ]; then
  shift 2
  set -- -m orchestration.spark.session.python_daemon "$@"
fi
PYTHONPATH=$path exec {shlex.quote(sys.executable)} "$@"
"""

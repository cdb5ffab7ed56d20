"""Run a module of a benchmark in a process of its own, such as one with a JVM, and return what it found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_LIMIT_SECONDS = 300.0
_SHOWN = 4000  # characters of an error's end


def answer_of(module: str, argument: str) -> Any:  # noqa: ANN401  JSON
    """Return the last line of a module's output, which is JSON. Raises RuntimeError if it fails."""
    answer = subprocess.run(  # noqa: S603  ours
        [sys.executable, "-m", module, argument],
        cwd=Path(__file__).parents[1],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_LIMIT_SECONDS,
        check=False,
    )
    if answer.returncode != 0:
        raise RuntimeError(f"{module} failed:\n{answer.stderr[-_SHOWN:]}")
    return json.loads(answer.stdout.splitlines()[-1])

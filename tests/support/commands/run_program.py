"""Run a program to its end, within a bound."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def run_program(
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    check: bool = False,
    timeout: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Return its exit code and what it has printed."""
    return subprocess.run(
        command, env=env, cwd=cwd, check=check, timeout=timeout, capture_output=True, text=True, encoding="utf-8"
    )

"""Run a streaming query that a page shows, as a user's program of its own that a test can kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from orchestration.java import find_java_home

if TYPE_CHECKING:
    from pathlib import Path


class StreamingProgram:
    """A program that runs in its own process group, together with its JVM."""

    def __init__(self, name: str, text: str, environment: dict[str, str], directory: Path) -> None:
        program = directory / f"{name}.py"
        program.write_text(text, encoding="utf-8")
        self._log = (directory / f"{name}.log").open("ab")
        java = {"JAVA_HOME": str(find_java_home(directory / "java"))}
        self._process = subprocess.Popen(
            [sys.executable, str(program)],
            cwd=directory,
            env={**environment, **java},
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        self._log.close()

    def lives(self) -> bool:
        return self._process.poll() is None

"""Run a streaming query that a page shows, as a user's program of its own that a test can kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from orchestration.spark.session.java import find_java_home
from tests.support.polling import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# On a busy machine Spark's start alone takes a minute.
_DEADLINE_SECONDS = 300.0
_SHOWN_LOG_CHARACTERS = 8000


class StreamingProgram:
    """A program that runs in its own process group, together with its JVM."""

    def __init__(self, name: str, text: str, environment: dict[str, str], directory: Path) -> None:
        program = directory / f"{name}.py"
        program.write_text(text, encoding="utf-8")
        self._log_path = directory / f"{name}.log"
        self._log = self._log_path.open("ab")
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

    def until(self, predicate: Callable[[], object], what: str) -> None:
        """Return as soon as `predicate` is true; fail, with the log's end, if the program ends or it takes too long."""

        def reached() -> bool:
            assert self._process.poll() is None, f"the program ended with {self._process.returncode}"
            return bool(predicate())

        try:
            eventually(reached, what, seconds=_DEADLINE_SECONDS, step=0.2)
        except AssertionError as error:
            log = self._log_path.read_text(encoding="utf-8", errors="replace")
            raise AssertionError(f"{error}; its log ends:\n{log[-_SHOWN_LOG_CHARACTERS:]}") from error

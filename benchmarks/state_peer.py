"""Run Structured Streaming for `benchmarks.state` in a process of its own, which is stopped while it has no batch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

_ROOT = Path(__file__).parents[1]
# Forebay's own default.
_PARTITIONS = 4


class Peer:
    """Count keys with the RocksDB state store, one file a batch."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self._log = (directory / "spark.log").open("wb")
        order = json.dumps({"directory": str(directory), "partitions": _PARTITIONS})
        self._process = subprocess.Popen(  # noqa: S603  this package
            [sys.executable, "-m", "benchmarks.state_spark", order],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def run(self, path: Path) -> float:
        """Run a batch of a file, which it takes away; return the seconds of the batch.

        Without those in which it looked for new files: what our batch consists of has been decided before too.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        os.killpg(self._process.pid, signal.SIGCONT)
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                os.killpg(self._process.pid, signal.SIGSTOP)
                steps: dict[str, int] = json.loads(line)["steps"]
                return (steps["triggerExecution"] - steps.get("latestOffset", 0)) / 1000
        said = Path(self._log.name).read_text(encoding="utf-8")[-4000:]
        raise RuntimeError(f"Structured Streaming ended:\n{said}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

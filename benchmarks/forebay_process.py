"""Start `forebay up` as its users do, for a benchmark, with settings that are the benchmark's."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROOT = Path(__file__).parents[1]
_STARTED = b"Ctrl-C stops everything"
_POLL_SECONDS = 0.5


def start_forebay_up(module: str, log: Path, settings: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start `forebay up MODULE`, whose output goes to `log`; the caller ends it.

    `settings` are environment variables. It has no other of Forebay's or Dagster's, and takes any free ports.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("FOREBAY_", "DAGSTER_"))}
    environment |= {"FOREBAY_TRACKER_HTTP": "127.0.0.1:0", **settings}
    with log.open("wb") as output:
        return subprocess.Popen(  # noqa: S603  this package
            [sys.executable, "-m", "forebay.cli", "up", module, "--ui-port", "0"],
            cwd=_ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def await_start(up: subprocess.Popen[bytes], log: Path, seconds: float) -> None:
    """Wait until it says that it runs. Raises TimeoutError with its output, also if it has ended."""
    deadline = time.monotonic() + seconds
    while _STARTED not in log.read_bytes():
        if time.monotonic() > deadline or up.poll() is not None:
            raise TimeoutError(f"forebay up has not started:\n{log.read_text(encoding='utf-8')}")
        time.sleep(_POLL_SECONDS)

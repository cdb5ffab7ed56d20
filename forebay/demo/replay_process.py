"""Run the replay server as a child process: start it, follow its events, end it.

The child ends by itself when this process is gone, because its standard input ends then.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

from forebay.demo.replay_server import ReplayProgress, ReplayState

if TYPE_CHECKING:
    from types import TracebackType

_START_SECONDS = 60.0
_STOP_SECONDS = 10.0


class ReplayFailedError(Exception):
    """`forebay.demo.replay_server` ended or could not start: its own words follow."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(f"{type(self).__doc__} {detail}".strip())


class ReplayProcess:
    """Run a replay server on loopback. `rate` in lines/s (0 = no limit); `port` 0 = a free one."""

    def __init__(self, *, rate: float, port: int = 0) -> None:
        command = [
            sys.executable,
            "-m",
            "forebay.demo.replay_server",
            "--rate",
            str(rate),
            "--port",
            str(port),
        ]
        # A session of its own: Ctrl-C reaches the demo only, which then ends its children in order.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)  # noqa: S603  our own module
        self._listening = threading.Event()
        self._address: tuple[str, int] | None = None
        self._failure = ""
        self._progress = ReplayProgress(state=ReplayState.WAITING, lines=0, connections=0)
        self._follower = threading.Thread(target=self._follow, name="replay-events", daemon=True)
        self._follower.start()

    @property
    def pid(self) -> int:
        """Return the child's pid."""
        return self._process.pid

    def wait_listening(self, timeout: float = _START_SECONDS) -> tuple[str, int]:
        """Wait until the server listens; return its host and port. Raises `ReplayFailedError`."""
        self._listening.wait(timeout)
        if self._address is None:
            raise ReplayFailedError(self._failure or f"It did not listen within {timeout:.0f} s.")
        return self._address

    def progress(self) -> ReplayProgress:
        """Return the newest progress (about half a second old at most); raises `ReplayFailedError` if it ended."""
        if self._process.poll() is not None:
            raise ReplayFailedError(self._failure or f"Exit code {self._process.returncode}.")
        return self._progress

    def stop(self) -> None:
        """End the server; return when it has ended. Safe to call twice."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._follower.join(timeout=_STOP_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _follow(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event: dict[str, Any] = json.loads(line)
            match event["event"]:
                case "listening":
                    self._address = (event["host"], event["port"])
                    self._listening.set()
                case "progress":
                    self._progress = ReplayProgress(
                        state=ReplayState(event["state"]),
                        lines=event["lines"],
                        connections=event["connections"],
                        seconds=event["seconds"],
                    )
                case "failed":
                    self._failure = event["message"]
                case _:
                    pass
        self._listening.set()

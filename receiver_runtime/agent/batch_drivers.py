"""Start, watch, replace and stop the agent's batch drivers, which the agent knows only by their command.

A driver and its agent exchange lines over the driver's standard input, a socket. The driver sends ``ready`` and
``recycle REASON`` (replace it: a successor is started, and once that is ready the old driver is told to drain). The
agent sends ``drain``. When the socket closes, the agent has ended, and the driver ends too.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.agent.child_environment import environment_without
from receiver_runtime.agent.child_process import describe_exit
from receiver_runtime.process.process_control import socket_pair
from receiver_runtime.watching.backoff import Backoff
from tracker_store.host.process_output import open_child_log

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
HEALTHY_AFTER_SECONDS = 60.0
# Seconds. When the agent stops, a batch that takes longer is cut off, and its next attempt makes it again.
DRAIN_SECONDS = 15.0
# Seconds. A replaced or surplus driver finishes its run first, because neither is a reason to use up an attempt.
REPLACED_SECONDS = 3_600.0
# Seconds that the drivers must have been ready before later starts are prepared: not at the same time as a start.
PREPARE_AFTER_SECONDS = 300.0
LOG_TAIL_LINES = 20
READY = b"ready"
RECYCLE = b"recycle"
DRAIN = b"drain\n"

log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class _Driver:
    """Hold a process, and the agent's end of the line to it."""

    name: str
    process: subprocess.Popen[bytes]
    line: socket.socket
    log_file: Path
    started: float
    heard: bytes = b""
    ready: bool = False
    # It has asked to be replaced.
    leaving: bool = False
    # When it is killed, if it was told to drain.
    end_by: float | None = None


class BatchDrivers:
    """Keep the wanted number of drivers, and successors while they are needed. Only the agent's thread calls it."""

    def __init__(
        self,
        command: Sequence[str],
        log_directory: Path,
        *,
        wanted: int = 1,
        preparation: Sequence[str] | None = None,
        withheld: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; nothing starts before the first `tick`.

        Args:
            command: runs one driver.
            log_directory: each driver's output goes to a file here.
            wanted: how many drivers; may be changed at any time.
            preparation: a command that makes later starts of a driver quicker, run once; it ends when its standard
                input closes. None: there is none.
            withheld: the environment variables that the drivers do not get.
            clock: monotonic, in seconds.
        """
        self.wanted = wanted
        #: How drivers ended that failed or were killed, by pid; the agent removes those that it has reported.
        self.how_ended: dict[int, str] = {}
        self._command = command
        self._log_directory = log_directory
        self._clock = clock
        self._drivers: list[_Driver] = []
        self._backoff = Backoff(FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS)
        self._not_before = 0.0
        self._preparation = preparation
        self._withheld = withheld
        self._preparing: subprocess.Popen[bytes] | None = None
        self._ready_since: float | None = None

    def tick(self) -> list[int]:
        """Check each driver, start missing ones, drain surplus ones; return the pids of those that ended."""
        ended: list[int] = []
        for driver in list(self._drivers):
            self._hear(driver)
            if (code := driver.process.poll()) is not None:
                self._drivers.remove(driver)
                driver.line.close()
                ended.append(driver.process.pid)
                self._ended(driver, code)
        staying = [driver for driver in self._drivers if driver.end_by is None and not driver.leaving]
        for _ in range(len(staying), self.wanted):
            if self._clock() < self._not_before:
                break
            staying.append(self._start())
        # The newest go first, because the others are ready.
        for driver in staying[self.wanted :]:
            self._drain(driver, "there are more than wanted", REPLACED_SECONDS)
        ready = sum(driver.ready for driver in staying)
        for driver in self._drivers:
            if driver.leaving and driver.end_by is None and ready >= self.wanted:
                self._drain(driver, "its successor is ready", REPLACED_SECONDS)
            elif driver.end_by is not None and self._clock() > driver.end_by:
                log.warning("batch driver did not drain in time, killed", child=driver.name, pid=driver.process.pid)
                driver.process.kill()
        self._prepare(is_ready=ready >= self.wanted > 0)
        return ended

    def processes(self) -> list[subprocess.Popen[bytes]]:
        """Return the processes of all drivers that `tick` has not found to have ended."""
        return [driver.process for driver in self._drivers]

    def pids(self) -> list[int]:
        """Return the pids of all drivers that have not been found to have ended."""
        return [driver.process.pid for driver in self._drivers]

    def drain(self) -> None:
        """Tell all drivers to end and return at once, so that the agent can stop other children meanwhile."""
        self._preparation = None
        if self._preparing is not None:
            self._end_preparation(self._preparing)
        for driver in self._drivers:
            if driver.end_by is None:
                self._drain(driver, "the agent stops", DRAIN_SECONDS)
            # A driver that was told earlier may have had a later limit.
            driver.end_by = min(driver.end_by or math.inf, self._clock() + DRAIN_SECONDS)

    def stop(self) -> list[int]:
        """Drain all drivers and wait for their end; return their pids."""
        self.drain()
        pids = []
        for driver in self._drivers:
            end_by = self._clock() if driver.end_by is None else driver.end_by
            try:
                driver.process.wait(max(0.0, end_by - self._clock()))
            except subprocess.TimeoutExpired:
                driver.process.kill()
                driver.process.wait()
                log.warning("batch driver did not drain in time, killed", child=driver.name, pid=driver.process.pid)
            driver.line.close()
            pids.append(driver.process.pid)
        self._drivers.clear()
        return pids

    def _prepare(self, *, is_ready: bool) -> None:
        """Run the preparation once, when all drivers have been ready for long enough."""
        if self._preparing is not None and (code := self._preparing.poll()) is not None:
            log.info("the preparation of later starts has ended", exit=code)
            self._end_preparation(self._preparing)
        if not is_ready:
            self._ready_since = None
            return
        self._ready_since = self._clock() if self._ready_since is None else self._ready_since
        if self._preparation is None or self._clock() - self._ready_since < PREPARE_AFTER_SECONDS:
            return
        command, self._preparation = self._preparation, None
        try:
            with open_child_log(self._log_directory / "batch-driver-preparation.log") as output:
                self._preparing = subprocess.Popen(  # noqa: S603  our own command
                    command,
                    env=environment_without(self._withheld),
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            # Nothing depends on it, so the agent goes on.
            log.warning("the preparation of later starts can't be started", error=str(error))

    def _end_preparation(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the preparation: it holds nothing that would be lost."""
        if process.poll() is None:
            # Kill its children too: a JVM would go on for minutes and write 200 MB that is not needed.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._preparing = None

    def _start(self) -> _Driver:
        taken = {driver.name for driver in self._drivers}
        name = next(name for number in range(1, len(taken) + 2) if (name := f"batch-driver-{number}") not in taken)
        log_file = self._log_directory / f"{name}.log"
        ours, theirs = socket_pair()
        with theirs, open_child_log(log_file) as output:
            process = subprocess.Popen(  # noqa: S603  our own command
                self._command,
                env=environment_without(self._withheld),
                stdin=theirs.fileno(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        log.info("batch driver started", child=name, pid=process.pid)
        driver = _Driver(name, process, ours, log_file, self._clock())
        self._drivers.append(driver)
        return driver

    def _hear(self, driver: _Driver) -> None:
        try:
            while data := driver.line.recv(4096):
                driver.heard += data
        except OSError:
            # There is nothing more for now, or the line is closed; then the exit code says more.
            pass
        *lines, driver.heard = driver.heard.split(b"\n")
        for line in lines:
            word, _, reason = line.partition(b" ")
            if word == READY:
                driver.ready = True
                log.info("batch driver is ready", child=driver.name, after=round(self._clock() - driver.started, 1))
            elif word == RECYCLE:
                driver.leaving = True
                log.info(
                    "batch driver is to be replaced", child=driver.name, why=reason.decode("utf-8", errors="replace")
                )

    def _drain(self, driver: _Driver, why: str, seconds: float) -> None:
        log.info("batch driver is to drain", child=driver.name, why=why)
        driver.end_by = self._clock() + seconds
        try:
            driver.line.send(DRAIN)
        except OSError:
            driver.process.send_signal(signal.SIGTERM)

    def _ended(self, driver: _Driver, code: int) -> None:
        if code == 0:
            log.info("batch driver ended", child=driver.name)
            return
        if self._clock() - driver.started >= HEALTHY_AFTER_SECONDS:
            # A driver that has worked for a while says nothing about the next.
            self._backoff.reset()
            delay = 0.0
        else:
            delay = self._backoff.next_delay()
        self._not_before = self._clock() + delay
        ending = self.how_ended[driver.process.pid] = describe_exit(code)
        log.error(
            f"batch driver {ending}", child=driver.name, restart_in=round(delay, 1), last_lines=_tail(driver.log_file)
        )


def _tail(log_file: Path) -> str:
    try:
        lines = log_file.read_bytes()[-16_384:].decode("utf-8", errors="replace").splitlines()
    except OSError as error:
        return f"(its log can't be read: {error})"
    return "\n".join(lines[-LOG_TAIL_LINES:])

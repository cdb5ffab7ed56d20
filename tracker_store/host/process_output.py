"""Keep a process's own output (its log, standard output and error) from ever raising.

Logs and blocks share a disk by default. On a full disk a log line raises, often inside an error handler, where the
exception ends a thread and nothing notices. Here a write that fails is counted; as soon as a write works again, the
number of missing lines and the cause are written.

Owns the configuration of structlog and the replacement of ``sys.stdout`` and ``sys.stderr`` of a service. It must never
raise, wait for space, or keep lines: what could not be written is lost, and counted.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

import structlog

from tracker_store.host.log_files import open_log
from tracker_store.host.terminal_text import escaped

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

_log = structlog.get_logger(__name__)

_NEWLINE = b"\n"


class _LostLines:
    """Count the lines that could not be written since the last report. The caller holds a lock."""

    def __init__(self) -> None:
        self.count = 0
        self._why = ""

    def add(self, lines: int, error: BaseException) -> None:
        self.count += lines
        self._why = (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"

    def report(self) -> str:
        """Return a log line that reports them."""
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        lines = "1 log line" if self.count == 1 else f"{self.count} log lines"
        return f"{now} [warning  ] {lines} could not be written: {self._why}\n"

    def clear(self) -> None:
        self.count = 0


class UnfailingOutput(io.RawIOBase):
    """Accept every write to a descriptor: one that fails is counted, and reported before the next that works.

    Any thread may write. Closing it does not close the descriptor, which belongs to the interpreter.
    """

    def __init__(self, descriptor: int, *, write: Callable[[int, bytes], int] = os.write) -> None:
        """Take the descriptor; `write` works as ``os.write`` (tests inject faults by it)."""
        super().__init__()
        self._descriptor = descriptor
        self._write = write
        self._lock = threading.Lock()
        self._lost = _LostLines()
        # True while the last byte written is not a newline.
        self._in_line = False

    @property
    def lost_lines(self) -> int:
        """Return the number of lines that could not be written since the last report."""
        with self._lock:
            return self._lost.count

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, data: Any, /) -> int:  # noqa: ANN401  any buffer
        """Write all of it, or count its lines as lost; returns the length either way."""
        whole = bytes(data)
        with self._lock:
            try:
                if self._lost.count:
                    self._write_all((_NEWLINE if self._in_line else b"") + self._lost.report().encode())
                    self._lost.clear()
                self._write_all(whole)
            except Exception as error:  # noqa: BLE001  no caller of a logger can handle it
                self._lost.add(max(1, whole.count(_NEWLINE)), error)
        return len(whole)

    def _write_all(self, data: bytes) -> None:
        while data:
            # A disk that is almost full takes only a part.
            done = self._write(self._descriptor, data)
            if done:
                self._in_line = data[done - 1 : done] != _NEWLINE
            data = data[done:]


class UnfailingLog:
    """Log for structlog, as its logger and its own factory: write each line to the current stream, and never raise."""

    def __init__(self, stream: Callable[[], TextIO]) -> None:
        """Take `stream`, which is called for each line because tests and Dagster replace the process's streams."""
        self._stream = stream
        self._lock = threading.Lock()
        self._lost = _LostLines()

    def __call__(self, *args: object) -> UnfailingLog:
        """Return the logger: there is one for all names."""
        del args
        return self

    def msg(self, message: str) -> None:
        """Write a line, or count it as lost."""
        with self._lock:
            try:
                stream = self._stream()
                if self._lost.count:
                    stream.write(self._lost.report())
                    stream.flush()
                    self._lost.clear()
                stream.write(message + "\n")
                stream.flush()
            except Exception as error:  # noqa: BLE001  no caller of a logger can handle it
                self._lost.add(1, error)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def configure_log(level: int = logging.INFO) -> None:
    """Configure structlog: lines to standard error, so that output stays clean."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # Looked up for each line: a test that runs a command replaces standard error only for that time.
        logger_factory=UnfailingLog(lambda: sys.stderr),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _escape_control_characters,
            _plain_renderer(colors=sys.stderr.isatty()),
        ],
    )


def _escape_control_characters(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escape the control characters of texts, a processor of structlog: a peer may have chosen them."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = escaped(value)
    return event


def keep_log_from_failing() -> None:
    """Let no log line raise in a process that is not Forebay's (Dagster's); otherwise its log stays as it is.

    A project that has configured structlog keeps its own configuration.
    """
    if not structlog.is_configured():
        *processors, _ = structlog.get_config()["processors"]
        structlog.configure(
            logger_factory=UnfailingLog(lambda: sys.stdout),
            processors=[*processors, _plain_renderer(colors=sys.stdout.isatty())],
        )


def _plain_renderer(*, colors: bool) -> structlog.dev.ConsoleRenderer:
    # The default formatter shows each frame's variables: it may reveal secrets, take seconds, and raise.
    return structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)


def keep_output_from_failing() -> None:
    """Let no write to standard output or error raise, whatever code writes. For services.

    That covers ``print``, Python's ``logging``, the traceback of a thread, and the flush at the interpreter's exit,
    whose failure would replace the exit code by 120. A stream that has already been replaced is left alone. A command
    that prints results must not call this: its caller has to see that they could not be written.
    """
    out, err = sys.__stdout__, sys.__stderr__
    if out is not None and sys.stdout is out:
        sys.stdout = _unfailing(out)
    if err is not None and sys.stderr is err:
        sys.stderr = _unfailing(err)


def _unfailing(stream: TextIO) -> TextIO:
    try:
        stream.flush()
        # Without a buffer in between, as the interpreter itself does for `python -u`.
        raw: Any = UnfailingOutput(stream.fileno())
    except (OSError, ValueError):
        return stream
    return io.TextIOWrapper(raw, encoding=stream.encoding, errors="backslashreplace", write_through=True)


def open_child_log(path: Path) -> IO[bytes]:
    """Open a child's log file to append to, or os.devnull if that fails: the child runs without a log then."""
    try:
        return open_log(path)
    except OSError as error:
        _log.warning("a log file could not be opened, its process runs without one", path=str(path), error=str(error))
        return Path(os.devnull).open("ab")

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
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

import structlog

from tracker_store.host.log_files import open_log
from tracker_store.host.terminal_text import escaped

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

_log = structlog.get_logger(__name__)

_NEWLINE = b"\n"


class UnfailingOutput(io.RawIOBase):
    """Accept every write: one that fails is counted, and reported before the next that works.

    Any thread may write. Closing it does not close the descriptor, which belongs to the interpreter.
    """

    def __init__(self, write: Callable[[bytes], int], descriptor: int | None = None) -> None:
        """Take what writes bytes and returns how many it has written, and its descriptor, if it has one."""
        super().__init__()
        self._write = write
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._lost_lines = 0
        self._why = ""
        # True while the last byte written is not a newline.
        self._in_line = False

    def as_text(self, encoding: str = "utf-8") -> TextIO:
        """Return a text stream that writes to it, without a buffer in between, as Python's own for `python -u`."""
        raw: Any = self
        return io.TextIOWrapper(raw, encoding=encoding, errors="backslashreplace", write_through=True)

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor. Raises OSError if there is none."""
        return super().fileno() if self._descriptor is None else self._descriptor

    def isatty(self) -> bool:
        """Return whether the descriptor is a terminal."""
        return self._descriptor is not None and os.isatty(self._descriptor)

    def write(self, data: Any, /) -> int:  # noqa: ANN401  any buffer
        """Write all of it, or count its lines as lost; returns the length either way."""
        whole = bytes(data)
        with self._lock:
            try:
                if self._lost_lines:
                    self._write_all((_NEWLINE if self._in_line else b"") + self._report().encode())
                    self._lost_lines = 0
                self._write_all(whole)
            except Exception as error:  # noqa: BLE001  no caller of a logger can handle it
                self._lost_lines += max(1, whole.count(_NEWLINE))
                why = error.strerror if isinstance(error, OSError) else None
                self._why = why or f"{type(error).__name__}: {error}"
        return len(whole)

    def _write_all(self, data: bytes) -> None:
        while data:
            # A disk that is almost full takes only a part.
            done = self._write(data)
            if done:
                self._in_line = data[done - 1 : done] != _NEWLINE
            data = data[done:]

    def _report(self) -> str:
        """Return a log line that reports the lost ones."""
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        lines = "1 log line" if self._lost_lines == 1 else f"{self._lost_lines} log lines"
        return f"{now} [warning  ] {lines} could not be written: {self._why}\n"


def unfailing_log(stream: Callable[[], TextIO]) -> structlog.WriteLoggerFactory:
    """Return a logger factory whose loggers never raise.

    `stream` is called for each line, because tests and Dagster replace the process's streams.
    """

    def write(line: bytes) -> int:
        to = stream()
        to.write(line.decode())
        to.flush()
        return len(line)

    return structlog.WriteLoggerFactory(UnfailingOutput(write).as_text())


def configure_log(level: int = logging.INFO) -> None:
    """Configure structlog: lines to standard error, so that output stays clean."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # Looked up for each line: a test that runs a command replaces standard error only for that time.
        logger_factory=unfailing_log(lambda: sys.stderr),
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
            logger_factory=unfailing_log(lambda: sys.stdout),
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
        descriptor = stream.fileno()
    except (OSError, ValueError):
        return stream
    return UnfailingOutput(partial(os.write, descriptor), descriptor).as_text(stream.encoding)


def open_child_log(path: Path) -> IO[bytes]:
    """Open a child's log file to append to, or os.devnull if that fails: the child runs without a log then."""
    try:
        return open_log(path)
    except OSError as error:
        _log.warning("a log file could not be opened, its process runs without one", path=str(path), error=str(error))
        return Path(os.devnull).open("ab")

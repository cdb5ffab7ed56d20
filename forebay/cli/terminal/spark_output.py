"""Keep what Spark and users' functions print out of a command's answer: it goes to a file that the command names.

Spark, its workers and PySpark write stack traces of hundreds of lines for each failed job, to the standard output and
error that they inherit. Owns these two file descriptors while a command computes with Spark. It never drops a line.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import contextmanager, suppress
from io import UnsupportedOperation
from typing import IO, TYPE_CHECKING

from tracker_store.host.log_files import open_log
from tracker_store.long_texts import shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from forebay.cli.terminal.console import Console

_OUTPUT, _ERROR = 1, 2  # file descriptors
_MOST_LINES = 5  # of an error that a command prints
_LONGEST_LINE = 400  # characters
# Where the stack of Java begins in the text of a PySpark error.
_JAVA_STACK = re.compile(r"^\s*(JVM stacktrace:|at [\w.$/]+\(|Driver stacktrace:)", re.MULTILINE)
_PYTHON_STACK = "Traceback (most recent call last):"


@contextmanager
def spark_output_in(path: Path, console: Console) -> Iterator[Callable[[str], None]]:
    """Send what this process and its children print to a new file at `path`, except what `console` prints.

    Yields a function that writes a line to that file. A JVM that is started in the block writes there until it ends.
    Raises OSError if the file can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_log(path) as file:
        file.truncate(0)

        def note(line: str) -> None:
            file.write(f"{line}\n".encode(errors="replace"))
            file.flush()

        with _redirected(file, console):
            yield note


@contextmanager
def _redirected(file: IO[bytes], console: Console) -> Iterator[None]:
    shown = _descriptor(console.file)
    with _own_terminal(console, shown):
        kept = [os.dup(descriptor) for descriptor in (_OUTPUT, _ERROR)]
        try:
            _flush()
            os.dup2(file.fileno(), _OUTPUT)
            os.dup2(file.fileno(), _ERROR)
            yield
        finally:
            _flush()
            for descriptor, of in zip(kept, (_OUTPUT, _ERROR), strict=True):
                os.dup2(descriptor, of)
                os.close(descriptor)


@contextmanager
def _own_terminal(console: Console, descriptor: int | None) -> Iterator[None]:
    """Let the console write to a copy of its descriptor, if it has one that is to be redirected."""
    if descriptor not in (_OUTPUT, _ERROR):
        yield
        return
    before = console.file
    with os.fdopen(os.dup(descriptor), "w", encoding="utf-8", errors="replace") as terminal:
        console.file = terminal
        try:
            yield
        finally:
            console.file = before


def _descriptor(file: IO[str]) -> int | None:
    try:
        return file.fileno()
    except (UnsupportedOperation, AttributeError, ValueError):
        return None


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(ValueError):  # it is closed
            stream.flush()


def without_stack(error: str) -> str:
    """Return what an error says, in a few lines, without the stack traces of Java and Python that Spark adds."""
    said = _JAVA_STACK.split(error.strip(), maxsplit=1)[0]
    before, _, stack = said.partition(_PYTHON_STACK)
    lines = [line for line in before.splitlines() if line.strip()]
    if stack:
        # The last line of a Python stack is the error itself; the lines above it are indented.
        raised = [line for line in stack.splitlines() if line.strip() and not line[0].isspace()]
        lines = [*lines[:1], *raised]
    return "\n".join(shortened(line, _LONGEST_LINE) for line in lines[:_MOST_LINES])

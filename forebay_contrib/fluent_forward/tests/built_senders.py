"""Programs that send by the Fluent loggers of npm, Go and PyPI, as they are published.

npm, Go and uv install and build them once into a folder of the user's cache that outlives the checkout.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.commands.run_program import run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SOURCES = Path(__file__).with_name("senders")
_SECONDS = 900.0
_PYTHON_LOGGER = "fluent-logger==0.11.1"


class NoSenderError(Exception):
    """There is nothing to send with: install Node with npm, and Go."""


def javascript() -> list[str]:
    """Return the command of npm's loggers, without its settings. Raises NoSenderError."""
    quiet = ("--ignore-scripts", "--no-audit", "--no-fund")
    made = _made("js", ["package.json"], lambda into: [[_tool("npm"), "install", "--prefix", into, *quiet]])
    return [_tool("node"), str(_SOURCES / "sender.cjs"), str(made)]


def golang() -> list[str]:
    """Return the command of Go's logger, without its arguments. Raises NoSenderError."""
    made = _made(
        "go",
        ["go.mod", "golang/main.go"],
        lambda into: [
            [_tool("go"), "-C", into, "mod", "tidy"],
            [_tool("go"), "-C", into, "build", "-o", f"{into}/program", "./golang"],
        ],
    )
    return [str(made / "program")]


def python() -> list[str]:
    """Return the command of PyPI's logger, without its settings. Raises NoSenderError."""
    uv = str(Path(sys.executable).with_name("uv"))
    made = _made("py", ["sender.py"], lambda into: [[uv, "pip", "install", "--target", into, _PYTHON_LOGGER]])
    return [sys.executable, str(made / "sender.py")]


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise NoSenderError(f"{NoSenderError.__doc__} {name} is missing.")
    return found


def _made(name: str, sources: Sequence[str], commands: Callable[[str], Sequence[Sequence[str]]]) -> Path:
    """Return the folder with what commands make of these sources; made once for each content of them."""
    contents = [(_SOURCES / source).read_bytes() for source in sources]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forebay-tests"
    made = cache / f"forward-{name}-{hashlib.sha256(b''.join(contents)).hexdigest()[:12]}"
    if made.exists():
        return made
    cache.mkdir(parents=True, exist_ok=True)
    # Beside it, because an install that is cut off must not be taken for one.
    with tempfile.TemporaryDirectory(dir=cache) as beside:
        whole = Path(beside) / "whole"
        for source, content in zip(sources, contents, strict=True):
            (whole / source).parent.mkdir(parents=True, exist_ok=True)
            (whole / source).write_bytes(content)
        for command in commands(str(whole)):
            done = run_program(command, timeout=_SECONDS)
            if done.returncode:
                raise NoSenderError(f"{NoSenderError.__doc__} {(done.stderr or done.stdout)[-800:]}")
        whole.rename(made)
    return made


if __name__ == "__main__":
    for build in (javascript, golang, python):
        build()

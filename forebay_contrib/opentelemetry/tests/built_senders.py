"""Programs that send by OpenTelemetry's SDKs of JavaScript, Go and Java, and its Collector, as they are published.

npm, Go and Maven install and build them once into a folder of the user's cache that outlives the checkout.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.commands.run_program import run_program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_SOURCES = Path(__file__).with_name("senders")
_SECONDS = 900.0


class NoSenderError(Exception):
    """There is nothing to send with: install Node with npm, Go, and Java with Maven."""


def program(name: str) -> list[str]:
    """Return the command of ``javascript``, ``go``, ``java`` or ``collector``. Raises NoSenderError."""
    return _PROGRAMS[name]()


def _javascript() -> list[str]:
    made = _made("js", ["package.json"], lambda into: [[_tool("npm"), "install", "--prefix", into, *_QUIET_NPM]])
    return [_tool("node"), str(_SOURCES / "sender.mjs"), str(made)]


def _java() -> list[str]:
    copied = "-DoutputDirectory=jars"
    made = _made("java", ["pom.xml"], lambda into: [[_tool("mvn"), "-q", "-B", "-f", f"{into}/pom.xml", _COPY, copied]])
    return [_tool("java"), "-cp", f"{made}/jars/*", str(_SOURCES / "Sender.java")]


def _go(what: str) -> list[str]:
    made = _made(
        f"go-{what}",
        ["go.mod", f"{what}/main.go"],
        lambda into: [
            [_tool("go"), "-C", into, "mod", "tidy"],
            [_tool("go"), "-C", into, "build", "-o", f"{into}/program", f"./{what}"],
        ],
    )
    return [str(made / "program")]


_QUIET_NPM = ("--ignore-scripts", "--no-audit", "--no-fund")
_COPY = "dependency:copy-dependencies"
_PROGRAMS: dict[str, Callable[[], list[str]]] = {
    "javascript": _javascript,
    "go": lambda: _go("sdk"),
    "java": _java,
    "collector": lambda: _go("collector"),
}


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise NoSenderError(f"{NoSenderError.__doc__} {name} is missing.")
    return found


def _made(name: str, sources: Sequence[str], commands: Callable[[str], Sequence[Sequence[str]]]) -> Path:
    """Return the folder with what commands make of these sources; made once for each content of them."""
    contents = [(_SOURCES / source).read_bytes() for source in sources]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forebay-tests"
    made = cache / f"otlp-{name}-{hashlib.sha256(b''.join(contents)).hexdigest()[:12]}"
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
    for each in _PROGRAMS:
        program(each)

"""Programs that send by OpenTelemetry's SDKs of JavaScript, Go and Java, and its Collector, as they are published.

npm, Go and Maven install and build them once into a folder of the user's cache that outlives the checkout.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.commands.made_programs import made, tool

if TYPE_CHECKING:
    from collections.abc import Callable

_SOURCES = Path(__file__).with_name("senders")


def program(name: str) -> list[str]:
    """Return the command of ``javascript``, ``go``, ``java`` or ``collector``. Raises NoProgramError."""
    return _PROGRAMS[name]()


def _javascript() -> list[str]:
    found = made(
        "otlp-js", _SOURCES, ["package.json"], lambda into: [[tool("npm"), "install", "--prefix", into, *_QUIET_NPM]]
    )
    return [tool("node"), str(_SOURCES / "sender.mjs"), str(found)]


def _java() -> list[str]:
    copied = "-DoutputDirectory=jars"
    found = made(
        "otlp-java",
        _SOURCES,
        ["pom.xml"],
        lambda into: [[tool("mvn"), "-q", "-B", "-f", f"{into}/pom.xml", _COPY, copied]],
    )
    return [tool("java"), "-cp", f"{found}/jars/*", str(_SOURCES / "Sender.java")]


def _go(what: str) -> list[str]:
    found = made(
        f"otlp-go-{what}",
        _SOURCES,
        ["go.mod", f"{what}/main.go"],
        lambda into: [
            [tool("go"), "-C", into, "mod", "tidy"],
            [tool("go"), "-C", into, "build", "-o", f"{into}/program", f"./{what}"],
        ],
    )
    return [str(found / "program")]


_QUIET_NPM = ("--ignore-scripts", "--no-audit", "--no-fund")
_COPY = "dependency:copy-dependencies"
_PROGRAMS: dict[str, Callable[[], list[str]]] = {
    "javascript": _javascript,
    "go": lambda: _go("sdk"),
    "java": _java,
    "collector": lambda: _go("collector"),
}


if __name__ == "__main__":
    for each in _PROGRAMS:
        program(each)

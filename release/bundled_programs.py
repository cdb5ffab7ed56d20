"""Name the programs that packages bundle, from `bundled.toml`, and ask the installed ones for their versions.

A lock file says nothing of them: they have versions, dates and flaws of their own. Reading the list needs only the
standard library: the build of the wheel imports it.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Mapping

LIST = Path(__file__).with_name("bundled.toml")
_VERSION = re.compile(r'(?:\(PostgreSQL\) |version ")(?P<version>\d+(?:\.\d+)+)')
_TIMEOUT_SECONDS = 60


@dataclass(frozen=True, slots=True)
class BundledProgram:
    """Describe a program in a package. `command`: prints its version; its first word is a path in the package."""

    name: str
    version: str
    released: dt.date
    package: str
    package_version: str
    command: tuple[str, ...]
    use: str

    def is_in(self, package: Mapping[str, Any]) -> bool:
        """Return whether the package of this name and version bundles it."""
        return (self.package, self.package_version) == (package["name"], package["version"])


def read_bundled_programs(path: Path = LIST) -> list[BundledProgram]:
    """Read the list."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["program"]
    return [BundledProgram(**{**entry, "command": tuple(entry["command"])}) for entry in entries]


def problems(programs: Iterable[BundledProgram], packages: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return where the list differs from uv.lock, or from what is installed: one sentence each."""
    found = []
    for program in programs:
        if not any(program.is_in(package) for package in packages):
            found.append(f"{LIST.name}: {program.package} {program.package_version} is not what uv.lock has")
            continue
        installed = installed_version(program)
        if installed != program.version:
            found.append(f"{LIST.name}: {program.name} {program.version} is {installed or 'not there'} in the package")
    return found


def installed_version(program: BundledProgram) -> str | None:
    """Return the version that the installed program prints, or None if it does not."""
    spec = importlib.util.find_spec(program.package.replace("-", "_"))
    if spec is None or spec.origin is None:
        return None
    path, *arguments = program.command
    try:
        done = subprocess.run(  # noqa: S603  a path in an installed package
            [Path(spec.origin).parent / path, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(done.stdout + done.stderr)
    return None if match is None else match["version"]

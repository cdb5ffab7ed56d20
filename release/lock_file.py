"""Read uv.lock: which packages an installation consists of, where each comes from, and the hashes of its files.

Only the standard library: the build of the wheel imports it. It never asks a registry.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

REGISTRY = "https://pypi.org/simple"
_FILES = "https://files.pythonhosted.org/"
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_OWN = {"editable": "."}


class LockFileError(ValueError):
    """uv.lock can't be used: run `uv lock`, and commit the result."""


@dataclass(frozen=True, slots=True)
class LockedFile:
    """Name a file of a package, as the registry serves it. `uploaded`: when, in ISO 8601; None: not in uv.lock."""

    url: str
    hash: str | None
    uploaded: str | None


@dataclass(frozen=True, slots=True)
class Requirement:
    """One package that another one needs. `version`: which of several locked ones; None: there is only one."""

    name: str
    version: str | None
    extras: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LockedPackage:
    """One package in one version. `source`: as uv.lock has it; `extras`: what each extra needs besides."""

    name: str
    version: str
    source: Mapping[str, str]
    files: tuple[LockedFile, ...]
    requirements: tuple[Requirement, ...]
    extras: Mapping[str, tuple[Requirement, ...]]

    @property
    def is_own(self) -> bool:
        """Return whether it is this repository."""
        return self.source == _OWN


class LockFile:
    """Hold the packages of a uv.lock."""

    def __init__(self, packages: Iterable[LockedPackage]) -> None:
        """Take all packages. Raises LockFileError if not exactly one of them is this repository."""
        self.packages = tuple(packages)
        own = [package for package in self.packages if package.is_own]
        if len(own) != 1:
            raise LockFileError(f"{len(own)} packages of uv.lock come from this repository, and there must be one")
        self.own = own[0]

    def find(self, requirement: Requirement) -> LockedPackage:
        """Return the package that is needed. Raises LockFileError if there is none, or one of several."""
        found = [
            package
            for package in self.packages
            if package.name == requirement.name and requirement.version in {None, package.version}
        ]
        if len(found) != 1:
            raise LockFileError(f"{requirement.name} {requirement.version or ''} is {len(found)} times in uv.lock")
        return found[0]

    def problems(self) -> list[str]:
        """Return what makes an installation from this file depend on trust: one sentence each, none if all is well."""
        return [problem for package in self.packages if not package.is_own for problem in _problems(package)]


def read_lock_file(path: Path) -> LockFile:
    """Read a uv.lock. Raises LockFileError."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        return LockFile(_package(entry) for entry in content["package"])
    except (OSError, KeyError, TypeError, tomllib.TOMLDecodeError) as error:
        raise LockFileError(f"{path} can't be read: {error!r}") from error


def _problems(package: LockedPackage) -> Iterable[str]:
    named = f"{package.name} {package.version}"
    if package.source != {"registry": REGISTRY}:
        yield f"{named} comes from {dict(package.source)}: only {REGISTRY} and this repository may be sources"
        return
    if not package.files:
        yield f"{named} has no file: nothing says what is installed"
    for file in package.files:
        if file.hash is None or _HASH.fullmatch(file.hash) is None:
            yield f"{named}: {file.url} has no SHA-256 hash"
        if not file.url.startswith(_FILES):
            yield f"{named}: {file.url} is not on {_FILES}"


def _package(entry: Mapping[str, Any]) -> LockedPackage:
    files = [*entry.get("wheels", ()), *([entry["sdist"]] if "sdist" in entry else ())]
    return LockedPackage(
        entry["name"],
        entry["version"],
        entry["source"],
        # A file of a source other than a registry has a path in place of a URL.
        tuple(LockedFile(one.get("url", str(one)), one.get("hash"), one.get("upload-time")) for one in files),
        _requirements(entry.get("dependencies", ())),
        {extra: _requirements(needed) for extra, needed in entry.get("optional-dependencies", {}).items()},
    )


def _requirements(entries: Sequence[Mapping[str, Any]]) -> tuple[Requirement, ...]:
    return tuple(Requirement(one["name"], one.get("version"), tuple(one.get("extra", ()))) for one in entries)

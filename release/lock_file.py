"""Read the packages of uv.lock, and find those that do not come from PyPI with a hash for each file.

uv installs what the lock file names, wherever it comes from. This never asks a registry.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

REGISTRY = "https://pypi.org/simple"
_FILES = "https://files.pythonhosted.org/"
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_OWN = ("forebay", {"editable": "."})


def locked_packages(path: Path) -> list[dict[str, Any]]:
    """Return the packages of a uv.lock as it has them, without this repository."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))["package"]
    return [one for one in found if (one["name"], one["source"]) != _OWN]


def files(package: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
    """Return the files of a package: wheels, and the source distribution."""
    return [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]


def problems(packages: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield what makes an installation of these packages depend on trust: one sentence each."""
    for package in packages:
        named = f"{package['name']} {package['version']}"
        if package["source"] != {"registry": REGISTRY}:
            yield f"{named} comes from {package['source']}: only {REGISTRY} and this repository may be sources"
            continue
        if not files(package):
            yield f"{named} has no file: nothing says what is installed"
        for file in files(package):
            if _HASH.fullmatch(file.get("hash", "")) is None:
                yield f"{named}: {file['url']} has no SHA-256 hash"
            if not file["url"].startswith(_FILES):
                yield f"{named}: {file['url']} is not on {_FILES}"

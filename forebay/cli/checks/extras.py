"""Tell which extras of Forebay's are installed, from the metadata of packages. Imports none of them."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, requires, version

# Matches the package's name at the start of a requirement.
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def is_installed(extra: str) -> bool:
    """Return whether all packages of this extra of Forebay's are installed here. Imports none of them."""
    try:
        asked = requires("forebay") or []
    except PackageNotFoundError:
        return False
    named = [name for line in asked if f"extra == '{extra}'" in line.replace('"', "'") and (name := _NAME.match(line))]
    return bool(named) and all(_has(name[0]) for name in named)


def _has(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True

"""Check that Python finds Forebay's own packages: a user's project may have a folder `orchestration` too.

This module loads fast and imports none of the packages: importing a shadowed one would run someone else's code.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("forebay_contrib", "orchestration", "receiver_runtime", "tracker_store")


#: How to fix it.
ADVICE = "Rename the folder that is in the way, or start Python elsewhere: it comes first on sys.path."


@dataclass(frozen=True, slots=True)
class Shadow:
    """Name a package of Forebay that Python finds elsewhere, or nowhere (found: None)."""

    package: str
    expected: Path
    found: Path | None

    def __str__(self) -> str:
        if self.found is None:
            return f"Forebay's package {self.package} is missing from {self.expected.parent}"
        return f"{self.found} shadows Forebay's own package {self.package} in {self.expected.parent}"


def find_shadows() -> list[Shadow]:
    """Return the packages that Python does not find beside Forebay's own code."""
    root = Path(__file__).resolve().parents[1]
    shadows = []
    for package in PACKAGES:
        found, expected = _location(package), root / package
        if found != expected:
            shadows.append(Shadow(package, expected, found))
    return shadows


def check() -> None:
    """Raise ImportError if Python does not find Forebay's own packages."""
    if shadows := find_shadows():
        raise ImportError(f"{'; '.join(map(str, shadows))}. {ADVICE}")


def _location(package: str) -> Path | None:
    """Return where Python finds a package, or a module of that name; None if nowhere."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return None if spec.origin is None else Path(spec.origin).resolve()

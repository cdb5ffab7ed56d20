"""Find the classes that installed packages register under an entry point group, Forebay's own kinds among them.

An entry is ``NAME = "package.module:Class"``. Its module is imported when the class is asked for, and never before: a
list of names costs no import, and a package that is broken harms only those who use it.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

T = TypeVar("T")


class PluginError(Exception):
    """Install, correct or remove a package: what it registers is missing, can't be imported, or is registered twice."""


def registered(group: str) -> dict[str, EntryPoint]:
    """Return the entries of a group by name, in order of their names; of a name that is taken twice, any one."""
    return {name: found[0] for name, found in _entries(group, tuple(sys.path)).items()}


def class_names(group: str) -> dict[str, str]:
    """Return the name under which each class of a group is registered, by the class's own name. Imports none."""
    return {entry.attr: name for name, entry in registered(group).items()}


def load(group: str, name: str, base: type[T]) -> type[T]:
    """Import the class that is registered under a name.

    Raises:
        PluginError: no package registers it or two do, it can't be imported, or it is no child of ``base``.
    """
    found = _entries(group, tuple(sys.path)).get(name, ())
    if not found:
        raise PluginError(f"no package that is installed here registers {name!r} in the entry point group {group}")
    if len({entry.value for entry in found}) > 1:
        packages = " and ".join(sorted(package_of(entry) for entry in found))
        raise PluginError(f"{packages} both register {name!r} in the entry point group {group}: remove one of them")
    entry = found[0]
    try:
        loaded = entry.load()
    except (Exception, SystemExit) as error:  # whatever a stranger's module does when it is imported
        raise PluginError(
            f"{entry.value}, registered by {package_of(entry)}, can't be imported: {type(error).__name__}: {error}"
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        raise PluginError(f"{entry.value}, registered by {package_of(entry)}, is no child of {base.__name__}")
    return loaded


def package_of(entry: EntryPoint) -> str:
    """Return the package that registers an entry, with its version, for people."""
    return "an unknown package" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


@lru_cache(maxsize=32)
def _entries(group: str, path: tuple[str, ...]) -> dict[str, tuple[EntryPoint, ...]]:  # noqa: ARG001  the cache's key
    """Return the entries of a group by name. Looking for them reads every package's metadata: some milliseconds."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=group):
        found.setdefault(entry.name, []).append(entry)
    return {name: tuple(found[name]) for name in sorted(found)}

"""Find the kinds of sink that installed packages register, Forebay's own among them. It lists none itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestration.declarations.sink import Sink
from receiver_runtime.sources.plugins import load, registered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestration.declarations.sink import Place

#: The entry point group: the declaration's `kind` is the name of its class.
GROUP = "forebay.sinks"


def class_of(kind: str) -> type[Sink]:
    """Import the class of a kind. Raises PluginError."""
    return load(GROUP, kind, Sink)  # type: ignore[type-abstract]  # a bound; `load` makes no object


def place_of(declaration: Mapping[str, Any]) -> Place | None:
    """Return where a declared sink writes; None if it has no place or is not installed. Raises PluginError."""
    kind = declaration.get("kind", "")
    return class_of(kind).place(declaration) if kind in registered(GROUP) else None

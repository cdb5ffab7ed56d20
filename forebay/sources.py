"""For your streams: the kinds of source that come with Forebay. Importing this loads no broker's client.

``sources.pyi`` names them for type checkers. A kind of another package is imported from there.
"""

from __future__ import annotations

from receiver_runtime.sources.fields.tcp import Tls
from receiver_runtime.sources.plugins import registered
from receiver_runtime.sources.source_registry import GROUP, source_class

_KINDS = {
    entry.attr: kind
    for kind, entry in registered(GROUP).items()
    if entry.dist is not None and entry.dist.name == "forebay"
}

__all__ = ["Tls", *sorted(_KINDS)]  # noqa: PLE0604  each is a name


def __getattr__(name: str) -> object:
    """Import a kind of source when it is named."""
    if name not in _KINDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: use one of {', '.join(__all__)}")
    return source_class(_KINDS[name])

"""For your streams: the kinds of records that packages register, for ``Stream(records=…)``.

Each is imported when it is asked for. Type checkers read `records.pyi`.
"""

# ruff: noqa: F822  `__getattr__` finds what `__all__` names
from __future__ import annotations

from receiver_runtime.sources import plugins
from receiver_runtime.sources.fields.schema_registry import Registry
from receiver_runtime.sources.records.declared import GROUP, Records

# Also what is imported when it is asked for, of Forebay alone: no other package may break `import *`.
__all__ = ["Avro", "Csv", "Json", "JsonSchema", "Logfmt", "Protobuf", "Records", "Regex", "Registry", "Statsd"]


def __getattr__(name: str) -> object:
    """Return the registered kind of this name. Raises AttributeError, and PluginError if its package is broken."""
    kind = None if name.startswith("_") else plugins.class_names(GROUP).get(name)
    if kind is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return plugins.load(GROUP, kind, Records)


def __dir__() -> list[str]:
    """Return every public name, those of registered kinds among them."""
    return sorted({*__all__, *plugins.class_names(GROUP)})

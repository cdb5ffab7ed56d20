"""For your streams: the kinds of source that packages register. Importing this loads no broker's client.

Each is imported when it is asked for. Type checkers read `sources.pyi`.
"""

# ruff: noqa: F822  `__getattr__` finds what `__all__` names
from __future__ import annotations

from receiver_runtime.sources import source_registry
from receiver_runtime.sources.fields.multiline import Multiline
from receiver_runtime.sources.fields.tcp import Tls
from receiver_runtime.sources.plugins import class_names

# Also what is imported when it is asked for, of Forebay alone: no other package may break `import *`.
__all__ = [
    "Amqp",
    "ContainerLogs",
    "CustomSource",
    "Datagrams",
    "FileLines",
    "FluentForward",
    "FollowedFiles",
    "Gelf",
    "Http",
    "Kafka",
    "Mqtt",
    "Multiline",
    "NatsJetStream",
    "OtlpLogs",
    "OtlpMetrics",
    "OtlpTraces",
    "RawSocket",
    "RedisStreams",
    "SocketText",
    "Syslog",
    "Tls",
    "WholeFiles",
    "ZeroMQ",
]


def __getattr__(name: str) -> object:
    """Return the registered source of this name. Raises AttributeError, and SourceError if its package is broken."""
    kind = None if name.startswith("_") else class_names(source_registry.GROUP).get(name)
    if kind is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return source_registry.source_class(kind)


def __dir__() -> list[str]:
    """Return every public name, those of registered sources among them."""
    return sorted({*__all__, *class_names(source_registry.GROUP)})

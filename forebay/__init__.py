"""Forebay's public API: the package that users import. Only re-exports names; loads neither Dagster nor Spark.

Each name is imported when it is asked for, so that `forebay.client` loads in a moment on a small host. Type checkers
read `__init__.pyi`.
"""

from __future__ import annotations

from importlib import import_module

from forebay import shadowing

# Check before any of Forebay's packages is imported: Python would import a project's own folder of the same name.
shadowing.check()

# Sinks that packages register are found by their entry points.
_PLACES = {
    "Batch": "orchestration.declarations.batch",
    "ConsoleSink": "orchestration.sinks.console",
    "DeclarationError": "orchestration.declarations.declaration_error",
    "EnvVar": "receiver_runtime.sources.fields.secret",
    "EventJoin": "orchestration.declarations.state.event_time",
    "EventWindow": "orchestration.declarations.state.event_time",
    "ForeachBatchSink": "orchestration.sinks.foreach_batch",
    "Output": "orchestration.declarations.pipeline",
    "ParquetSink": "orchestration.sinks.parquet.parquet",
    "Pipeline": "orchestration.declarations.pipeline",
    "PostgresSink": "orchestration.sinks.postgres.postgres",
    "Secret": "receiver_runtime.sources.fields.secret",
    "SessionWindow": "orchestration.declarations.state.event_time",
    "State": "orchestration.declarations.state.declared",
    "Stream": "orchestration.declarations.pipeline",
    "Totals": "orchestration.sinks.postgres.postgres_totals",
    "Window": "orchestration.declarations.pipeline",
    "map_with_state": "orchestration.declarations.state.per_key",
    "update_state_by_key": "orchestration.declarations.state.per_key",
}
# Also what is imported when it is asked for, of Forebay alone: no other package may break `import *`.
__all__ = [
    "Batch",
    "ConsoleSink",
    "DeclarationError",
    "DeltaSink",
    "EnvVar",
    "EventJoin",
    "EventWindow",
    "ForeachBatchSink",
    "IcebergSink",
    "KafkaSink",
    "Output",
    "ParquetSink",
    "Pipeline",
    "PostgresSink",
    "Secret",
    "SessionWindow",
    "State",
    "Stream",
    "Totals",
    "Window",
    "map_with_state",
    "update_state_by_key",
]


def __getattr__(name: str) -> object:
    """Return a public name, or the registered sink of it.

    Raises AttributeError, and PluginError if a sink's package is broken.
    """
    if name in _PLACES:
        found: object = getattr(import_module(_PLACES[name]), name)
        globals()[name] = found
        return found
    if not name.startswith("_"):
        from orchestration.declarations import sink  # noqa: PLC0415  see the module
        from receiver_runtime.sources import plugins  # noqa: PLC0415  the same

        if (kind := plugins.class_names(sink.GROUP).get(name)) is not None:
            return sink.class_of(kind)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    """Return every public name, those of registered sinks among them."""
    from orchestration.declarations import sink  # noqa: PLC0415  see the module
    from receiver_runtime.sources import plugins  # noqa: PLC0415  the same

    return sorted({*__all__, *plugins.class_names(sink.GROUP)})

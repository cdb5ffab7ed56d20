"""Forebay's public API: the package that users import. Only re-exports names; loads neither Dagster nor Spark.

Sinks that stand by themselves, and those of other packages, are imported when they are asked for. Type checkers read
`__init__.pyi`.
"""

from __future__ import annotations

from forebay import shadowing

# Check before any of Forebay's packages is imported: Python would import a project's own folder of the same name.
shadowing.check()

from orchestration.declarations import sink_kinds  # noqa: E402
from orchestration.declarations.batch import Batch  # noqa: E402
from orchestration.declarations.pipeline import DeclarationError, Output, Pipeline, Stream, Window  # noqa: E402
from orchestration.sinks.console import ConsoleSink  # noqa: E402
from orchestration.sinks.foreach_batch import ForeachBatchSink  # noqa: E402
from orchestration.sinks.parquet.parquet import ParquetSink  # noqa: E402
from orchestration.sinks.postgres.postgres import PostgresSink  # noqa: E402
from orchestration.sinks.postgres.postgres_totals import Totals  # noqa: E402
from receiver_runtime.sources import plugins  # noqa: E402
from receiver_runtime.sources.fields.secret import EnvVar, Secret  # noqa: E402

# Also what is imported when it is asked for, of Forebay alone: no other package may break `import *`.
__all__ = [
    "Batch",
    "ConsoleSink",
    "DeclarationError",
    "DeltaSink",
    "EnvVar",
    "ForeachBatchSink",
    "IcebergSink",
    "KafkaSink",
    "Output",
    "ParquetSink",
    "Pipeline",
    "PostgresSink",
    "Secret",
    "Stream",
    "Totals",
    "Window",
]


def __getattr__(name: str) -> object:
    """Return the registered sink of this name. Raises AttributeError, and PluginError if its package is broken."""
    kind = None if name.startswith("_") else plugins.class_names(sink_kinds.GROUP).get(name)
    if kind is None:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    return sink_kinds.class_of(kind)


def __dir__() -> list[str]:
    """Return every public name, those of registered sinks among them."""
    return sorted({*__all__, *plugins.class_names(sink_kinds.GROUP)})

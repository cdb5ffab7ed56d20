"""For sinks of your own: the interface, and what sinks share. See ``docs/how-to/add-a-sink.md``.

Importing this loads neither Dagster nor Spark.
"""

from __future__ import annotations

from orchestration.declarations.declaration_error import DeclarationError
from orchestration.declarations.sink import (
    DAILY,
    HOURLY,
    AttemptOutdatedError,
    Committed,
    DeliveryGuarantee,
    OutputAttempt,
    Place,
    Sink,
    SinkError,
    Step,
    TableAddress,
    TargetCheck,
    TargetMissingError,
    TargetUnavailableError,
    Upkeep,
    Written,
)
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.column_changes import ArrowDialect, ColumnChanges, Widening, arrow_changes
from orchestration.sinks.declared_directory import check_directory, declared_directory, directory_place
from orchestration.sinks.file_stores import ArrowFiles, FileStore, LocalFiles
from orchestration.sinks.file_table import FileTableSink
from orchestration.sinks.refused_rows import check_text
from orchestration.sinks.table_columns import arrow_schema, check_names, check_types

__all__ = [
    "BATCH_TIME",
    "DAILY",
    "HOURLY",
    "ArrowDialect",
    "ArrowFiles",
    "AttemptOutdatedError",
    "ColumnChanges",
    "Committed",
    "DeclarationError",
    "DeliveryGuarantee",
    "FileStore",
    "FileTableSink",
    "LocalFiles",
    "OutputAttempt",
    "Place",
    "Sink",
    "SinkError",
    "Step",
    "TableAddress",
    "TargetCheck",
    "TargetMissingError",
    "TargetUnavailableError",
    "Upkeep",
    "Widening",
    "Written",
    "arrow_changes",
    "arrow_schema",
    "check_directory",
    "check_names",
    "check_text",
    "check_types",
    "declared_directory",
    "directory_place",
]

"""Say what a Delta table has that this sink does not write rightly, and whether the sink made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay_contrib.delta.partitions import unsupported
from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.table_columns import fields_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from orchestration.declarations.sink import OutputAttempt

_CONSTRAINTS = "delta.constraints."
# In lower case, because Delta compares them in any. A replay removes files, and names that are mapped are not those of
# the files.
_REFUSED_PROPERTIES = {
    ("delta.appendonly", "true"),
    ("delta.columnmapping.mode", "name"),
    ("delta.columnmapping.mode", "id"),
}
# Features of a table's protocol that need nothing of a writer, unless a property or a column uses them.
_KNOWN_FEATURES = {"appendOnly", "invariants", "checkConstraints", "columnMapping", "generatedColumns", "timestampNtz"}
# Those that deltalake commits to: it lacks identity columns, which 6 includes; of 7 the features are compared.
_WRITER_VERSIONS = {1, 2, 3, 4, 5, 7}
# deltalake keeps no property of ours, so that the description is the mark of a table that a sink made.
_MADE = ", written by Forebay"


def description(attempt: OutputAttempt) -> str:
    """Return the description of a new table, by which `is_own` knows it."""
    return f"{attempt.pipeline}.{attempt.output}{_MADE}"


def is_own(table: Any) -> bool:  # noqa: ANN401  a DeltaTable
    """Return whether a sink made the table."""
    return (table.metadata().description or "").endswith(_MADE)


def columns_of(table: Any) -> pa.Schema:  # noqa: ANN401
    """Return the table's columns."""
    import pyarrow as pa  # noqa: PLC0415

    return pa.schema(table.schema().to_arrow())


def without_feature(columns: pa.Schema) -> list[str]:
    """Return the columns with times without a zone in a map, for which deltalake forgets the feature timestampNtz."""
    import pyarrow as pa  # noqa: PLC0415

    def is_time(type_: pa.DataType) -> bool:
        return pa.types.is_timestamp(type_) and type_.tz is None

    return [
        column.name
        for column in columns
        for _, map_ in fields_in(pa.schema([column]))
        if pa.types.is_map(map_.type) and any(is_time(field.type) for _, field in fields_in(pa.schema([map_])))
    ]


def not_written(table: Any) -> list[str]:  # noqa: ANN401
    """Return what the table has that the sink does not write rightly, by its names."""
    metadata, protocol, columns = table.metadata(), table.protocol(), columns_of(table)
    unknown = []
    if protocol.min_writer_version not in _WRITER_VERSIONS:
        unknown.append(f"writer version {protocol.min_writer_version} of Delta's protocol")
    if BATCH_TIME in metadata.partition_columns:
        unknown.append(f"the partition column {BATCH_TIME}")
    unknown += unsupported([name for name in metadata.partition_columns if name != BATCH_TIME], columns)
    unknown += [f"the property {key}" for key in sorted(metadata.configuration) if key.lower().startswith(_CONSTRAINTS)]
    unknown += [
        f"the property {key}={value}"
        for key, value in sorted(metadata.configuration.items())
        if (key.lower(), value.lower()) in _REFUSED_PROPERTIES
    ]
    for column in columns:
        unknown += _not_written_of(column)
    unknown += [f"the feature {name}" for name in sorted({*(protocol.writer_features or ())} - _KNOWN_FEATURES)]
    return unknown


def _not_written_of(column: pa.Field) -> Iterator[str]:
    """Yield what a column has. A null in one that must not be null is a row that is refused, but not within one."""
    import pyarrow as pa  # noqa: PLC0415

    for path, field in fields_in(pa.schema([column])):
        # A comment asks nothing of a writer.
        declared = sorted(key.decode() for key in field.metadata or {} if key != b"comment")
        yield from (f"{key} of column {path}" for key in declared)
        if not field.nullable and field is not column and path != column.name:
            yield f"column {path}, which must not be null"

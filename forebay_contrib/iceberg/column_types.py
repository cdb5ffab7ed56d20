"""Change the columns of an Iceberg table in the transaction of the first rows that have others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_contrib.iceberg.commits import is_made_by_forebay
from forebay_contrib.iceberg.data_files import iceberg_schema
from orchestration.sinks.column_changes import ArrowDialect, Widening, arrow_changes, cleared, policy_for
from orchestration.sinks.parquet_staging import with_batch_time

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table, Transaction

    from orchestration.sinks.column_changes import ColumnChanges, ColumnPolicy

_WIDENINGS = frozenset({Widening.INTEGER, Widening.FLOAT, Widening.DECIMAL})


def kept_by(changes: ColumnChanges, table: Table, columns: ColumnPolicy | None) -> list[str]:
    """Return the columns of the table whose values a row keeps when `mode="merge"` replaces it."""
    lost = cleared(changes, policy_for(columns, is_own=is_made_by_forebay(table)))
    return [name for name in changes.missing if name not in lost]


def changes_of(table: Table, schema: pa.Schema, columns: ColumnPolicy | None, where: str) -> ColumnChanges:
    """Return how a table's columns change for a result's. Raises SinkError that names each misfit."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415

    name = ".".join(table.name())
    return arrow_changes(
        with_batch_time(schema),
        schema_to_pyarrow(table.schema()),
        ArrowDialect(name, name, _WIDENINGS),
        policy=policy_for(columns, is_own=is_made_by_forebay(table)),
        where=where,
    )


def change(transaction: Transaction, changes: ColumnChanges, schema: pa.Schema) -> Schema:
    """Add the changes to a transaction; return the columns that the table then has."""
    if changes:
        types = {field.name: field.field_type for field in iceberg_schema(schema).fields}
        with transaction.update_schema() as update:
            for name in changes.added:
                update.add_column((name,), types[name])
            for name in changes.widened:
                update.update_column((name,), types[name])
    return transaction.table_metadata.schema()

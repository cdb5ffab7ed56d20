"""Say what an Iceberg table of others demands that this sink does not write, and which values its columns need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_contrib.iceberg.files import AMBIGUOUS
from forebay_contrib.iceberg.partitions import is_float, partitions_of
from orchestration.declarations.sink import SinkError
from orchestration.sinks.table_columns import fields_in
from receiver_runtime.block_store.roots import too_long

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyiceberg.table import Table
    from pyspark.sql.types import StructType

    from forebay_contrib.iceberg.partitions import Partition

# Their values are equal or not by the reader, or not at all; Iceberg's identifier fields can't be of them either.
_NO_KEYS = frozenset({"FloatType", "DoubleType", "StructType", "ArrayType", "MapType", "NullType"})
_NEWEST_FORMAT = 2
_EQUALITY_DELETES = "total-equality-deletes"


def check_new(table: str, where: str) -> None:
    """Raise SinkError for a name that can't be part of the new table's directory."""
    if found := sorted(AMBIGUOUS & set(table)):
        raise SinkError(
            f"{where}: the name of its Iceberg table {table!r} has {', '.join(found)}, which programs read in "
            "several ways in the name of its directory: name the table otherwise"
        )
    namespace, _, name = table.rpartition(".")
    if why := too_long(f"{namespace}.db/{name}"):
        raise SinkError(f"{where}: its Iceberg table would have a directory of its name, and {why}")


def check_key_types(schema: StructType, key: Sequence[str], where: str) -> None:
    """Raise SinkError for a key whose values are not equal to all readers."""
    for column in key:
        if type(schema[column].dataType).__name__ in _NO_KEYS:
            raise SinkError(
                f"{where}: its sink has the column {column} as key, a {schema[column].dataType.simpleString()}, of "
                "which Iceberg makes no key: cast it to a decimal or a text, or name others"
            )


def unwritten(table: Table, key: Sequence[str]) -> Iterator[str]:
    """Yield what the sink does not write rightly, by its name; `key`: that of mode="merge"."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow  # noqa: PLC0415
    from pyiceberg.transforms import UnknownTransform  # noqa: PLC0415

    schema = table.schema()
    if table.format_version > _NEWEST_FORMAT:
        yield f"format version {table.format_version}"
    for field in table.spec().fields:
        if schema.find_column_name(field.source_id) is None:
            yield f"the partition {field.name} of a column that is gone"
        elif is_float(schema.find_type(field.source_id)):
            yield f"the partition {field.name} of a float"
        elif isinstance(field.transform, UnknownTransform):
            yield f"the partition {field.name}, whose transform pyiceberg does not know"
    top = {field.name for field in schema.fields}
    for path, column in fields_in(schema_to_pyarrow(schema)):
        if not column.nullable and path not in top:
            yield f"the required column {path} within another one"
    identifiers = schema.identifier_field_names()
    if identifiers and identifiers != {*key}:
        yield (
            f"the identifier fields {', '.join(sorted(identifiers))}, of which it keeps one row each only by "
            f"mode='merge', key={sorted(identifiers)}"
        )
    snapshot = table.current_snapshot()
    if snapshot and snapshot.summary and snapshot.summary.additional_properties.get(_EQUALITY_DELETES, "0") != "0":
        yield "equality deletes, which pyiceberg does not read (rewrite its data files to be rid of them)"


def other_partitions(table: Table, declared: Sequence[Partition]) -> str | None:
    """Return how a table is partitioned that exists, if a declaration says it otherwise."""
    there = partitions_of(table.spec(), table.schema())
    if {(one.column, one.transform) for one in there} == {(one.column, one.transform) for one in declared}:
        return None
    return ", ".join(one.shown for one in there) or "nothing"

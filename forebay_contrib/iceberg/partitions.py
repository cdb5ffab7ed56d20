"""Part rows by an Iceberg partition spec, and read the partitions that a declaration names.

pyiceberg's transforms decide: each distinct value of a column is transformed once. Spark's workers import this module,
so it loads neither Spark nor Dagster nor the driver log.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.refused_rows import RefusedRow, readable_row, row_as_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    import numpy as np
    import pyarrow as pa
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType

    from orchestration.sinks.refused_rows import RefusedRows

_TRANSFORM = re.compile(r"(\w+)\((?:(\d+),\s*)?(.+)\)", re.DOTALL)
_BY_NUMBER = frozenset({"bucket", "truncate"})
_OF_TIMES = frozenset({"year", "month", "day", "hour"})
_WORDS = "a column, year(COLUMN), month(COLUMN), day(COLUMN), hour(COLUMN), bucket(N, COLUMN) or truncate(N, COLUMN)"


@dataclass(frozen=True, slots=True)
class Partition:
    """Name a column, and the transform of its values, as Iceberg spells it."""

    column: str
    transform: str = "identity"

    @classmethod
    def of(cls, text: str) -> Partition:
        """Read a declaration, such as `bucket(16, id)`. Raises ValueError."""
        found = _TRANSFORM.fullmatch(text)
        if found is None:
            if not text:
                raise ValueError(f"'' names no partition: write {_WORDS}")
            return cls(text)
        word, number, column = found[1].removesuffix("s") if found[1] != "bucket" else found[1], found[2], found[3]
        if word not in _BY_NUMBER | _OF_TIMES or (word in _BY_NUMBER) != (number is not None) or number == "0":
            raise ValueError(f"{text!r} names no partition: write {_WORDS}")
        return cls(column.strip(), word if number is None else f"{word}[{int(number)}]")

    @property
    def shown(self) -> str:
        """Return it as a declaration has it."""
        word, _, number = self.transform.rstrip("]").partition("[")
        if word == "identity":
            return self.column
        return f"{word}({number}, {self.column})" if number else f"{word}({self.column})"

    @property
    def name(self) -> str:
        """Return the name of the partition's field, as Spark gives it."""
        if self.transform == "identity":
            return self.column
        return f"{self.column}_{self.transform.partition('[')[0].replace('truncate', 'trunc')}"


def spec_of(partitions: Sequence[Partition], schema: Schema) -> PartitionSpec:
    """Return the spec of a new table. Raises ValueError if it has no such column, or the type has no such transform."""
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec  # noqa: PLC0415
    from pyiceberg.transforms import parse_transform  # noqa: PLC0415

    fields = []
    columns = {field.name: field for field in schema.fields}
    for number, partition in enumerate(partitions):
        source = columns.get(partition.column)
        if source is None:
            raise ValueError(
                f"partition_by has the column {partition.column!r}, and the result has {', '.join(columns)}"
            )
        transform = parse_transform(partition.transform)
        if not transform.can_transform(source.field_type) or is_float(source.field_type):
            raise ValueError(
                f"partition_by has {partition.transform} of the column {partition.column!r}, and Iceberg has no such "
                f"partition of a {source.field_type}"
            )
        taken = partition.name in columns and partition.transform != "identity"
        name = f"{partition.name}_{PARTITION_FIELD_ID_START + number}" if taken else partition.name
        fields.append(PartitionField(source.field_id, PARTITION_FIELD_ID_START + number, transform, name))
    return PartitionSpec(*fields)


def partitions_of(spec: PartitionSpec, schema: Schema) -> list[Partition]:
    """Return what a table is partitioned by; a column that it no longer has is named by its number."""
    return [
        Partition(schema.find_column_name(field.source_id) or f"#{field.source_id}", str(field.transform))
        for field in spec.fields
    ]


def is_float(type_: IcebergType) -> bool:
    """Return whether a column can't be partitioned by: pyiceberg finds no file of the partition NaN."""
    from pyiceberg.types import DoubleType, FloatType  # noqa: PLC0415

    return isinstance(type_, FloatType | DoubleType)


@dataclass(frozen=True, slots=True)
class _Source:
    """Hold the path to a partition's column (also within structs), its type, and the transform."""

    path: tuple[str, ...]
    type: IcebergType
    transform: str

    def column(self, table: pa.Table, batch_time: datetime | None) -> Any:  # noqa: ANN401  an array of pyarrow's
        """Return the column's values as Iceberg has them inside; nulls if the rows have no such column."""
        import pyarrow as pa  # noqa: PLC0415
        import pyarrow.compute as pc  # noqa: PLC0415

        if self.path[0] not in table.column_names:
            if self.path[0] != BATCH_TIME or batch_time is None:
                return pa.nulls(table.num_rows)
            return _physical(pa.array([batch_time] * table.num_rows, pa.timestamp("us", "UTC")))
        column = table[self.path[0]].combine_chunks()
        for name in self.path[1:]:
            column = pc.struct_field(column, name)
        return _physical(column)


@dataclass(frozen=True, slots=True)
class PartitionedRows:
    """Part a task's rows by the values of a spec; `batch_time`: the value of that column, where rows lack it."""

    spec_id: int
    sources: tuple[_Source, ...]
    batch_time: datetime | None = None

    @classmethod
    def of(cls, spec: PartitionSpec, schema: Schema, batch_time: datetime | None) -> PartitionedRows:
        """Return the parting for a table's spec."""
        sources = tuple(
            _Source(_path(schema, field.source_id), schema.find_type(field.source_id), str(field.transform))
            for field in spec.fields
        )
        return cls(spec.spec_id, sources, batch_time)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return none: files have all columns."""
        return ()

    @property
    def top_columns(self) -> tuple[str, ...]:
        """Return the columns that partitions are made of, or that have them within."""
        return tuple(source.path[0] for source in self.sources)

    def parted(self, table: pa.Table, refused: RefusedRows) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows of each partition; add what has none to `refused`."""
        import pyarrow as pa  # noqa: PLC0415

        reasons: dict[int, str] = {}
        codes, values = self._values(table, reasons)
        for row, reason in sorted(reasons.items()):
            one = table.slice(row, 1).combine_chunks().to_batches()[0]
            refused.add(RefusedRow(row_as_json(readable_row(one)), reason))
        refused.end()
        if not reasons and len(values) == 1:
            yield self._part(values[0]), table
            return
        import numpy as np  # noqa: PLC0415

        kept = np.setdiff1d(np.arange(table.num_rows), list(reasons))
        if not kept.size:
            return
        order = kept[np.argsort(codes[kept], kind="stable")]
        begins = np.flatnonzero(np.diff(codes[order], prepend=-1))
        rows = table.take(pa.array(order))
        for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
            yield self._part(values[int(codes[order[begin]])]), rows.slice(begin, end - begin)

    def folder(self, part: str) -> str:
        """Return the folder of a part's files, whose name readers need not understand."""
        return part

    def has_parted(self, part: str) -> bool:
        """Return whether a part is of this spec: a table may have got another one meanwhile."""
        return not self.sources or part.startswith(f"{self.spec_id}-")

    def _part(self, values: tuple[Any, ...]) -> str:
        return f"{self.spec_id}-{hashlib.sha256(repr(values).encode()).hexdigest()[:16]}" if values else ""

    def partition(self, row: pa.Table) -> tuple[Any, ...]:
        """Return the partition's values of rows that are all in it, as a manifest has them."""
        _, values = self._values(row, {})
        [found] = values
        return found

    def _values(self, table: pa.Table, reasons: dict[int, str]) -> tuple[np.ndarray, list[tuple[Any, ...]]]:
        """Return a number for each row, and the values that each number stands for; add rows that have none."""
        import numpy as np  # noqa: PLC0415

        codes, values = np.zeros(table.num_rows, dtype=np.int64), [()]
        for source in self.sources:
            # Workers that write no partitions need no pyiceberg.
            from pyiceberg.transforms import parse_transform  # noqa: PLC0415

            encoded = source.column(table, self.batch_time).dictionary_encode()
            transform = parse_transform(source.transform)
            apply = transform.transform(source.type)
            numbers: dict[Any, int] = {}
            of_value = []
            for value in [*encoded.dictionary.to_pylist(), None]:
                try:
                    found = apply(value)
                    # As a commit writes it: Python lacks dates and times before the year 1 and after 9999.
                    transform.to_human_string(source.type, found)
                except (OverflowError, ValueError):
                    of_value.append(-1)
                    continue
                of_value.append(numbers.setdefault(found, len(numbers)))
            indices = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy(zero_copy_only=False)
            of_row = np.array(of_value, dtype=np.int64)[indices]
            for row in np.flatnonzero(of_row < 0).tolist():
                reasons.setdefault(
                    row, f"column {'.'.join(source.path)} is beyond what {source.transform} of a partition takes"
                )
            transformed = [*numbers]
            # Numbered again after each field: a product of many fields' values would be too large for a number.
            pairs, codes = np.unique(codes * len(transformed) + np.maximum(of_row, 0), return_inverse=True)
            values = [
                (*values[pair // len(transformed)], transformed[pair % len(transformed)]) for pair in pairs.tolist()
            ]
        return codes, values


def _physical(column: Any) -> Any:  # noqa: ANN401
    """Return dates as days and times as microseconds, which Python has for each of them."""
    import pyarrow as pa  # noqa: PLC0415

    if pa.types.is_date32(column.type):
        return column.cast(pa.int32())
    return column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column


def _path(schema: Schema, field_id: int) -> tuple[str, ...]:
    """Return the names that lead to a field, which may have dots in them."""
    accessor: Any = schema.accessor_for_field(field_id)
    fields, path = schema.fields, []
    while accessor is not None:
        field = fields[accessor.position]
        path.append(field.name)
        fields, accessor = getattr(field.field_type, "fields", ()), accessor.inner
    return tuple(path)

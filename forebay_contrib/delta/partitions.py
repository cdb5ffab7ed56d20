"""Part rows by the partition columns of a Delta table, whose values the log has: files lack them.

Owns which values the log gives back as they are. Spark's tasks run it, so it loads no deltalake.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from orchestration.sinks.parquet_partitions import NULL, day_fault, parted
from orchestration.sinks.refused_rows import RefusedRow, readable_row, row_as_json, shown
from receiver_runtime.block_store.roots import MOST_NAME_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from orchestration.sinks.refused_rows import RefusedRows

# Such a folder is the same to all that read the log's paths, in which other characters are escaped.
_DAYS = (-719_162, 2_932_897)  # the first ones of the years 1 and 10000
_PLAIN = re.compile(r"[A-Za-z0-9_.=/-]{1,200}")


@dataclass(frozen=True, slots=True)
class DeltaPartitions:
    """Part rows by the values of the columns; a part's name has them escaped. A column that rows lack is null."""

    columns: tuple[str, ...]

    def parted(self, table: pa.Table, refused: RefusedRows) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows of each part; add those with times that deltalake does not read to `refused`."""
        table = _without_far_times(table, refused)
        there = [column for column in self.columns if column in table.column_names]
        missing = [_named(column, None)[0] for column in self.columns if column not in there]
        for part, rows in parted(table, there, refused, _named) if there else [("", table)] if table.num_rows else []:
            yield "/".join(filter(None, (part, *missing))), rows

    def folder(self, part: str) -> str:
        """Return `column=value/` as other writers name it, or a folder that says nothing."""
        named = "/".join(f"{one}{NULL}" if one.endswith("=") else one for one in part.split("/"))
        return (
            named if not part or _PLAIN.fullmatch(named) else f"part-{hashlib.sha256(part.encode()).hexdigest()[:16]}"
        )


def _without_far_times(rows: pa.Table, refused: RefusedRows) -> pa.Table:
    """Return the rows without dates and times before the year 1 and after 9999, also within structs; refuse the others.

    deltalake writes bounds of them when it merges files, and then reads the table no more.
    """
    import pyarrow.compute as pc  # noqa: PLC0415

    for name in rows.column_names:
        for numbers, of_day in _times_in(rows[name]):
            is_early = pc.less(numbers, _DAYS[0] * of_day)
            is_far = pc.fill_null(pc.or_(is_early, pc.greater_equal(numbers, _DAYS[1] * of_day)), False)  # noqa: FBT003  it takes no keywords
            for row in rows.filter(is_far).to_batches() if pc.any(is_far).as_py() else []:
                for at in range(row.num_rows):
                    reason = f"column {name} has a time before the year 1 or after 9999, which deltalake does not read"
                    refused.add(RefusedRow(row_as_json(readable_row(row.slice(at, 1))), reason))
            if pc.any(is_far).as_py():
                refused.end()
                return _without_far_times(rows.filter(pc.invert(is_far)), refused)
    return rows


def _times_in(column: Any) -> Iterator[tuple[Any, int]]:  # noqa: ANN401  a column of pyarrow's
    """Yield the dates and times of a column and of structs in it, as numbers since 1970, with how many a day has."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.compute as pc  # noqa: PLC0415

    if pa.types.is_struct(column.type):
        for number in range(column.type.num_fields):
            yield from _times_in(pc.struct_field(column, number))
    elif pa.types.is_date32(column.type):
        yield column.cast(pa.int32()), 1
    elif pa.types.is_timestamp(column.type):
        yield column.cast(pa.int64()), 86_400_000_000


def unsupported(columns: Sequence[str], schema: pa.Schema) -> list[str]:
    """Return the partition columns whose values readers take in several ways from the log, with their types.

    deltalake reads a negative decimal wrongly, and Spark a time in the session's zone.
    """
    return [
        f"the partition column {name} ({schema.field(name).type})"
        for name in columns
        if not _is_supported(schema.field(name).type)
    ]


def _is_supported(type_: pa.DataType) -> bool:
    import pyarrow as pa  # noqa: PLC0415

    types = pa.types
    return bool(
        types.is_integer(type_)
        or types.is_boolean(type_)
        or types.is_date32(type_)
        or types.is_string(type_)
        or types.is_large_string(type_)
        or types.is_string_view(type_)
    )


def _named(column: str, value: pa.Scalar | None) -> tuple[str, str]:
    """Return the name of a value, and why it has none, if so."""
    import pyarrow as pa  # noqa: PLC0415

    if value is None:
        return f"{quote(column, safe='')}=", ""
    if reason := day_fault(column, value):
        return "", reason
    plain = value.as_py()
    text = str(plain).lower() if pa.types.is_boolean(value.type) else str(plain)
    if not text:
        return "", f"column {column} is an empty text, which a partition of Delta has for null"
    name = f"{quote(column, safe='')}={quote(text, safe='')}"
    # deltalake names a folder so when it writes files again.
    if len(name) > MOST_NAME_BYTES:
        return "", f"column {column} is {shown(text)}, which is too long for a folder's name"
    return name, ""

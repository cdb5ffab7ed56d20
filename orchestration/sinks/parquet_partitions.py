"""Part a result's rows by the values of columns, into folders `column=value` as Spark, Hive and Arrow read them.

Owns which columns and values such a folder gives back as they are; any other is refused, and none is altered. Runs in
Spark's Python workers, so it loads neither Spark nor Dagster nor the driver log.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

from orchestration.sinks.refused_rows import RefusedRow, RefusedRowsError, readable_row, shown
from receiver_runtime.block_store.roots import MOST_NAME_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from orchestration.sinks.refused_rows import RefusedRows

#: What Hive, Spark and Arrow call the folder of null.
NULL = "__HIVE_DEFAULT_PARTITION__"
#: Folders that one task fills at the same time: each has an open file, and its rows are in memory until it is closed.
MOST_FOLDERS = 1000
_TYPES = frozenset({"ByteType", "ShortType", "IntegerType", "LongType", "DateType", "StringType"})
# The characters that Spark escapes in a folder's name (ExternalCatalogUtils.escapePathName), and those of control.
_ESCAPED = re.compile("[\x00-\x1f\x7f\"#%'*/:=?\\\\{\\[\\]^]")
# Texts that a reader infers to be numbers, dates or times, so that "01" comes back as 1.
_INFERRED = re.compile(
    r"\s*[+-]?(?:"
    r"NaN|Infinity|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?|0[xX][0-9a-fA-F.]+(?:[pP][+-]?\d+)?[fFdD]?"
    r"|\d{4,7}(?:-\d{1,2}){0,2}(?:[ T].*)?|T?\d{1,2}:.*"
    r")\s*",
    re.DOTALL,
)
# 0001-01-01 and 9999-12-31 in days since 1970.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896


class Parting(Protocol):
    """Part the rows of a task, by the values that they share. Picklable. A part's name says its values."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns that files lack, because the part has them."""

    def parted(self, table: pa.Table, refused: RefusedRows) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows of each part without `columns`, by the part's name; add what belongs to none to `refused`."""

    def folder(self, part: str) -> str:
        """Return the folder of a part's files."""


@dataclass(frozen=True, slots=True)
class FoldersOfValues:
    """Part rows by the values of columns, as readers infer them from `column=value`; none: all in one."""

    columns: tuple[str, ...]

    def parted(self, table: pa.Table, refused: RefusedRows) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows of each folder."""
        return parted(table, self.columns, refused)

    def folder(self, part: str) -> str:
        """Return the folder, which is the part's name."""
        return part


def checked_partitions(partition_by: Sequence[str] | str, *, compact: bool) -> tuple[str, ...]:
    """Return the columns of a declaration. Raises DeclarationError."""
    from orchestration.declarations.declaration_error import DeclarationError  # noqa: PLC0415  workers declare nothing

    columns = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    message = None
    if not all(isinstance(column, str) for column in columns):
        message = f"partition_by={partition_by!r} is no list of columns: write partition_by=['country']"
    elif twice := sorted({column for column in columns if columns.count(column) > 1}):
        message = f"partition_by={list(columns)!r} has {twice[0]!r} twice"
    elif hidden := [column for column in columns if column[:1] in ("", "_", ".")]:
        message = f"partition_by={list(columns)!r}: readers skip folders that begin with _ or .: rename {hidden[0]!r}"
    elif columns and compact:
        message = "compact merges an hour's batches into one file, and partition_by parts them: choose one of the two"
    if message is not None:
        raise DeclarationError(f"ParquetSink: {message}")
    return columns


def check_partitions(schema: StructType, partition_by: Sequence[str], where: str) -> None:
    """Raise SinkError for columns that a result lacks, or whose values a folder would not give back."""
    from orchestration.declarations.sink import SinkError  # noqa: PLC0415  workers declare nothing

    names = [field.name for field in schema.fields]
    for column in partition_by:
        if column not in names:
            raise SinkError(f"{where} has no column {column!r} of partition_by: it has {', '.join(names)}")
        type_ = schema[column].dataType
        if type(type_).__name__ not in _TYPES:
            raise SinkError(
                f"{where}: partition_by has {column!r}, a {type_.simpleString()}: a folder's name gives back whole "
                "numbers, dates and texts, so cast it, or take another column"
            )
    if partition_by and len(names) == len(partition_by):
        raise SinkError(f"{where}: partition_by has all of its columns, and files need one that is not in the folders")


def partitions_of(parts: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of the folders above a file, from the parts of its path below its batch."""
    return tuple(_unescape(part.partition("=")[0]) for part in parts[:-1])


def values_of(part: str) -> dict[str, str | None]:
    """Return the values that a part's name says: `column=value/…`, escaped as in URLs, and empty for null."""
    pairs = [one.partition("=") for one in part.split("/") if "=" in one]
    return {unquote(column): unquote(value) or None for column, _, value in pairs}


def parted(
    table: pa.Table,
    partition_by: Sequence[str],
    refused: RefusedRows,
    named: Callable[[str, pa.Scalar | None], tuple[str, str]] | None = None,
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows of each part without its columns, by the part's name; add what has none to `refused`.

    `named` returns the name of a column's value (None: null), and why it has none, if so; by default a folder's.
    """
    if not partition_by:
        yield "", table
        return
    import numpy as np  # noqa: PLC0415
    import pyarrow as pa  # noqa: PLC0415

    of = named or _folder
    # One number for each combination of values, and its folder.
    keys = np.zeros(table.num_rows, dtype=np.int64)
    names = [""]
    reasons: dict[int, str] = {}
    for column in partition_by:
        encoded = table[column].combine_chunks().dictionary_encode()
        values = encoded.dictionary
        codes = encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False)
        found = [*(of(column, value) for value in values), of(column, None)]
        for code, (_, reason) in enumerate(found):
            if reason:
                for row in np.flatnonzero(codes == code).tolist():
                    reasons.setdefault(row, reason)
        # Numbered anew after each column: a product of many columns' values would be too large for a number.
        pairs, keys = np.unique(keys * len(found) + codes, return_inverse=True)
        names = [
            f"{names[pair // len(found)]}/{found[pair % len(found)][0]}".removeprefix("/") for pair in pairs.tolist()
        ]
    for at, reason in sorted(reasons.items()):
        one = table.slice(at, 1).combine_chunks().to_batches()[0]
        refused.add(RefusedRow(json.dumps(readable_row(one), default=str), reason))
    refused.end()
    kept = np.setdiff1d(np.arange(table.num_rows), list(reasons))
    if not kept.size:
        return
    order = kept[np.argsort(keys[kept], kind="stable")]
    begins = np.flatnonzero(np.diff(keys[order], prepend=-1))
    rows = table.drop_columns(list(partition_by)).take(pa.array(order))
    for begin, end in zip(begins, [*begins[1:], len(order)], strict=True):
        yield names[int(keys[order[begin]])], rows.slice(begin, end - begin)


def check_number(folders: int) -> None:
    """Raise RefusedRowsError if one task fills too many folders."""
    if folders > MOST_FOLDERS:
        raise RefusedRowsError(
            f"one task has rows for more than {MOST_FOLDERS:,} folders of partition_by: take columns with fewer "
            "values, or bring their rows together before, as frame.repartition('country')"
        )


def day_fault(column: str, value: pa.Scalar) -> str:
    """Return why a value has no name, because it is a day beyond those of ISO 8601; empty: it is none."""
    import pyarrow as pa  # noqa: PLC0415

    days = value.cast(pa.int32()).as_py() if pa.types.is_date32(value.type) else None
    if days is None or _FIRST_DAY <= days <= _LAST_DAY:
        return ""
    return f"column {column} is the day {days:,} since 1970: a folder has the years 0001 to 9999"


def _folder(column: str, value: pa.Scalar | None) -> tuple[str, str]:
    """Return the folder of a value, and why it has none, if so."""
    if value is None:
        return f"{_escape(column)}={NULL}", ""
    if reason := day_fault(column, value):
        return "", reason
    plain = value.as_py()
    text = str(plain)
    if isinstance(plain, str) and (plain in ("", NULL) or _INFERRED.fullmatch(plain)):
        return "", (
            f"column {column} is {shown(plain)}, which readers of a folder's name take for "
            f"{'null' if plain in ('', NULL) else 'a number or a time'}"
        )
    name = f"{_escape(column)}={_escape(text)}"
    if len(name.encode()) > MOST_NAME_BYTES:
        return "", f"column {column} is {shown(plain)}, which is too long for a folder's name"
    return name, ""


def _escape(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def _unescape(text: str) -> str:
    return re.sub("%([0-9A-F]{2})", lambda found: chr(int(found[1], 16)), text)

"""Declare the columns of a keyed state: its key and its value, as names and Spark's types.

Owns which columns a state may have. A declaration imports it, so it loads neither Spark nor Arrow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from receiver_runtime.sources.records.ddl import parse_ddl, parse_spark_types, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping

#: A value's column of this name is the time at which its key expires; null: never.
EXPIRES_AT = "expires_at"
#: The column that a state is given with: whether the key's time is up.
IS_EXPIRED = "is_expired"

_TIME = "TIMESTAMP"
# Types whose values are equal only if their bytes are, and which Spark hashes alike in all versions.
_KEYS = ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "STRING", "BINARY", "DATE", _TIME, "TIMESTAMP_NTZ")
_DECIMAL = "DECIMAL("

Columns = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class StateSchema:
    """Hold a state's columns, each as (name, Spark's type in DDL). Raises ValueError if no state can have them.

    `grouped_by`: a state is asked for all keys that are equal in this many first columns of the key, which is a
    *group*; None: in all of them, so that each key is a group of its own.
    """

    key: Columns
    value: Columns
    grouped_by: int | None = None

    def __post_init__(self) -> None:
        """Check the columns."""
        for what, columns in (("key", self.key), ("value", self.value)):
            if not columns:
                raise ValueError(f"a state's {what} has no column: declare at least one, as {what}='name STRING'")
        seen: dict[str, str] = {}
        for name, _ in self.columns:
            if name.startswith("_"):
                raise ValueError(f"column {name!r}: names that begin with '_' are Forebay's: rename it")
            if name.casefold() == IS_EXPIRED:
                raise ValueError(f"column {name!r}: a state is given with a column {IS_EXPIRED}: rename yours")
            if (before := seen.setdefault(name.casefold(), name)) != name or self.names.count(name) > 1:
                raise ValueError(f"the columns {before!r} and {name!r} have one name in Spark: rename one")
        for name, kind in self.key:
            self._check_key(name, kind)
        for name, kind in self.value:
            if name.casefold() == EXPIRES_AT and (name, kind) != (EXPIRES_AT, _TIME):
                raise ValueError(f"column {name} {kind}: write it as {EXPIRES_AT} {_TIME}: it says when a key expires")

    @classmethod
    def parse(cls, *, key: str, value: str) -> StateSchema:
        """Return the schema of two texts in Spark's DDL, as ``"user STRING"``. Raises ValueError."""
        return cls(parse_spark_types(key), parse_spark_types(value))

    @property
    def columns(self) -> Columns:
        """Return the columns of the key, and then those of the value."""
        return self.key + self.value

    @property
    def names(self) -> list[str]:
        """Return the names of all columns, the key's first."""
        return [name for name, _ in self.columns]

    @property
    def key_names(self) -> list[str]:
        """Return the names of the key's columns."""
        return [name for name, _ in self.key]

    @property
    def has_expires_at(self) -> bool:
        """Return whether each key has a time of its own."""
        return any(name == EXPIRES_AT for name, _ in self.value)

    @property
    def group(self) -> Columns:
        """Return the columns of the key that a group is asked for by."""
        return self.key[: self.grouped_by]

    @property
    def group_names(self) -> list[str]:
        """Return the names of the columns that a group is asked for by."""
        return [name for name, _ in self.group]

    def arrow_columns(self) -> Columns:
        """Return the columns with Arrow's types, in text."""
        return parse_ddl(ddl(self.columns)).columns

    def to_row(self) -> dict[str, Any]:
        """Return what the driver log keeps."""
        columns = {"key": [list(column) for column in self.key], "value": [list(column) for column in self.value]}
        return columns if self.grouped_by is None else {**columns, "grouped_by": self.grouped_by}

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> StateSchema:
        """Read what `to_row` returned."""
        key, value = (tuple((name, kind) for name, kind in row[part]) for part in ("key", "value"))
        return cls(key, value, row.get("grouped_by"))

    @staticmethod
    def _check_key(name: str, kind: str) -> None:
        if name.casefold() == EXPIRES_AT:
            raise ValueError(
                f"column {name!r}: a key can't be its own time of expiry: declare it in value=, or rename it"
            )
        if kind in _KEYS or kind.startswith(_DECIMAL):
            return
        if kind in ("FLOAT", "DOUBLE"):
            way_out = "0.0 and -0.0 are equal, and NaN is not: use DECIMAL, BIGINT or STRING"
        elif kind.startswith("MAP<"):
            way_out = "a map's entries have no order: make columns of its entries"
        else:
            way_out = "make a column of each part"
        raise ValueError(f"column {name} {kind}: no key can be of this type: {way_out}")


def ddl(columns: Columns) -> str:
    """Return columns as Spark's DDL."""
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in columns)

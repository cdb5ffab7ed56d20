"""Declares the keyed state of an output: the types of its key and value, when keys expire, and what a failure means.

Owns these checks, which need neither Spark nor the driver log. It computes and stores nothing
(``orchestration.state``). It is what `updateStateByKey` and `mapWithState` kept (docs/how-to/from-dstreams.md#state).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from orchestration.declarations.pipeline import DeclarationError
from receiver_runtime.sources.fields.units import parse_duration
from receiver_runtime.sources.records.ddl import parse_ddl, parse_spark_types, quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

OnStateFailure = Literal["halt", "skip"]
Columns = tuple[tuple[str, str], ...]
#: A value's column of this name is the time at which its key expires; null: never.
EXPIRES_AT = "expires_at"
#: The column that a state is given with: whether the key's time is up.
IS_EXPIRED = "is_expired"
DEFAULT_BUCKETS = 16
_MOST_BUCKETS = 4096
_TIME = "TIMESTAMP"
# Types whose values are equal only if their bytes are, and which Spark hashes alike in all versions.
_KEYS = ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "STRING", "BINARY", "DATE", _TIME, "TIMESTAMP_NTZ")
_DECIMAL = "DECIMAL("


@dataclass(frozen=True, slots=True)
class StateSchema:
    """Hold a state's columns, each as (name, Spark's type in DDL). Raises ValueError if no state can have them."""

    key: Columns
    value: Columns

    def __post_init__(self) -> None:
        """Check the columns."""
        for what, columns in (("key", self.key), ("value", self.value)):
            if not columns:
                raise ValueError(f"a state's {what} has no column: declare at least one, as {what}='name STRING'")
        seen: dict[str, str] = {}
        for name in self.names:
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
    def parse(cls, *, key: str, value: str) -> Self:
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

    def arrow_columns(self) -> Columns:
        """Return the columns with Arrow's types, in text."""
        return parse_ddl(ddl(self.columns)).columns

    def to_row(self) -> dict[str, list[list[str]]]:
        """Return what the driver log keeps."""
        return {"key": [list(column) for column in self.key], "value": [list(column) for column in self.value]}

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """Read what `to_row` returned."""
        return cls(*(tuple((name, kind) for name, kind in row[part]) for part in ("key", "value")))

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


class State:
    """Declare the keyed state of an output: what the batches before have left for each key.

    The output's function gets one more DataFrame, `state`, and returns two: its result, and the changed state.
    """

    def __init__(
        self,
        key: str,
        value: str,
        *,
        keys: Callable[..., Any] | None = None,
        ttl: str | timedelta | None = None,
        initial: Callable[..., Any] | None = None,
        on_failure: OnStateFailure = "halt",
        buckets: int = DEFAULT_BUCKETS,
        version: int = 1,
        migrate: Callable[..., Any] | None = None,
    ) -> None:
        """Declare a state.

        Args:
            key: the columns of the key, as `"user STRING"`.
            value: the columns of the value, as `"n BIGINT, seen TIMESTAMP"`. A column `expires_at TIMESTAMP` is the
                time at which a key expires, null for never.
            keys: a function of the inputs' DataFrames that returns one with the key's columns: the keys whose state the
                batch needs. Default: the key's columns of each input that has them all.
            ttl: how long after the batch time of its last change a key expires. Default: it does not.
            initial: a function of the Spark session that returns the state before the first batch.
            on_failure: what a quarantined batch means for the batches after it: "halt", they wait until it is replayed
                or discarded; "skip", they go on from the state before it.
            buckets: number of parts in which the state is stored; fixed with the first batch.
            version: raise it when `key`, `value` or `buckets` change.
            migrate: a function of the state as it was, with the columns of the version before, that returns the state
                in the columns of this one.

        Raises:
            DeclarationError: a value can't work; the message names it, and says how to fix it.
        """
        try:
            self.schema = StateSchema.parse(key=key, value=value)
        except ValueError as error:
            raise DeclarationError(f"State(key={key!r}, value={value!r}): {error}") from error
        self.keys = keys
        self.ttl = None if ttl is None else _ttl(ttl)
        self.initial = initial
        if on_failure not in get_args(OnStateFailure):
            raise DeclarationError(
                f"state on_failure={on_failure!r} must be one of {', '.join(get_args(OnStateFailure))}"
            )
        self.on_failure: OnStateFailure = on_failure
        if not 1 <= buckets <= _MOST_BUCKETS:
            raise DeclarationError(f"state buckets={buckets} must be from 1 to {_MOST_BUCKETS}")
        self.buckets = buckets
        if version < 1:
            raise DeclarationError(f"state version={version} must be at least 1")
        self.version = version
        if migrate is not None and version == 1:
            raise DeclarationError("state migrate=: there is nothing before version 1: raise version, or leave it out")
        self.migrate = migrate

    def declaration(self) -> dict[str, Any]:
        """Return what `forebay apply` writes."""
        return {
            **self.schema.to_row(),
            "ttl_ms": None if self.ttl is None else round(self.ttl / timedelta(milliseconds=1)),
            "on_failure": self.on_failure,
            "buckets": self.buckets,
            "version": self.version,
        }

    def __repr__(self) -> str:
        return f"State({ddl(self.schema.key)!r}, {ddl(self.schema.value)!r})"


def _ttl(value: str | timedelta) -> timedelta:
    try:
        ttl = value if isinstance(value, timedelta) else timedelta(seconds=parse_duration(value))
    except ValueError as error:
        raise DeclarationError(f"state ttl={value!r}: {error}") from error
    if ttl <= timedelta(0) or ttl % timedelta(milliseconds=1):
        raise DeclarationError(f"state ttl={value!r} must be longer than 0, in whole milliseconds")
    return ttl

"""Declares the keyed state of an output: the types of its key and value, when keys expire, and what a failure means.

Owns these checks, which need neither Spark nor the driver log. It computes and stores nothing
(``orchestration.state``). It is what `updateStateByKey` and `mapWithState` kept (docs/how-to/from-dstreams.md#state).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from orchestration.declarations.declaration_error import DeclarationError
from orchestration.state.state_schema import StateSchema, ddl
from receiver_runtime.sources.fields.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

OnStateFailure = Literal["halt", "skip"]
DEFAULT_BUCKETS = 16
_MOST_BUCKETS = 4096


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
        self.on_failure: OnStateFailure = checked_failure(on_failure, "state ")
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


def checked_failure(on_failure: OnStateFailure, of: str = "") -> OnStateFailure:
    """Return the value if it is one; `of` begins the message. Raises DeclarationError."""
    if on_failure not in get_args(OnStateFailure):
        raise DeclarationError(f"{of}on_failure={on_failure!r} must be one of {', '.join(get_args(OnStateFailure))}")
    return on_failure


def _ttl(value: str | timedelta) -> timedelta:
    try:
        ttl = value if isinstance(value, timedelta) else timedelta(seconds=parse_duration(value))
    except ValueError as error:
        raise DeclarationError(f"state ttl={value!r}: {error}") from error
    if ttl <= timedelta(0) or ttl % timedelta(milliseconds=1):
        raise DeclarationError(f"state ttl={value!r} must be longer than 0, in whole milliseconds")
    return ttl

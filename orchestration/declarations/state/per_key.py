"""Makes an output's function of a Python function that sees one key at a time, as DStreams' functions did.

`update_state_by_key` is `updateStateByKey`, and `map_with_state` is `mapWithState`. Spark calls the function in its
workers, each key once a batch; a function that needs no loop over keys is faster with DataFrames.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Protocol

from orchestration.state.state_schema import IS_EXPIRED, ddl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from orchestration.declarations.state.declared import State

Row = dict[str, Any]


class KeyState:
    """Hold the state of one key while a function of `map_with_state` sees it (`State` of Spark Streaming)."""

    def __init__(self, value: Row | None, *, is_timing_out: bool) -> None:
        self._value = value
        self.is_timing_out = is_timing_out
        self.is_changed = False

    @property
    def exists(self) -> bool:
        """Return whether the key has a state."""
        return self._value is not None

    def get(self) -> Row | None:
        """Return the value's columns; None: the key has no state."""
        return None if self._value is None else dict(self._value)

    def update(self, **value: Any) -> None:  # noqa: ANN401  any column's type
        """Replace the value. Raises ValueError when the key is timing out, as Spark does."""
        if self.is_timing_out:
            raise ValueError("the state of a key that is timing out can't be updated: it is removed after this call")
        self._value = value
        self.is_changed = True

    def remove(self) -> None:
        """Remove the key's state. Raises ValueError when the key is timing out, which removes it anyway."""
        if self.is_timing_out:
            raise ValueError("the state of a key that is timing out can't be removed: it is after this call")
        self._value = None
        self.is_changed = True


class _OneKey(Protocol):
    """Compute one key: its rows of the batch and its state, to the result's rows; `state` has what is left."""

    def __call__(self, key: Row, rows: list[Row], state: KeyState) -> Iterable[Row]: ...


class PerKey:
    """Be an output's function, with the parameters `records` and `state`; made by the functions below."""

    def __init__(
        self,
        one_key: _OneKey,
        function: Callable[..., Any],
        result: str | None,
        prepare: Callable[[DataFrame], DataFrame] | None,
    ) -> None:
        """Take what computes a key, and the columns of the result (None: key and value)."""
        #: What computes a key.
        self.one_key = one_key
        self._result = result
        #: Makes the records, with the key's columns, of the batch's input; None: the input has them.
        self.prepare = prepare
        self._state: State | None = None
        self._cached: DataFrame | None = None
        self.__name__ = getattr(function, "__name__", "per_key")
        self.__doc__ = inspect.getdoc(function)

    def bind(self, state: State) -> None:
        """Take the declared state; the output that is made of this function calls it."""
        self._state = state

    def __call__(self, records: DataFrame, state: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Return the result and the changed state."""
        from pyspark.sql import functions as F  # noqa: N812, PLC0415  the light parts load no Spark
        from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415  the same
        from pyspark.sql.types import StructField, StructType  # noqa: PLC0415  the same

        from orchestration.state.matched_columns import matched_columns  # noqa: PLC0415  loads pyspark

        if self._state is None:
            raise ValueError(f"{self.__name__} sees one key at a time: declare its output with state=State(…)")
        schema = self._state.schema
        change: Any = StructType.fromDDL(ddl(schema.columns))
        result: Any = change if self._result is None else StructType.fromDDL(self._result)
        both = StructType([StructField("result", result), StructField("change", change)])
        keys = _Keys(
            self.one_key,
            tuple(schema.key_names),
            tuple(name for name, _ in schema.value),
            to_arrow_schema(both, timezone="UTC"),
        )
        prepared = records if self.prepare is None else self.prepare(records)
        # Spark puts an INT and an equal BIGINT into different tasks, and would call a key once without its state.
        keyed = matched_columns(prepared, schema.key, "the records", exactly=False)
        grouped = prepared.withColumns(dict(zip(schema.key_names, keyed, strict=True))).groupBy(*schema.key_names)

        # Spark counts the parameters of a function, and would count a method's `self`.
        def one_key(records: pa.Table, state: pa.Table) -> pa.Table:
            return keys.compute(records, state)

        computed = grouped.cogroup(state.groupBy(*schema.key_names)).applyInArrow(one_key, both)
        # One call a key, although two frames are made of it.
        self._cached = computed = computed.persist()
        return (
            computed.where(F.col("result").isNotNull()).select("result.*"),
            computed.where(F.col("change").isNotNull()).select("change.*"),
        )

    def release(self) -> None:
        """Forget what the last call has cached in Spark; called when the output is written, or has failed."""
        if self._cached is not None:
            self._cached.unpersist()
            self._cached = None


class _Keys:
    """Call the function with one key's rows; a class, so that Spark's workers get no more than these fields."""

    def __init__(self, one_key: _OneKey, key: tuple[str, ...], value: tuple[str, ...], schema: pa.Schema) -> None:
        self._one_key = one_key
        self._key = key
        self._value = value
        self._schema = schema

    def compute(self, records: pa.Table, state: pa.Table) -> pa.Table:
        """Return the rows of the result and of the changed state, in one table."""
        import pyarrow as pa  # noqa: PLC0415  only workers need it

        rows: list[Row] = records.to_pylist()
        before: Row | None = next(iter(state.to_pylist()), None)
        first = rows[0] if rows else before
        assert first is not None
        key = {name: first[name] for name in self._key}
        found = None if before is None else {name: before[name] for name in self._value}
        is_expired = before is not None and bool(before[IS_EXPIRED])
        held = KeyState(found, is_timing_out=is_expired and not rows)
        made: list[Row] = [{"result": dict(row), "change": None} for row in self._one_key(key, rows, held)]
        if held.is_changed or (is_expired and rows):
            # An expired key that occurs begins again, with the value that it has.
            made.append({"result": None, "change": {**key, **self._value_of(held)}})
        return pa.Table.from_pylist(made, schema=self._schema)

    def _value_of(self, held: KeyState) -> Row:
        value = held.get()
        if value is None:
            return dict.fromkeys(self._value)
        if unknown := sorted(value.keys() - set(self._value)):
            raise ValueError(f"the state has no column {unknown[0]!r}: it has {', '.join(self._value)}")
        return {name: value.get(name) for name in self._value}


def update_state_by_key(
    update: Callable[[list[Row], Row | None], Row | None],
    *,
    prepare: Callable[[DataFrame], DataFrame] | None = None,
) -> PerKey:
    """Make an output's function of `update`, which returns a key's new state; the result has each key's new state.

    Args:
        update: called with the batch's rows of one key, and the value's columns, None if the key has no state. None as
            the result removes the key. An expired key without rows is removed without a call.
        prepare: makes the records, with the key's columns, of the batch's input. Default: the input has them.
    """
    return PerKey(_Update(update), update, None, prepare)


class _Update:
    def __init__(self, update: Callable[[list[Row], Row | None], Row | None]) -> None:
        self._update = update

    def __call__(self, key: Row, rows: list[Row], state: KeyState) -> Iterator[Row]:
        if state.is_timing_out:
            return
        value = self._update(rows, state.get())
        if value is None:
            state.remove()
        else:
            state.update(**value)
            yield {**key, **value}


def map_with_state(
    function: Callable[[Row, Row | None, KeyState], Row | None],
    *,
    result: str,
    prepare: Callable[[DataFrame], DataFrame] | None = None,
) -> PerKey:
    """Make an output's function of `function`, which maps each record, and reads and changes its key's state.

    Args:
        function: called with the key, one row and the key's state; returns a row of the result, or None for no row. A
            key that is timing out is given once, with None for the row.
        result: the columns of the result, as `"user STRING, total BIGINT"`.
        prepare: makes the records, with the key's columns, of the batch's input. Default: the input has them.
    """
    return PerKey(_Mapped(function), function, result, prepare)


class _Mapped:
    def __init__(self, function: Callable[[Row, Row | None, KeyState], Row | None]) -> None:
        self._function = function

    def __call__(self, key: Row, rows: list[Row], state: KeyState) -> Iterator[Row]:
        for row in [None] if state.is_timing_out else rows:
            mapped = self._function(key, row, state)
            if mapped is not None:
                yield mapped

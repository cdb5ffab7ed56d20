"""Keeps an output's state in memory, for `forebay.testing`: what a batch is given, and what its changes make of it.

The rules are those of a batch (docs/how-to/state.md), on a few rows. It reads and writes no store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from orchestration.batches.stateful.state_function import checked_pair, keys_of
from orchestration.declarations.sink import SinkError
from orchestration.state.state_schema import EXPIRES_AT, IS_EXPIRED, ddl
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.sources.records.ddl import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from orchestration.declarations.pipeline import Output

#: In a table of a state, beside its columns: when its `ttl` lets a key expire.
TTL_COLUMN = "_expires_at"


class TestedState:
    """Hold the state of one output as rows by key."""

    __test__ = False

    def __init__(self, output: Output, rows: Sequence[Mapping[str, Any]] | pa.Table) -> None:
        """Take the state before the batch. Raises ValueError for a row that is none of this state."""
        assert output.state is not None
        self._output = output
        self._state = output.state
        self._schema = arrow_schema(self._state.schema.arrow_columns())
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        given: Sequence[Mapping[str, Any]] = rows.to_pylist() if isinstance(rows, pa.Table) else rows
        for row in given:
            if unknown := sorted(row.keys() - {*self._schema.names, TTL_COLUMN}):
                raise ValueError(f"the state of output {output.name!r} has no column {unknown[0]!r}")
            self._rows[self._key(row)] = dict(row)

    def _key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in self._state.schema.key_names)

    def _is_expired(self, row: Mapping[str, Any], batch_time: datetime) -> bool:
        times = [row.get(name) for name in (EXPIRES_AT, TTL_COLUMN)]
        return any(time is not None and time <= batch_time for time in times)

    def before(self, session: SparkSession, inputs: Sequence[DataFrame], batch_time: datetime) -> DataFrame:
        """Return what the output's function is given."""
        schema = self._state.schema
        keys = keys_of(self._output, inputs).selectExpr(
            *(f"CAST({quoted(name)} AS {kind}) AS {quoted(name)}" for name, kind in schema.key)
        )
        occurring = {self._key(row) for row in keys.distinct().toArrow().to_pylist()}
        given = [
            {**row, IS_EXPIRED: self._is_expired(row, batch_time)}
            for key, row in self._rows.items()
            if key in occurring or self._is_expired(row, batch_time)
        ]
        table = pa.Table.from_pylist(given, schema=self._schema.append(pa.field(IS_EXPIRED, pa.bool_())))
        return session.createDataFrame(table, f"{ddl(schema.columns)}, {IS_EXPIRED} BOOLEAN")

    def after(self, returned: object, batch_time: datetime) -> DataFrame:
        """Apply the changes that the function returned, and return its result. Raises SinkError."""
        where = f"output {self._output.name!r} of pipeline {self._output.pipeline.name!r}"
        result, changes = checked_pair(returned, where)
        if sorted(changes.columns) != sorted(self._schema.names):
            raise SinkError(
                f"{where}: its changed state has the columns {', '.join(changes.columns)}: it must have "
                f"{', '.join(self._schema.names)}"
            )
        table = changes.select(*self._schema.names).toArrow().cast(self._schema)
        for key in [key for key, row in self._rows.items() if self._is_expired(row, batch_time)]:
            del self._rows[key]
        seen: set[tuple[Any, ...]] = set()
        for row in table.to_pylist():
            key = self._key(row)
            if key in seen:
                raise SinkError(f"{where}: its changed state has the key {key} twice: return one row for each key")
            seen.add(key)
            if all(row[name] is None for name, _ in self._state.schema.value):
                self._rows.pop(key, None)
            else:
                self._rows[key] = {**row, TTL_COLUMN: self._state.ttl and batch_time + self._state.ttl}
        return result

    def table(self) -> pa.Table:
        """Return the state as it is now; `states=` of the next batch takes it."""
        schema = self._schema
        if self._state.ttl is not None:
            schema = schema.append(pa.field(TTL_COLUMN, pa.timestamp("us", tz="UTC")))
        return pa.Table.from_pylist(list(self._rows.values()), schema=schema)

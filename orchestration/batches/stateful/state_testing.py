"""Keeps an output's state in memory, for `forebay.testing`: what a batch is given, and what its changes make of it.

The rules are those of a batch (docs/how-to/state.md), on a few rows. It reads and writes no store.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from orchestration.batches.stateful.watermark import EventProgress
from orchestration.declarations.sink import SinkError
from orchestration.state.state_schema import EXPIRES_AT, IS_EXPIRED, ddl
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.sources.records.ddl import quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from orchestration.batches.stateful.event_batch import EventBatch
    from orchestration.declarations.pipeline import Output
    from orchestration.state.state_schema import StateSchema

# Where a table of a state keeps the watermark, and how far each source is.
_PROGRESS = b"forebay.progress"
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
        self._given = rows
        self._event: EventBatch | None = None
        #: How far the event time was, of an output by event time.
        self.progress = EventProgress()
        if isinstance(rows, pa.Table) and (stored := (rows.schema.metadata or {}).get(_PROGRESS)) is not None:
            watermark, sources = json.loads(stored)
            self.progress = EventProgress.of_rows(watermark and datetime.fromisoformat(watermark), sources)
        if output.event is None:
            self._begin(output.state.schema)

    def _begin(self, schema: StateSchema) -> None:
        self.schema = schema
        self._columns = arrow_schema(schema.arrow_columns())
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        rows = self._given
        given: Sequence[Mapping[str, Any]] = rows.to_pylist() if isinstance(rows, pa.Table) else rows
        for row in given:
            if unknown := sorted(row.keys() - {*self._columns.names, TTL_COLUMN}):
                raise ValueError(f"the state of output {self._output.name!r} has no column {unknown[0]!r}")
            self._rows[self._key(row)] = dict(row)

    def follow(self, event: EventBatch) -> None:
        """Take the columns and the watermark of a batch by event time."""
        self._begin(event.schema)
        self.progress = event.progress
        self._event = event

    def release(self) -> None:
        """Let go of what the batch has cached, once its result is there."""
        if self._event is not None:
            self._event.release()

    def _key(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in self.schema.key_names)

    def _group(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in self.schema.group_names)

    def _is_expired(self, row: Mapping[str, Any], clock: datetime) -> bool:
        times = [row.get(name) for name in (EXPIRES_AT, TTL_COLUMN)]
        return any(time is not None and time <= clock for time in times)

    def before(self, session: SparkSession, keys: DataFrame | None, clock: datetime) -> DataFrame:
        """Return what the output's function is given; `keys`: as of ``StateRun.read``."""
        occurring = {self._group(row) for row in self._rows.values() if keys is None or self._is_expired(row, clock)}
        if self.schema.grouped_by is None and keys is not None:
            occurring = set()
        if keys is not None:
            cast = keys.selectExpr(
                *(f"CAST({quoted(name)} AS {kind}) AS {quoted(name)}" for name, kind in self.schema.group)
            )
            occurring |= {self._group(row) for row in cast.distinct().toArrow().to_pylist()}
        given = [
            {**row, IS_EXPIRED: self._is_expired(row, clock)}
            for row in self._rows.values()
            if self._group(row) in occurring or self._is_expired(row, clock)
        ]
        table = pa.Table.from_pylist(given, schema=self._columns.append(pa.field(IS_EXPIRED, pa.bool_())))
        return session.createDataFrame(table, f"{ddl(self.schema.columns)}, {IS_EXPIRED} BOOLEAN")

    def after(self, changes: DataFrame, clock: datetime) -> None:
        """Apply the changes that a batch has made. Raises SinkError."""
        where = f"output {self._output.name!r} of pipeline {self._output.pipeline.name!r}"
        if sorted(changes.columns) != sorted(self._columns.names):
            raise SinkError(
                f"{where}: its changed state has the columns {', '.join(changes.columns)}: it must have "
                f"{', '.join(self._columns.names)}"
            )
        table = changes.select(*self._columns.names).toArrow().cast(self._columns)
        for key in [key for key, row in self._rows.items() if self._is_expired(row, clock)]:
            del self._rows[key]
        seen: set[tuple[Any, ...]] = set()
        for row in table.to_pylist():
            key = self._key(row)
            if key in seen:
                raise SinkError(f"{where}: its changed state has the key {key} twice: return one row for each key")
            seen.add(key)
            if all(row[name] is None for name, _ in self.schema.value):
                self._rows.pop(key, None)
            else:
                self._rows[key] = {**row, TTL_COLUMN: self._state.ttl and clock + self._state.ttl}

    def table(self) -> pa.Table:
        """Return the state as it is now; `states=` of the next batch takes it."""
        schema = self._columns
        if self._state.ttl is not None:
            schema = schema.append(pa.field(TTL_COLUMN, pa.timestamp("us", tz="UTC")))
        table = pa.Table.from_pylist(list(self._rows.values()), schema=schema)
        if self._output.event is None:
            return table
        watermark = self.progress.watermark
        stored = json.dumps([watermark and watermark.isoformat(), self.progress.rows()])
        return table.replace_schema_metadata({_PROGRESS: stored.encode()})

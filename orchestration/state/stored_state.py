"""Reads a stored state without Spark, bucket by bucket: for people who look at it. It writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from orchestration.state.state_frame import by_bucket
from orchestration.state.state_rows import CHANGED_AT, CHANGED_BY, all_rows, frame_schema
from orchestration.state.state_schema import IS_EXPIRED
from orchestration.state.state_segments import read_frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from orchestration.state.state_frame import StateFrame
    from orchestration.state.state_schema import StateSchema
    from orchestration.state.state_segments import StatePlace


_MORE = (CHANGED_AT, CHANGED_BY)


@dataclass(frozen=True, slots=True)
class StoredRow:
    """Hold the row of one key, and the version that changed it last: the time of its batch, and its attempt."""

    row: dict[str, Any]
    changed_at: datetime
    changed_by: int


@dataclass(frozen=True, slots=True)
class StoredState:
    """Hold which frames make up one version of a state, and where they are."""

    schema: StateSchema
    chain: Sequence[Sequence[StateFrame]]
    place: StatePlace
    batch_time: datetime

    def given_schema(self) -> pa.Schema:
        """Return the columns of `tables`."""
        columns = frame_schema(self.schema)
        names, more = ([columns.field(name) for name in chosen] for chosen in (self.schema.names, _MORE))
        return pa.schema([*names, pa.field(IS_EXPIRED, pa.bool_()), *more])

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows of each bucket: the state's columns, whether the key has expired, and what changed it last."""
        store, columns = self.place.open(), frame_schema(self.schema)
        for frames in by_bucket(self.chain).values():
            tables = [read_frame(store, frame, columns) for frame in frames]
            yield from all_rows(self.schema, tables, self.batch_time, more=_MORE)

    def row_of(self, key: Sequence[str]) -> StoredRow | None:
        """Return the row of one key, whose columns are given as text. Raises ValueError for a text of another type."""
        wanted = self._parsed(key)
        for table in self.tables():
            found: Any = None
            for name, value in zip(self.schema.key_names, wanted, strict=True):
                is_equal = pc.equal(table[name], value)
                found = is_equal if found is None else pc.and_(found, is_equal)
            rows: list[dict[str, Any]] = table.filter(found).to_pylist()
            if rows:
                [row] = rows
                return StoredRow(row, row.pop(CHANGED_AT), row.pop(CHANGED_BY))
        return None

    def _parsed(self, key: Sequence[str]) -> list[pa.Scalar]:
        names = self.schema.key_names
        if len(key) != len(names):
            raise ValueError(f"the key has {len(names)} column(s), {', '.join(names)}, and {len(key)} are given")
        fields = frame_schema(self.schema)
        parsed = []
        for name, text in zip(names, key, strict=True):
            kind = fields.field(name).type
            try:
                parsed.append(pa.scalar(text).cast(kind))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise ValueError(f"key {name}={text!r} is no {kind}: {error}") from error
        return parsed

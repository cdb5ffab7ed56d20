"""Plans a join of two inputs by key and event time: each pair once, in the batch of its later record.

The state keeps each record of both sides until the watermark says that no further record can make a pair with it. A
batch reads the keys that have a new record, of both sides. Loads pyspark.
"""

from __future__ import annotations

from datetime import timedelta
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  as everyone writes it

from orchestration.batches.stateful.event_records import (
    AT,
    IDENTITY,
    IS_NEW,
    RECORD,
    EventPlan,
    is_up_to,
    of_micros,
)
from orchestration.batches.stateful.event_sessions import keys_of_records, with_keys
from orchestration.declarations.sink import SinkError
from orchestration.state.state_schema import EXPIRES_AT, StateSchema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from orchestration.declarations.state.event_time import EventJoin

_SIDES = ("left", "right")
_SIDE = "side"
_IS_MATCHED = "is_matched"


class PairPlan(EventPlan):
    """Plan one batch of a join.

    Args:
        join: as declared.
        sides: the records of both inputs.
        types: the types of a record of each.
        names: of the columns of a pair, as ``names_of`` returns them.
        watermark: after the batch, in microseconds.
    """

    def __init__(
        self,
        join: EventJoin,
        sides: tuple[DataFrame, DataFrame],
        types: tuple[str, str],
        names: tuple[str, str],
        watermark: int | None,
    ) -> None:
        super().__init__()
        keys = [keys_of_records(side, join.on, "a join's key") for side in sides]
        for (name, left), (_, right), column in zip(*keys, join.on, strict=True):
            if left != right:
                raise SinkError(
                    f"{column!r} is {left} in {names[0]!r} and {right} in {names[1]!r}: a join needs one type ({name})"
                )
        self._key = keys[0]
        self._columns = [name for name, _ in self._key]
        self._keeps_left = join.how == "left"
        left, right = (with_keys(side, join.on) for side in sides)
        # A null equals nothing: only a record of the first input that comes alone is kept with one.
        has_key = reduce(and_, (F.col(name).isNotNull() for name in self._columns))
        self._sides = (left if self._keeps_left else left.where(has_key), right.where(has_key))
        self._types = types
        self._names = names
        self._least, self._most = (each // timedelta(microseconds=1) for each in (join.least, join.most))
        self._after = watermark
        self.records = self._sides[0]

    def schema(self) -> StateSchema:
        """Return the columns: a group is a key of the join."""
        value = (
            (EXPIRES_AT, "TIMESTAMP"),
            (AT, "BIGINT"),
            (_IS_MATCHED, "BOOLEAN"),
            *zip(_SIDES, self._types, strict=True),
        )
        return StateSchema((*self._key, (_SIDE, "INT"), *IDENTITY), value, grouped_by=len(self._key))

    def groups(self) -> DataFrame | None:
        """Return the keys that have a new record on either side."""
        left, right = self._sides
        return left.select(*self._columns).unionAll(right.select(*self._columns))

    def take(self, state: DataFrame) -> None:
        """Take the state, and find the pairs that have a new record."""
        super().take(state)
        left, right = (self._side(number) for number in (0, 1))
        on = [F.col(f"l.{name}") == F.col(f"r.{name}") for name in self._columns]
        time = F.col(f"r.{AT}") - F.col(f"l.{AT}")
        in_range = time.between(F.lit(self._least), F.lit(self._most))
        has_new = F.col(f"l.{IS_NEW}") | F.col(f"r.{IS_NEW}")
        self._left = left
        pairs = left.alias("l").join(right.alias("r"), [*on, in_range, has_new])
        identity = [name for name, _ in IDENTITY]
        self._pairs = pairs.select(
            *(F.col(f"{alias}.{RECORD}").alias(name) for alias, name in zip("lr", _SIDES, strict=True)),
            *(F.col(f"l.{name}").alias(f"m_{name}") for name in identity if self._keeps_left),
        )
        if self._keeps_left:
            self._pairs = self._cache(self._pairs)

    def _side(self, number: int) -> DataFrame:
        """Return the old and new records of one side."""
        common = [*self._columns, *(name for name, _ in IDENTITY), AT]
        old = self._state.where(F.col(_SIDE) == number).select(
            *common, F.col(_SIDES[number]).alias(RECORD), _IS_MATCHED, F.expr("false").alias(IS_NEW)
        )
        new = self._sides[number].select(
            *common, RECORD, F.expr("false").alias(_IS_MATCHED), F.expr("true").alias(IS_NEW)
        )
        return old.unionByName(new)

    def _expiry(self, number: int) -> Column:
        """Return when the watermark lets a record go: there can be no further pair with it."""
        return F.col(AT) + F.lit((self._most if number == 0 else -self._least) + 1)

    def given(self) -> Sequence[DataFrame]:
        """Return the pairs, each record as a column with its fields."""
        pairs = self._pairs.select(*(F.col(side).alias(name) for side, name in zip(_SIDES, self._names, strict=True)))
        if not self._keeps_left:
            return [pairs]
        alone = self._left_with_matches().where(is_up_to(self._expiry(0), self._after) & ~F.col(_IS_MATCHED))
        second = pairs.schema[self._names[1]].dataType
        return [
            pairs.unionByName(
                alone.select(F.col(RECORD).alias(self._names[0]), F.lit(None).cast(second).alias(self._names[1]))
            )
        ]

    def _left_with_matches(self) -> DataFrame:
        """Return the first input's records, each with whether it has got a pair; `was_matched`: before this batch."""
        identity = [name for name, _ in IDENTITY]
        matched = self._pairs.select(*(f"m_{name}" for name in identity)).distinct()
        same = [F.col(name) == F.col(f"m_{name}") for name in identity]
        joined = self._left.withColumnRenamed(_IS_MATCHED, "was_matched").join(matched, same, "left")
        is_matched = F.col("was_matched") | F.col(f"m_{identity[0]}").isNotNull()
        return joined.withColumn(_IS_MATCHED, is_matched).drop(*(f"m_{name}" for name in identity))

    def changes(self) -> DataFrame:
        """Return the new records that may get a further pair, and earlier ones that have got their first."""
        left = self._left if not self._keeps_left else self._left_with_matches()
        changed = F.col(IS_NEW)
        if self._keeps_left:
            changed = changed | (F.col(_IS_MATCHED) & ~F.col("was_matched"))
        rows = [self._kept(left.where(changed), 0), self._kept(self._side(1).where(F.col(IS_NEW)), 1)]
        return rows[0].unionByName(rows[1])

    def _kept(self, rows: DataFrame, number: int) -> DataFrame:
        expiry = self._expiry(number)
        records = [
            (F.col(RECORD) if at == number else F.lit(None).cast(kind)).alias(name)
            for at, (name, kind) in enumerate(zip(_SIDES, self._types, strict=True))
        ]
        return rows.where(~is_up_to(expiry, self._after)).select(
            *self._columns,
            F.lit(number).alias(_SIDE),
            *(name for name, _ in IDENTITY),
            of_micros(expiry).alias(EXPIRES_AT),
            AT,
            _IS_MATCHED,
            *records,
        )

    def replaced(self) -> DataFrame | None:
        """Return None: a pair is in one result alone."""
        return None


def names_of(streams: Sequence[str]) -> list[str]:
    """Return a name for each of the inputs by event time: its stream's, and another one for the same stream again."""
    return [name if name not in streams[:place] else f"{name}_{place + 1}" for place, name in enumerate(streams)]

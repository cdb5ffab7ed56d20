"""Treats a whole state that Spark computes, such as an initial or a migrated one, as one that batches have left.

Only the first version that is made of it needs this: that one writes all of it.
"""

from __future__ import annotations

from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F  # noqa: N812  as Spark's documentation names it
from pyspark.sql.types import StructType

from orchestration.state.state_schema import EXPIRES_AT, IS_EXPIRED

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from pyspark.sql import Column, DataFrame

    from orchestration.state.state_schema import StateSchema


def widened(whole: DataFrame, schema: StateSchema) -> DataFrame:
    """Return a state in columns of the same names that hold more: further fields of a record are null in it."""
    return whole.select(*(_widened(whole, name, kind) for name, kind in schema.columns))


def _widened(whole: DataFrame, name: str, kind: str) -> Column:
    declared: Any = StructType.fromDDL(f"c {kind}")
    had, wanted = whole.schema[name].dataType, declared["c"].dataType
    column = F.col(f"`{name}`")
    if not isinstance(had, StructType) or not isinstance(wanted, StructType):
        return column.cast(wanted).alias(name)
    fields = [
        (column.getField(field.name) if field.name in had.names else F.lit(None)).cast(field.dataType).alias(field.name)
        for field in wanted
    ]
    return F.when(column.isNotNull(), F.struct(*fields)).alias(name)


def of_keys(whole: DataFrame, schema: StateSchema, keys: DataFrame | None, batch_time: datetime) -> DataFrame:
    """Return the rows of the keys, or groups, and of those that expire, with `is_expired`; without `keys`, all."""
    rows = whole.select(*schema.names).withColumn(IS_EXPIRED, _is_expired(schema, batch_time))
    if keys is None:
        return rows
    names = schema.group_names
    expired = rows.where(F.col(IS_EXPIRED)).select(*names)
    wanted = keys.select(*names).unionAll(expired).distinct()
    return rows.alias("state").join(wanted.alias("keys"), _equal(names, "state", "keys"), "left_semi")


def changed(whole: DataFrame, changes: DataFrame, schema: StateSchema, batch_time: datetime) -> DataFrame:
    """Return the whole state with the changes: their rows in place of those of the same keys and of expired ones."""
    rest = (
        whole.select(*schema.names)
        .where(~_is_expired(schema, batch_time))
        .alias("state")
        .join(changes.alias("changes"), _equal(schema.key_names, "state", "changes"), "left_anti")
    )
    return rest.unionByName(changes.select(*schema.names))


def _is_expired(schema: StateSchema, batch_time: datetime) -> Column:
    never = F.expr("false")
    return F.coalesce(F.col(EXPIRES_AT) <= F.lit(batch_time), never) if schema.has_expires_at else never


def _equal(names: Sequence[str], left: str, right: str) -> Column:
    # A null is a key as any other.
    return reduce(and_, (F.col(f"{left}.`{name}`").eqNullSafe(F.col(f"{right}.`{name}`")) for name in names))

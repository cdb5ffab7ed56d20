"""Read what a table has, and who made it: its columns, what uses them, its unique indexes and how to drop each.

All SQL here only reads the target's catalog.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from orchestration.sinks.batch_column import BATCH_TIME
from orchestration.sinks.postgres.postgres_columns import Column, Fit, Table, TableColumn, fitted
from orchestration.sinks.postgres.postgres_statements import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestration.sinks.column_changes import ColumnPolicy

#: Comment on the column of the batch time, in a table that the sink made.
MADE = "time of the row's batch, in a table made by Forebay"
#: Comment on the primary key of a table that the sink made.
MADE_BY_MERGE = "made by Forebay for mode='merge'"
#: Bytes of a table, with its indexes, that is written again at a widened column: its readers wait for a few seconds.
MOST_REWRITTEN = 256 * 1024 * 1024

# Locks: none.
_TABLE = """
SELECT coalesce(col_description(c.oid, (SELECT attnum FROM pg_attribute WHERE attrelid = c.oid
AND attname = %(batch_time)s AND NOT attisdropped)) = %(made)s, false)
OR EXISTS (SELECT FROM pg_constraint o WHERE o.conrelid = c.oid AND o.contype = 'p'
AND obj_description(o.oid, 'pg_constraint') = %(made_by_merge)s),
(SELECT bool_and(pg_has_role(r.relowner, 'USAGE')) FROM pg_class r WHERE r.oid IN
(SELECT c.oid UNION SELECT relid FROM pg_partition_tree(c.oid))), current_user::text
FROM pg_class c WHERE c.oid = to_regclass(%(table)s)
"""
# Views, triggers, policies and publications; generated columns; foreign keys of other tables and of this one.
_USES = """
SELECT a.attname::text, string_agg(DISTINCT found.by, ', ' ORDER BY found.by) FROM (
    SELECT d.refobjsubid AS attnum, pg_describe_object(d.classid, d.objid, d.objsubid) AS by FROM pg_depend d
    WHERE d.refclassid = 'pg_class'::regclass AND d.refobjid = to_regclass(%(table)s) AND d.refobjsubid > 0
    AND (d.classid IN ('pg_rewrite'::regclass, 'pg_trigger'::regclass, 'pg_policy'::regclass,
    'pg_publication_rel'::regclass, 'pg_proc'::regclass)
    OR (d.classid = 'pg_constraint'::regclass AND EXISTS (SELECT FROM pg_constraint WHERE oid = d.objid
    AND contype = 'f'))
    OR (d.classid = 'pg_attrdef'::regclass AND EXISTS (SELECT FROM pg_attrdef WHERE oid = d.objid
    AND adnum <> d.refobjsubid)))
    UNION ALL
    SELECT unnest(p.partattrs::int2[]), 'its partition key' FROM pg_partitioned_table p
    WHERE p.partrelid = to_regclass(%(table)s)
) AS found JOIN pg_attribute a ON a.attrelid = to_regclass(%(table)s) AND a.attnum = found.attnum
GROUP BY 1
"""


def columns_of_table(cursor: Any, schema: str, table: str) -> list[TableColumn]:  # noqa: ANN401  psycopg2 has no types
    """Return the table's columns; none if the table does not exist. Locks: none."""
    cursor.execute(
        "SELECT a.attname, format_type(a.atttypid, a.atttypmod), "
        "CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod) "
        "ELSE format_type(a.atttypid, a.atttypmod) END, t.typcategory::text, "
        "a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '', a.attidentity = 'a' OR a.attgenerated <> '', "
        "(a.attnotnull OR t.typnotnull) AND NOT (a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '') "
        "FROM pg_attribute a "
        "JOIN pg_type t ON t.oid = a.atttypid "
        "WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        (quoted(schema, table),),
    )
    return [TableColumn(*row) for row in cursor.fetchall()]


def fit_of(
    cursor: Any,  # noqa: ANN401
    schema: str,
    table: str,
    columns: Sequence[Column],
    policy: ColumnPolicy | None,
    where: str,
) -> Fit:
    """Return how a result fits the table as it is now, which may be missing. Raises SinkError.

    Locks: at most ACCESS SHARE on the table, to know its size.
    """
    there = columns_of_table(cursor, schema, table)
    if not there:
        return Fit(list(columns))
    name = quoted(schema, table)
    cursor.execute(_TABLE, {"table": name, "batch_time": BATCH_TIME, "made": MADE, "made_by_merge": MADE_BY_MERGE})
    made_here, is_owner, login = cursor.fetchone()
    cursor.execute(_USES, {"table": name})
    found = Table(schema, table, there, made_here, None if is_owner else login, dict(cursor.fetchall()))
    fit = fitted(columns, found, policy, where)
    if not fit.rewrites:
        return fit
    cursor.execute(
        "SELECT sum(pg_total_relation_size(oid)) > %s FROM (SELECT to_regclass(%s)::oid UNION SELECT relid::oid "
        "FROM pg_partition_tree(to_regclass(%s))) AS tree (oid)",
        (MOST_REWRITTEN, name, name),
    )
    [is_large] = cursor.fetchone()
    return fitted(columns, replace(found, rewrites=False), policy, where) if is_large else fit


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """Describe a unique index: `is_filled`: the table fills a column itself; `is_of_merge`: a merging sink made it.

    `drop`: how to drop it, and what is left of a primary key that a merging sink made: NOT NULL. Where a partition has
    it from the table above, that table's is dropped; foreign keys that refer to it go first.
    """

    name: str
    columns: list[str]
    is_filled: bool
    is_of_merge: bool
    drop: str


def unique_indexes(cursor: Any, schema: str, table: str) -> list[UniqueIndex]:  # noqa: ANN401
    """Return the table's unique indexes of columns, without those that are DEFERRABLE or of a part. Locks: none."""
    cursor.execute(
        "SELECT i.relname::text, ARRAY(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = x.indrelid "
        "AND a.attnum = ANY (k.keys) ORDER BY a.attnum), EXISTS (SELECT FROM pg_attribute a WHERE "
        "a.attrelid = x.indrelid AND a.attnum = ANY (k.keys) AND (a.atthasdef OR a.attidentity <> '')), "
        "coalesce(o.is_of_merge, false), "
        "coalesce('first drop what refers to it, the foreign keys ' || (SELECT string_agg(format('%%s of %%s', "
        "f.conname, f.conrelid::regclass), ', ' ORDER BY 1) FROM pg_constraint f WHERE f.conindid = top.oid "
        "AND f.contype = 'f' AND f.conparentid = 0) || '; then ', '') || "
        "CASE WHEN o.oid IS NULL THEN format('DROP INDEX %%I.%%I', tn.nspname, ti.relname) "
        "ELSE format('ALTER TABLE %%I.%%I DROP CONSTRAINT %%I', tn.nspname, t.relname, o.conname) "
        "|| CASE WHEN o.is_of_merge THEN (SELECT string_agg(format(', ALTER %%I DROP NOT NULL', a.attname), '') "
        "FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum = ANY (k.keys)) ELSE '' END END "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "JOIN pg_index x ON x.indrelid = c.oid AND x.indisunique AND x.indimmediate AND x.indisvalid "
        "AND x.indpred IS NULL AND x.indexprs IS NULL JOIN pg_class i ON i.oid = x.indexrelid "
        "CROSS JOIN LATERAL (SELECT (x.indkey::int2[])[0:x.indnkeyatts - 1] AS keys) AS k "
        # The index of the topmost table, from which a partition has its own.
        "CROSS JOIN LATERAL (SELECT coalesce(pg_partition_root(i.oid), i.oid) AS oid) AS top "
        "JOIN pg_class ti ON ti.oid = top.oid JOIN pg_index tx ON tx.indexrelid = top.oid "
        "JOIN pg_class t ON t.oid = tx.indrelid JOIN pg_namespace tn ON tn.oid = t.relnamespace "
        # Foreign keys that refer to it name it as their index too.
        "LEFT JOIN LATERAL (SELECT o.oid, o.conname, coalesce(obj_description(o.oid, 'pg_constraint') = %(merge)s, "
        "false) AS is_of_merge FROM pg_constraint o WHERE o.conindid = top.oid AND o.contype IN ('p', 'u')) AS o "
        "ON true "
        "WHERE n.nspname = %(schema)s AND c.relname = %(table)s ORDER BY 1",
        {"schema": schema, "table": table, "merge": MADE_BY_MERGE},
    )
    return [UniqueIndex(*row) for row in cursor.fetchall()]

"""Read a table's unique indexes, and how to drop each. All SQL here only reads the target's catalog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: Comment on the primary key of a table that the sink made.
MADE_BY_MERGE = "made by Forebay for mode='merge'"


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

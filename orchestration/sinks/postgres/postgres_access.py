"""Check whether a sink's Postgres could be written to, without writing: its schema, table, and the login's rights.

All SQL here runs on the target, and changes nothing; this module never touches the driver log.
"""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestration.declarations.sink import SinkError, TargetCheck, TargetMissingError, TargetUnavailableError
from orchestration.sinks.postgres.postgres_catalog import UniqueIndex, columns_of_table, fit_of, unique_indexes
from orchestration.sinks.postgres.postgres_columns import TIME, Column, Fit, TableColumn
from orchestration.sinks.postgres.postgres_commits import Commits
from orchestration.sinks.postgres.postgres_staging import Address, TargetError
from orchestration.sinks.postgres.postgres_statements import COMMITS, Statements
from orchestration.sinks.postgres.postgres_totals import Totals
from receiver_runtime.block_store.secret_url import SecretUrl
from receiver_runtime.sources.fields.secret import Secret, SecretError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_APPLICATION = "forebay validate"
_REFERENCES = ("env:", "file:")
_KINDS = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table",
    "S": "a sequence",
    "c": "a type",
    "i": "an index",
}
_WITHOUT_EQUALITY = frozenset({"json", "xml"})
# Letters of pg_constraint.confdeltype: CASCADE, SET NULL, SET DEFAULT; NO ACTION, RESTRICT.
_CHANGES, _FORBIDS = "cnd", "ar"
# Bits of pg_trigger.tgtype: fires for each row; before it; at DELETE.
_BEFORE_ROW, _AT_DELETE = 1 | 2, 8


@dataclass(frozen=True, slots=True)
class Access:
    """List in sentences what is in an output's way: rights that the login lacks, what the table has, what may come.

    `forbidden`: what refuses rows of later batches, and no batch as a whole. `is_missing`: there is no table.
    `changes`: what the first batch does to the table's columns.
    """

    missing_rights: list[str]
    misfits: list[str]
    warnings: list[str]
    forbidden: list[str] = field(default_factory=list)
    is_missing: bool = False
    changes: str = ""


def check_access(sink: Mapping[str, Any], columns: Sequence[Column] | None = None) -> TargetCheck:
    """Check what `access` finds for a declaration of a `PostgresSink`, and say how to fix it."""
    try:
        found = access(sink, columns)
    except SecretError as error:
        way_out = "Set it where batches run; to check the target from here, set it here too."
        return TargetCheck("warning", f"{sink['table']}: {error}", way_out)
    except (TargetError, TargetUnavailableError) as error:
        return TargetCheck("failed", str(error), "Start the target, or correct the URL.")
    if found.missing_rights:
        way_out = "Grant it to the login of the sink's URL."
        return TargetCheck("failed", "; ".join(found.missing_rights + found.misfits + found.forbidden), way_out)
    if misfits := found.misfits + found.forbidden:
        way_out = "Change the result or the table, or give the output a table of its own."
        return TargetCheck("failed", "; ".join(misfits), way_out)
    if found.warnings:
        way_out = "Take another mode, or drop the constraint, unless your rows keep to it."
        return TargetCheck("warning", "; ".join(found.warnings), way_out)
    then = f"; its next batch {found.changes}" if found.changes else ""
    return TargetCheck("ok", f"{sink['table']}: its Postgres answers, and may be written to{then}")


def needed_change(sink: Mapping[str, Any], before: Mapping[str, Any] | None) -> str | None:
    """Return what must be changed in the table because of the output's new mode, key or table; None: nothing.

    `before`: the sink before, if it had the table. Raises TargetUnavailableError if the target can't be reached now,
    and TargetMissingError if there is no table, and a batch of the sink before may make one that needs a change.
    """
    import psycopg2  # noqa: PLC0415  declaring a sink needs no driver

    may_need = [] if before is None else _may_need(before["key"], sink["mode"], sink["key"])
    try:
        found = access(sink, before=before)
    except (SecretError, TargetError, TargetUnavailableError, psycopg2.Error) as error:
        if not may_need:
            return None
        said = f"the table {sink['table']}: {', and '.join(may_need)}. It can't be looked at: {_first_line(error)}"
        if isinstance(error, SecretError | TargetError):
            return said
        raise TargetUnavailableError(said) from None
    needs = found.missing_rights + found.misfits
    is_kept = not needs and sink.get("on_bad_rows") == "dead_letter"
    effect = "rows are refused" if is_kept else "its batches fail"
    needs += found.forbidden
    if may_need and found.is_missing and not needs:
        raise TargetMissingError(
            f"a batch that runs may still create the table {sink['table']} as it was declared before"
        )
    return f"{effect} until this is changed: {'; '.join(needs)}" if needs else None


def _may_need(key_before: Sequence[str], mode: str, key: Sequence[str]) -> list[str]:
    """Return what a table that can't be looked at may need for a mode and key."""
    rows_repeat = mode == "append" or (mode == "merge" and not {*key} <= {*key_before})
    drop = f"if it has a unique constraint on ({', '.join(key_before)}), drop that"
    add = f"if it has none on ({', '.join(key)}), add that"
    return [*([drop] if key_before and rows_repeat else []), *([add] if key else [])]


def check_writer(sink: Mapping[str, Any], pipeline: str, output: str) -> TargetCheck | None:
    """Return that another output writes to the table of a `PostgresSink`, or, as a warning, that it can't be asked."""
    import psycopg2  # noqa: PLC0415  declaring a sink needs no driver

    schema, _, table = sink["table"].partition(".")
    try:
        with _looking(sink) as cursor:
            return Commits(Statements(schema, table)).other_writer(cursor, pipeline, output)
    except psycopg2.ProgrammingError as error:
        found = f"{schema}.{COMMITS} can't be read: {_first_line(error)}"
        return TargetCheck("failed", found, "Every attempt reads it: let the login of the sink's URL own it.")
    except (SecretError, TargetError, TargetUnavailableError, psycopg2.Error) as error:
        # The last one: it went away meanwhile, or holds its lock.
        return TargetCheck("warning", f"{sink['table']}: {_first_line(error)}", "Batches wait until it answers.")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].rstrip(".")


@contextmanager
def _looking(sink: Mapping[str, Any]) -> Iterator[Any]:
    """Open a cursor on the sink's Postgres that can't write. Raises TargetError and SecretError."""
    url = Secret(sink["url"]).resolve() if sink["url"].startswith(_REFERENCES) else sink["url"]
    password = None if sink["password"] is None else Secret(sink["password"]).resolve()
    with closing(Address(SecretUrl(url), password, _APPLICATION).connect()) as connection:
        connection.set_session(readonly=True, autocommit=True)
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '10s'; SET statement_timeout = '10s'")
            yield cursor


def access(
    sink: Mapping[str, Any], columns: Sequence[Column] | None = None, *, before: Mapping[str, Any] | None = None
) -> Access:
    """Return what would be in the way of an output's batches.

    `sink`: the declaration of a `PostgresSink`; `columns`: the result's. `before`: the sink that has the table until
    now: what was in its way too, is left out. Raises TargetError if there is no connection, and SecretError.
    """
    schema, _, table = sink["table"].partition(".")
    merges, merged = sink["mode"] == "merge", before is not None and before["mode"] == "merge"
    rights = [*(["SELECT", "INSERT", "DELETE"] if before is None else []), *(["UPDATE"] if merges > merged else [])]
    with _looking(sink) as cursor:
        cursor.execute(
            "SELECT n.oid IS NOT NULL, coalesce(has_schema_privilege(n.oid, 'CREATE'), false), ARRAY("
            "SELECT one FROM unnest(%(rights)s::text[]) one WHERE NOT has_table_privilege(c.oid, one)), current_user "
            "FROM (VALUES (1)) AS one "
            "LEFT JOIN pg_namespace n ON n.nspname = %(schema)s "
            "LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = %(table)s",
            {"schema": schema, "table": table, "rights": rights},
        )
        exists, may_create, lacks, login = cursor.fetchone()
        known = [] if before is None else unsupported(cursor, schema, table, merges=merged)
        misfits = [
            f"the table {schema}.{table} has {one}, which PostgresSink does not write"
            for one in unsupported(cursor, schema, table, merges=merges)
            if one not in known
        ]
        there = columns_of_table(cursor, schema, table)
        if merges and there:
            misfits += unmergeable(cursor, schema, table, sink["key"], there)
        fit = Fit([])
        if columns is not None:
            try:
                fit = fit_of(cursor, schema, table, columns, sink.get("columns"), "the result")
            except SinkError as error:
                misfits.append(str(error))
        if sink.get("totals"):
            types = {column.name: column.base for column in there}
            if types or columns is not None:
                types |= {column.name: column.type for column in (*fit.columns, TIME)}
            misfits += Totals(**sink["totals"]).misfits(cursor, schema, table, types)
        unique = unique_indexes(cursor, schema, table)
        referring = _referring(cursor, schema, table, _FORBIDS)
    if not exists:
        return Access([f"there is no schema {schema}"], [], [])
    lacking = []
    if before is None and not may_create:
        lacking.append(f"{login} may not create tables in the schema {schema}, which every attempt does")
    if lacks:
        lacking.append(f"{login} lacks {' and '.join(lacks)} on {schema}.{table}")
    forbidden, warnings = _constraints(sink, unique, () if before is None else before["key"])
    fails = "each batch" if sink["mode"] == "overwrite" else "a replay"
    warnings += [
        f"the foreign key {name} has {fails} fail that deletes a row to which one refers" for name in referring
    ]
    return Access(lacking, misfits, warnings, forbidden, not there, fit.changes.shown())


def _constraints(
    sink: Mapping[str, Any], unique: Sequence[UniqueIndex], key_before: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return what a table's unique indexes forbid to the sink's mode and key, and what they may forbid."""
    table, mode, key = sink["table"], sink["mode"], {*sink["key"]}
    forbidden: list[str] = []
    warnings: list[str] = []
    for index in unique:
        names = ", ".join(index.columns)
        said = f"{index.name} of {table} lets no two batches have a row of the same {names}"
        if key and key <= {*index.columns}:
            # Rows that it would refuse have one key, and are merged.
            continue
        if mode == "overwrite":
            if index.is_of_merge:
                warnings.append(f"{index.name} of {table} lets no two rows of a result have the same {names}")
        elif index.is_of_merge or {*index.columns} == {*key_before}:
            forbidden.append(f"{said}: go back to mode='merge' by {names}, or: {index.drop}")
        elif mode == "append" and not index.is_filled:
            warnings.append(f"{said}: mode='append' refuses the later one")
    return forbidden, warnings


def unmergeable(
    cursor: Any,  # noqa: ANN401  psycopg2 has no types
    schema: str,
    table: str,
    key: Sequence[str],
    columns: Sequence[TableColumn],
) -> list[str]:
    """Return why rows can't be merged into the table by the key. Locks: none."""
    target, names = f"{schema}.{table}", ", ".join(key)
    without = [column for column in columns if column.name in key and column.base in _WITHOUT_EQUALITY]
    if without:
        return [
            f"column {column.name} of {target} is {column.base}, of which Postgres does not know when two are equal, "
            "and is in the key of mode='merge': let it be text or jsonb"
            for column in without
        ]
    missing = [name for name in key if name not in {column.name for column in columns}]
    if missing:
        lacking = f"the table {target} has no column {', '.join(missing)}, which is in the key of mode='merge'"
        return [f"{lacking}: add it, and a unique constraint on ({names})"]
    if set(key) in [set(index.columns) for index in unique_indexes(cursor, schema, table)]:
        return []
    cursor.execute(
        "SELECT format('ALTER TABLE %%I.%%I ADD UNIQUE (%%s)', %(schema)s, %(table)s, "
        "(SELECT string_agg(quote_ident(one), ', ') FROM unnest(%(key)s) one)), "
        # A column of the number 0 is an expression.
        "EXISTS (SELECT FROM pg_partition_tree(to_regclass(format('%%I.%%I', %(schema)s, %(table)s))) "
        "JOIN pg_partitioned_table p ON p.partrelid = relid CROSS JOIN unnest(p.partattrs::int2[]) AS number "
        "LEFT JOIN pg_attribute a ON a.attrelid = relid AND a.attnum = number "
        "WHERE number = 0 OR a.attname <> ALL (%(key)s))",
        {"schema": schema, "table": table, "key": list(key)},
    )
    statement, can_have_none = cursor.fetchone()
    # No primary key: it may have one already, and rows without a key, which stay.
    lacking = f"the table {target} has no unique constraint on its key ({names}), checked at once and of all rows"
    if can_have_none:
        return [f"{lacking}, and can have none: it is partitioned by other columns. Give the output another table"]
    first = "if several rows have one key, first delete all but the newest of them, as in docs/how-to/outputs.md"
    return [f"{lacking}, which merging needs: {statement}; {first}"]


def _referring(cursor: Any, schema: str, table: str, kinds: str) -> list[str]:  # noqa: ANN401
    """Return the foreign keys that refer to the table and, at a delete, do one of `kinds`. Locks: none."""
    cursor.execute(
        "SELECT format('%%s of %%s', o.conname, o.conrelid::regclass) FROM pg_constraint o "
        "JOIN pg_class c ON o.confrelid IN (SELECT c.oid UNION SELECT relid FROM pg_partition_tree(c.oid)) "
        "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %(schema)s AND c.relname = %(table)s "
        "AND o.contype = 'f' AND o.conparentid = 0 AND o.confdeltype = ANY (%(kinds)s) ORDER BY 1",
        {"schema": schema, "table": table, "kinds": list(kinds)},
    )
    return [name for (name,) in cursor.fetchall()]


def unsupported(cursor: Any, schema: str, table: str, *, merges: bool) -> list[str]:  # noqa: ANN401
    """Return by name what the relation has with which a batch's rows would not be replaced by a replay, or be left out.

    Its other triggers, its constraints and its partitions are Postgres's own affair: they work as for any login.
    Locks: none.
    """
    cursor.execute(
        "SELECT c.oid, c.relkind, row_security_active(c.oid), "
        "EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid) AND c.relkind <> 'p', "
        "ARRAY(SELECT rulename::text FROM pg_rewrite WHERE ev_class = c.oid AND ev_enabled <> 'D' ORDER BY 1), "
        "ARRAY(SELECT inhrelid::regclass::text FROM pg_inherits p JOIN pg_class leaf ON leaf.oid = inhrelid "
        "WHERE inhparent = c.oid AND leaf.relkind = 'f' ORDER BY 1), "
        "c.relpersistence = 'u' OR EXISTS (SELECT FROM pg_partition_tree(c.oid) JOIN pg_class leaf ON leaf.oid = relid "
        "WHERE leaf.relpersistence = 'u') "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %(schema)s AND c.relname = %(table)s",
        {"schema": schema, "table": table},
    )
    found = cursor.fetchone()
    if found is None:
        return []
    oid, kind, secured, has_children, rules, foreign, unlogged = found
    if kind in _KINDS:
        return [f"no rows of its own: it is {_KINDS[kind]}"]
    cursor.execute(
        "SELECT tgname::text FROM pg_trigger WHERE tgrelid IN (SELECT %(oid)s UNION SELECT relid FROM "
        "pg_partition_tree(%(oid)s)) AND NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & %(before)s = "
        "%(before)s AND (%(any)s OR tgtype & %(delete)s <> 0) GROUP BY 1 ORDER BY 1",
        {"oid": oid, "before": _BEFORE_ROW, "delete": _AT_DELETE, "any": merges},
    )
    triggers = [name for (name,) in cursor.fetchall()]
    return [
        *(["row security for this login, which hides rows from it"] if secured else []),
        *(["tables that inherit from it"] if has_children else []),
        *(["no log (UNLOGGED), so that a crash of its server empties it"] if unlogged else []),
        *(f"the rule {name}" for name in rules),
        *(f"the foreign partition {name}" for name in foreign),
        *(
            f"the foreign key {name}, by which a replay would delete or change rows there"
            for name in _referring(cursor, schema, table, _CHANGES)
        ),
        *(
            f"the trigger {name}, which may keep rows from being {'merged' if merges else 'deleted'}"
            for name in triggers
        ),
    ]

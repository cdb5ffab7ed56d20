"""Define the driver log's four roles, each with the least rights that its processes need (docs/reference/schema.md).

A login is made a member of a role; the migrating user owns everything and needs no role. The functions run as their
owner (SECURITY DEFINER, with a pinned search_path), so a role that may EXECUTE `add_block` but not INSERT into `blocks`
can't break the chain whatever it sends: the function is the only way in. Which rows a login of `forebay_receiver` may
change is checked by `holds_receiver` and `owns_process`; docs/reference/roles.md has the whole matrix.

Roles belong to the whole cluster, so other databases may use them: they are created where missing, and never dropped.
If the migrating user may not create roles, the migration goes on without them and says so; an administrator then runs
`forebay db roles`, or gives its `--sql` to psql.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store.schema.tables import metadata
from tracker_store.views import VIEWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Role:
    """Describe a role: its purpose, the functions that it may EXECUTE, and its rights by table, as GRANT takes them."""

    purpose: str
    functions: Sequence[str]
    tables: Mapping[str, Sequence[str]]


def _read(*names: str) -> dict[str, Sequence[str]]:
    return dict.fromkeys(names, ("SELECT",))


_EVERYTHING = (*(table.name for table in metadata.sorted_tables), *VIEWS, "alembic_version")

# Not `at`, which the database's clock says.
_REPORTS = ("SELECT", "INSERT (receiver_id, epoch, kind, message, detail)")

# The tables into which views insert: a login that inserts needs the sequence of the table.
_INSERTED_THROUGH = {"receiver_events": "events"}

ROLES: Mapping[str, Role] = {
    "forebay_receiver": Role(
        "what an agent and its receiver processes do: blocks only by add_block and its like, and claim",
        (
            "add_block",
            "add_one_block",
            "attach_block_store",
            "channel_gaps",
            "channel_positions",
            "claim",
            "close_channel_gap",
            "end_letter_replay",
            "end_processes",
            "forget_partitions",
            "heartbeat",
            "holds_receiver",
            "jump_channel",
            "known_keys",
            "move_channels",
            "open_partition",
            "open_segment",
            "owns_process",
            "register_schema",
            "report_source_lag",
            "salvage_blocks",
            "seal_segments",
            "set_preferred_location",
            "server_timeline",
            "set_receiver_state",
            "sign_off_receiver",
            "source_positions",
            "take_over",
            "wanted_batch_drivers",
        ),
        {
            **_read("block_stores", "blocks", "hand_overs", "log_segments", "receivers", "streams", "stream_schemas"),
            **_read("alembic_version"),
            "dead_letters": ("SELECT", "INSERT"),
            # Not `login`: its default is the session's own.
            "processes": ("SELECT", "INSERT (kind, name, host, pid, slots, draining)"),
            "receiver_events": _REPORTS,
        },
    ),
    "forebay_driver": Role(
        "what the tracker, the cleaner, Dagster's sensors and batch runs, and `forebay apply` do",
        (
            "advance_stops",
            "allocate_blocks_to_batch",
            "apply_pipeline",
            "apply_stream",
            "attach_reader",
            "batch_inputs_of",
            "begin_hand_over",
            "begin_state_replay",
            "begin_state_version",
            "claim_attempt",
            "claim_replay",
            "clean_up_events",
            "clean_up_history",
            "clean_up_keys",
            "clean_up_offsets",
            "clean_up_receiver",
            "commit_output",
            "complete_attempt",
            "discard_batch",
            "driver_log_between",
            "end_attempt",
            "end_processes",
            "expire_process",
            "fail_output",
            "forget_receivers",
            "heartbeat",
            "move_reader",
            "move_state_replay",
            "take_state_replay",
            "note_state_version",
            "leads",
            "read_changes",
            "receivers_to_clean_up",
            "record_batch_inputs",
            "record_stream_rate",
            "remove_pipeline",
            "remove_stream",
            "server_timeline",
            "set_rate_limits",
            "state_versions_to_delete",
            "streams_to_clean_up",
        ),
        {
            **_read(*_EVERYTHING),
            "batch_drivers": ("SELECT", "INSERT", "UPDATE", "DELETE"),
            # A launch is a lease on a question to Dagster; claim_attempt decides which attempt runs.
            "batches": ("SELECT", "UPDATE (launch_attempt, launched_at, launched_by)"),
            "block_stores": ("SELECT", "DELETE"),
            # A person marks those that were sent again, or are to be parsed again.
            "dead_letters": ("SELECT", "UPDATE (replay_wanted, replayed_at, replayed_to)"),
            # Hand-overs begin by begin_hand_over, so a login inserts requests alone.
            "hand_overs": ("SELECT", "INSERT (listeners)", "DELETE"),
            "leadership": ("SELECT", "UPDATE"),
            "log_segments": ("SELECT", "UPDATE (state)", "DELETE"),
            "output_commits": ("SELECT", "UPDATE (to_publish)"),
            "pipelines": ("SELECT", "INSERT", "UPDATE"),
            "processes": (
                "SELECT",
                "INSERT (kind, name, host, pid, slots, draining)",
                "UPDATE (ended_at, end_reason, draining)",
            ),
            "receiver_events": _REPORTS,
            "receivers": (
                "SELECT",
                "INSERT",
                "UPDATE (state, desired_state, reason, since, assignment, agent_id, process_id)",
                "UPDATE (removed_at, host, preferred_location)",
            ),
            "readers": ("SELECT", "UPDATE (removed_at)"),
            "record_keys": ("SELECT", "DELETE"),
            "run_queue": ("SELECT", "INSERT", "UPDATE", "DELETE"),
            "scaling_decisions": ("SELECT", "INSERT", "UPDATE"),
            # Of those that clean-up has marked.
            "state_versions": ("SELECT", "DELETE"),
            "streams": ("SELECT", "INSERT", "UPDATE"),
        },
    ),
    "forebay_reader": Role(
        "what a streaming query of Spark's does: reads where blocks lie, and moves its own named reader",
        ("attach_reader", "move_reader"),
        _read(
            *(
                "block_stores",
                "blocks",
                "cursors",
                "log_segments",
                "readers",
                "receivers",
                "stream_schemas",
                "streams",
            ),
            "alembic_version",
        ),
    ),
    "forebay_operator": Role(
        "a person who looks: reads all, changes nothing",
        ("batch_inputs_of", "driver_log_between"),
        _read(*_EVERYTHING),
    ),
}

_MISSING = (
    "there is no role %, and this user may not make one: the driver log works without it, for its owner alone. An "
    "administrator makes it with: forebay db roles"
)


def create_statement(role: str) -> str:
    """Return the statement that creates a role if it is missing; it warns if this user may not."""
    return f"""
DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = '{role}') THEN
        CREATE ROLE {role} NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN NULL;  -- another database's migration was faster
    WHEN insufficient_privilege THEN
        RAISE WARNING '{_MISSING}', '{role}';
END
$do$"""


def _if_there(role: str, statements: Iterable[str]) -> str:
    body = "\n".join(f"    {statement};" for statement in statements)
    return f"""
DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = '{role}') THEN
        RETURN;
    END IF;
{body}
END
$do$"""


def grant_statement(role: str, rights: Role) -> str:
    """Return the statement that gives a role exactly its rights, whatever it had; no-op if the role is missing."""
    return _if_there(
        role,
        [
            f"REVOKE ALL ON ALL TABLES IN SCHEMA forebay FROM {role}",
            f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA forebay FROM {role}",
            f"REVOKE ALL ON ALL FUNCTIONS IN SCHEMA forebay FROM {role}",
            f"GRANT USAGE ON SCHEMA forebay TO {role}",
            *(f"GRANT EXECUTE ON FUNCTION forebay.{function} TO {role}" for function in rights.functions),
            *(f"GRANT {', '.join(granted)} ON forebay.{table} TO {role}" for table, granted in rights.tables.items()),
            *(
                f"GRANT USAGE ON SEQUENCE forebay.{table}_id_seq TO {role}"
                for table in (
                    _INSERTED_THROUGH.get(name, name)
                    for name, granted in rights.tables.items()
                    if any(right.startswith("INSERT") for right in granted)
                )
                # A table whose key comes from another table has no sequence.
                if "id" in metadata.tables[f"{metadata.schema}.{table}"].columns
            ),
        ],
    )


def install_statements(functions: Sequence[str], roles: Mapping[str, Role] = ROLES) -> list[str]:
    """Return what creates the roles and grants their rights; `functions` are all there are. Idempotent."""
    return [
        *(f"REVOKE ALL ON FUNCTION forebay.{function} FROM PUBLIC" for function in functions),
        *(create_statement(role) for role in roles),
        *(grant_statement(role, rights) for role, rights in roles.items()),
    ]


def revoke_statements(roles: Iterable[str] = ROLES) -> list[str]:
    """Return what revokes the roles' rights in this database, before a downgrade; the roles stay for others."""
    return [
        _if_there(
            role,
            [
                f"REVOKE ALL ON ALL TABLES IN SCHEMA forebay FROM {role}",
                f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA forebay FROM {role}",
                f"REVOKE ALL ON ALL FUNCTIONS IN SCHEMA forebay FROM {role}",
                f"REVOKE ALL ON SCHEMA forebay FROM {role}",
            ],
        )
        for role in roles
    ]


def script(functions: Sequence[str]) -> str:
    """Return the same statements for an administrator's psql.

    It must be connected to the driver log's database, as its owner or a superuser.
    """
    return "\n".join(f"{statement.strip()};" for statement in install_statements(functions)) + "\n"


def install(connection: sa.Connection, functions: Sequence[str]) -> list[str]:
    """Create the roles and grant their rights; returns those still missing. Locks: the catalogues'."""
    for statement in install_statements(functions):
        connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
    return missing_roles(connection)


def missing_roles(connection: sa.Connection) -> list[str]:
    """Return the roles that the cluster lacks. No locks."""
    present = connection.execute(
        sa.text("SELECT rolname FROM pg_catalog.pg_roles WHERE rolname = ANY (CAST(:names AS text[]))"),
        {"names": list(ROLES)},
    ).scalars()
    return sorted(ROLES.keys() - set(present))

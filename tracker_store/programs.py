"""Functions, views and rights of the driver log, as `forebay db upgrade` installs them: the files are their source."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING

import sqlalchemy as sa

from tracker_store import roles
from tracker_store.views import VIEWS

if TYPE_CHECKING:
    from collections.abc import Sequence

FUNCTIONS = (
    "add_block",
    "add_host_receiver",
    "add_one_block",
    "advance_stops",
    "allocate_blocks_to_batch",
    "apply_pipeline",
    "attach_block_store",
    "attach_reader",
    "claim",
    "claim_attempt",
    "claim_replay",
    "clean_up_events",
    "clean_up_history",
    "clean_up_offsets",
    "clean_up_receiver",
    "commit_output",
    "complete_batch",
    "complete_replay",
    "discard_batch",
    "driver_log_between",
    "end_attempt",
    "expire_process",
    "expire_stream_rates",
    "fail_attempt",
    "follow_commit",
    "forget_partitions",
    "heartbeat",
    "known_keys",
    "leads",
    "move_reader",
    "open_partition",
    "register_schema",
    "record_scaling",
    "record_stream_rate",
    "release_launch",
    "release_receivers",
    "remove_pipeline",
    "salvage_blocks",
    "schedule_receiver",
    "set_rate_limits",
    "source_positions",
    "start_at_latest",
    "wanted_batch_drivers",
    "take_launch",
)


def function_source(name: str) -> str:
    """The text of ``functions/NAME.sql``: one CREATE FUNCTION, its header of comments before it."""
    return resources.files("tracker_store.functions").joinpath(f"{name}.sql").read_text(encoding="utf-8")


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _program_statements() -> Sequence[str]:
    statements = [function_source(name) for name in FUNCTIONS]
    for name, view in VIEWS.items():
        statements += [
            f"CREATE VIEW forebay.{name} AS{view.query}",
            f"COMMENT ON VIEW forebay.{name} IS {_literal(view.comment)}",
            *(
                f'COMMENT ON COLUMN forebay.{name}."{column}" IS {_literal(comment)}'
                for column, comment in view.columns.items()
            ),
        ]
    return statements + roles.install_statements(FUNCTIONS)


def programs_fingerprint() -> str:
    """Of all that this installation would install; another one means another version of it."""
    return hashlib.sha256("\0".join(_program_statements()).encode()).hexdigest()


def installed_fingerprint(connection: sa.Connection) -> str | None:
    """The fingerprint that the database was given by `install_statements`; None before it was. No locks."""
    comment: str | None = connection.execute(
        sa.text("SELECT obj_description(to_regnamespace('forebay'), 'pg_namespace')")
    ).scalar()
    return None if comment is None else comment.rpartition(" ")[2]


def install_statements() -> list[str]:
    """What creates every function and view, gives the roles their rights, and notes the fingerprint, in order."""
    note = f"Forebay's driver log; functions, views and rights: {programs_fingerprint()}"
    return [*_program_statements(), f"COMMENT ON SCHEMA forebay IS {_literal(note)}"]


def drop_statements() -> list[str]:
    """What takes the roles' rights, and drops every view and function, in order; the roles stay."""
    views = [f"DROP VIEW IF EXISTS forebay.{name}" for name in reversed(list(VIEWS))]
    return [
        *roles.revoke_statements(),
        *views,
        *(f"DROP FUNCTION IF EXISTS forebay.{name}" for name in FUNCTIONS),
        "COMMENT ON SCHEMA forebay IS NULL",
    ]

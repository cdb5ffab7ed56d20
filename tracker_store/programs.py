"""Functions, views and rights of the driver log, as migrations install them. The files are their only source."""

from __future__ import annotations

from importlib import resources

from tracker_store import roles
from tracker_store.views import VIEWS

FUNCTIONS = (
    "add_block",
    "allocate_blocks_to_batch",
    "claim",
    "claim_attempt",
    "clean_up_offsets",
    "clean_up_receiver",
    "commit_output",
    "complete_batch",
    "driver_log_between",
    "expire_process",
    "fail_attempt",
    "heartbeat",
    "open_partition",
    "schedule_receiver",
    "start_at_latest",
)


def function_source(name: str) -> str:
    """The text of ``functions/NAME.sql``: one CREATE FUNCTION, its header of comments before it."""
    return resources.files("tracker_store.functions").joinpath(f"{name}.sql").read_text(encoding="utf-8")


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def install_statements() -> list[str]:
    """What creates every function and view, and gives the roles their rights, in order."""
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


def drop_statements() -> list[str]:
    """What takes the roles' rights, and drops every view and function, in order; the roles stay."""
    views = [f"DROP VIEW IF EXISTS forebay.{name}" for name in reversed(list(VIEWS))]
    return roles.revoke_statements() + views + [f"DROP FUNCTION IF EXISTS forebay.{name}" for name in FUNCTIONS]

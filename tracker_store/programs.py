"""Functions, views and rights of the driver log, as `forebay db upgrade` installs them: the files are their source."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from tracker_store import roles
from tracker_store.views import VIEWS

if TYPE_CHECKING:
    from collections.abc import Sequence

# Postgres's code where a function can't be replaced, for its result or its parameters' names are others.
_OTHER_RESULT = "42P13"

_FUNCTION_FILES = resources.files("tracker_store.functions")


def _function_names() -> tuple[str, ...]:
    """Return the names of the files in ``functions``, sorted.

    This is the order of installation: Postgres looks up what the body of a LANGUAGE sql function calls when it creates
    the function, so a name that such a body calls must sort before the function's own (`fail_attempt` calls
    `end_attempt`). A LANGUAGE plpgsql body may call any name.
    """
    files = (file.name for file in _FUNCTION_FILES.iterdir())
    return tuple(sorted(name.removesuffix(".sql") for name in files if name.endswith(".sql")))


FUNCTIONS = _function_names()


def function_source(name: str) -> str:
    """Return the text of ``functions/NAME.sql``: one CREATE FUNCTION, its header of comments before it."""
    return _FUNCTION_FILES.joinpath(f"{name}.sql").read_text(encoding="utf-8")


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _program_statements() -> Sequence[str]:
    return [*(function_source(name) for name in FUNCTIONS), *_view_and_role_statements()]


def _view_and_role_statements() -> Sequence[str]:
    return [*(view.source for view in VIEWS.values()), *roles.install_statements(FUNCTIONS)]


def programs_fingerprint() -> str:
    """Of all that this installation would install; another one means another version of it."""
    return hashlib.sha256("\0".join(_program_statements()).encode()).hexdigest()


def installed_fingerprint(connection: sa.Connection) -> str | None:
    """The fingerprint that the database was given by `install`; None before it was. No locks."""
    comment: str | None = connection.execute(
        sa.text("SELECT obj_description(to_regnamespace('forebay'), 'pg_namespace')")
    ).scalar()
    return None if comment is None else comment.rpartition(" ")[2]


def install(connection: sa.Connection) -> None:
    """Create every function and view, give the roles their rights, and note the fingerprint. In a transaction.

    Locks: nothing that a running call has. A function whose parameters and result are as they were is replaced in its
    place: one that is dropped takes the ground from under a call that runs just then ("cache lookup failed").
    """
    for name in FUNCTIONS:
        if not _replace_function(connection, name):
            for signature in _signatures(connection, name):
                _execute(connection, f"DROP FUNCTION {signature}")
            _execute(connection, function_source(name))
    note = f"Forebay's driver log; functions, views and rights: {programs_fingerprint()}"
    for statement in (*_view_and_role_statements(), f"COMMENT ON SCHEMA forebay IS {_literal(note)}"):
        _execute(connection, statement)


def _replace_function(connection: sa.Connection, name: str) -> bool:
    """Whether the function is there now, in the place of the one of before if there was one, and no other of its name.

    False: its parameters or its result are others.
    """
    source = function_source(name).replace("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION", 1)
    try:
        with connection.begin_nested():
            _execute(connection, source)
    except DBAPIError as error:
        if getattr(error.orig, "pgcode", None) != _OTHER_RESULT:
            raise
        return False
    return len(_signatures(connection, name)) == 1


def _signatures(connection: sa.Connection, name: str) -> Sequence[str]:
    """Of the functions of a name, as DROP takes them. No locks."""
    return (
        connection.execute(
            sa.text("""
                SELECT oid::regprocedure::text
                FROM pg_proc
                WHERE pronamespace = 'forebay'::regnamespace AND proname = :name
            """),
            {"name": name},
        )
        .scalars()
        .all()
    )


def _execute(connection: sa.Connection, statement: str) -> None:
    connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


def uninstall(connection: sa.Connection, *, functions: bool) -> None:
    """Take the roles' rights, and drop every view, and every function if it is to be; the roles stay.

    Functions stay where they are installed again in the same transaction. Locks: the views, and the functions' rows.
    """
    for statement in (
        *roles.revoke_statements(),
        *(f"DROP VIEW IF EXISTS forebay.{name}" for name in reversed(list(VIEWS))),
        *(f"DROP FUNCTION IF EXISTS forebay.{name}" for name in FUNCTIONS if functions),
        "COMMENT ON SCHEMA forebay IS NULL",
    ):
        _execute(connection, statement)

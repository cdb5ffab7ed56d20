"""Install functions, views and rights of the driver log for `forebay db upgrade`; their files are the source."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from tracker_store.install import roles
from tracker_store.views import VIEWS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.resources.abc import Traversable

# Postgres's code if a function can't be replaced because its result or its parameters' names differ.
_OTHER_RESULT = "42P13"


def _function_files() -> dict[str, Traversable]:
    """Return the files below ``functions`` by the name of their function, sorted by it.

    This is the order of installation: Postgres looks up what the body of a LANGUAGE sql function calls when it creates
    the function, so a name that such a body calls must sort before the function's own (`fail_attempt` calls
    `end_attempt`). A LANGUAGE plpgsql body may call any name.
    """
    rooms = (room for room in resources.files("tracker_store.functions").iterdir() if room.is_dir())
    files = {
        file.name.removesuffix(".sql"): file for room in rooms for file in room.iterdir() if file.name.endswith(".sql")
    }
    return dict(sorted(files.items()))


_FILES = _function_files()
FUNCTIONS = tuple(_FILES)


def function_source(name: str) -> str:
    """Return the text of ``functions/ROOM/NAME.sql``: one CREATE FUNCTION, its header of comments before it."""
    return _FILES[name].read_text(encoding="utf-8")


def is_trigger_function(name: str) -> bool:
    """Return whether only triggers call the function. They are made, and dropped with it, by a migration."""
    return "\nRETURNS trigger\n" in function_source(name)


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _program_statements() -> Sequence[str]:
    return [*(function_source(name) for name in FUNCTIONS), *_view_and_role_statements()]


def _view_and_role_statements() -> Sequence[str]:
    return [*(view.source for view in VIEWS.values()), *roles.install_statements(FUNCTIONS)]


def programs_fingerprint() -> str:
    """Return a hash of all that this installation would install; a different one means a different version."""
    return hashlib.sha256("\0".join(_program_statements()).encode()).hexdigest()


def installed_fingerprint(connection: sa.Connection) -> str | None:
    """Return the fingerprint that `install` wrote to the database, or None before that. No locks."""
    comment: str | None = connection.execute(
        sa.text("SELECT obj_description(to_regnamespace('forebay'), 'pg_namespace')")
    ).scalar()
    return None if comment is None else comment.rpartition(" ")[2]


def install(connection: sa.Connection) -> None:
    """Create every function and view, give the roles their rights, and store the fingerprint. In a transaction.

    Locks: nothing that a running call holds. A function whose parameters and result are unchanged is replaced in place:
    dropping it would break a call that runs at that moment ("cache lookup failed").
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
    """Replace or create a function; returns whether it is now the only one of its name.

    False: an existing one has other parameters or another result.
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
    """Return the signatures of the functions with this name, as DROP takes them. No locks."""
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
    """Revoke the roles' rights, and drop every view and, with `functions`, every function; the roles stay.

    Functions are left in place if the same transaction installs them again; those of triggers always, because the
    tables' triggers need them. Locks: the views, and the functions' rows.
    """
    # A name may be a table of another revision.
    present = set(sa.inspect(connection).get_view_names("forebay"))
    for statement in (
        *roles.revoke_statements(),
        *(f"DROP VIEW forebay.{name}" for name in reversed(list(VIEWS)) if name in present),
        *(
            f"DROP FUNCTION IF EXISTS forebay.{name}"
            for name in FUNCTIONS
            if functions and not is_trigger_function(name)
        ),
        "COMMENT ON SCHEMA forebay IS NULL",
    ):
        _execute(connection, statement)

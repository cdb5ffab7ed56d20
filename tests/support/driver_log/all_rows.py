"""Return all that a driver log holds, for tests that look for what it must not hold."""

from __future__ import annotations

import sqlalchemy as sa


def all_rows(connection: sa.Connection) -> str:
    """Return the rows of all tables and views, whole: a row's own text leaves out what is long."""
    names = connection.execute(
        sa.text("SELECT table_name FROM information_schema.tables WHERE table_schema = 'forebay'")
    ).scalars()
    return "\n".join(
        f"{name} {tuple(row)!r}"
        for name in list(names)
        for row in connection.exec_driver_sql(f'SELECT * FROM forebay."{name}"')
    )

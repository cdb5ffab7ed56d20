"""Let a table declare Postgres's storage parameters, as ``Table(..., postgresql_with={...})``.

SQLAlchemy has this argument from 2.1 on, and the migrations use it. Forebay runs on 2.0, because Dagster's storage on
Postgres does not work with 2.1: there ``postgresql://`` means psycopg 3, and dagster-postgres uses psycopg2. Remove
this module when SQLAlchemy may be 2.1. It writes statements, and never runs one.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable

# Small, hot, updated in place: autovacuum after a fixed number of dead rows, whatever the table's size.
HOT = {"autovacuum_vacuum_scale_factor": "0", "autovacuum_vacuum_threshold": "500"}
# Rows come and go all the time, and look alike: a sample is good until they have all been replaced. By default one is
# taken after each tenth of that, which takes longer than the vacuums (benchmarks/steady_state.py).
REPLACED = {"autovacuum_analyze_scale_factor": "1"}

Table.argument_for("postgresql", "with", None)


@compiles(CreateTable, "postgresql")
def _create_table(element: CreateTable, compiler: Any, **arguments: Any) -> str:  # noqa: ANN401  SQLAlchemy's hook
    """Return SQLAlchemy's own statement, with the table's storage parameters at its end."""
    statement = str(compiler.visit_create_table(element, **arguments))
    parameters = element.element.dialect_options["postgresql"]["with"]
    if not parameters:
        return statement
    listed = ", ".join(f"{name} = {value}" for name, value in parameters.items())
    return f"{statement.rstrip()}\n WITH ({listed})\n\n"

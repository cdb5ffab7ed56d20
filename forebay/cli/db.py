"""`forebay db`: the driver log's schema."""

from __future__ import annotations

import typer
from rich.console import Console

from forebay.cli.database import database_url
from forebay.cli.failures import clear_errors
from orchestration.settings import Settings
from tracker_store import migrate
from tracker_store.engine import connect, create_engine

app = typer.Typer(help="The driver log's schema in Postgres.", no_args_is_help=True)


@app.command()
def upgrade() -> None:
    """Bring the schema to the newest migration. `forebay up` does it at its start."""
    console = Console(highlight=False)
    with clear_errors(console):
        migrate.upgrade(database_url(Settings()))
    console.print(f"The driver log is at revision {migrate.newest_revision()}.")


@app.command()
def current() -> None:
    """Show the schema's revision, and the one that this installation expects; exit 1 where they differ."""
    console = Console(highlight=False)
    with clear_errors(console):
        engine = create_engine(database_url(Settings()), application_name="forebay db", pool_size=1)
        with connect(engine) as connection:
            found = migrate.current_revision(connection)
        engine.dispose()
    expected = migrate.newest_revision()
    if found != expected:
        console.print(f"revision {found or 'none'}, expected {expected}: run `forebay db upgrade`", style="bold red")
        raise typer.Exit(1)
    console.print(f"revision {found}, the newest")

"""The command `forebay`: one module per noun; each loads what it needs when it is called."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from forebay.cli import agent, agents, batches, blocks, db, pipelines, readers, receivers
from forebay.cli.apply import apply
from forebay.cli.batch_driver import batch_driver
from forebay.cli.demo import demo
from forebay.cli.doctor import doctor
from forebay.cli.receiver import receiver
from forebay.cli.sources import sources
from forebay.cli.status import status
from forebay.cli.stop import start, stop
from forebay.cli.up import up
from tracker_store.process_output import configure_log, keep_output_from_failing

# Commands that run until they are stopped, with their output in a file on a disk that may be full.
_SERVICES = frozenset({"agent", "batch-driver", "receiver", "tracker", "up"})

app = typer.Typer(
    name="forebay",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="""Receivers as a service: pushed records become durable blocks, blocks become PySpark batches in Dagster.

Begin with `forebay demo`. Then declare a pipeline of your own and run it with `forebay up my_pipeline`.

Where things are: FOREBAY_HOME (.forebay) holds the state; FOREBAY_DATABASE_URL names a Postgres of your own;
FOREBAY_MODULE the module that declares your pipelines.
""",
)


@app.callback()
def main(
    context: typer.Context,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log debug messages too.")] = False,  # noqa: FBT002
) -> None:
    """Configure the log."""
    if context.invoked_subcommand in _SERVICES:
        keep_output_from_failing()
    configure_log(logging.DEBUG if verbose else logging.INFO)


app.command()(demo)
app.command()(up)
app.command()(stop)
app.command()(start)
app.command()(apply)
app.command()(status)
app.command()(sources)
app.command()(doctor)
app.command()(agent.agent)
app.add_typer(agents.app, name="agents")
app.add_typer(receivers.app, name="receivers")
app.add_typer(pipelines.app, name="pipelines")
app.add_typer(readers.app, name="readers")
app.add_typer(batches.app, name="batches")
app.add_typer(blocks.app, name="blocks")
app.add_typer(db.app, name="db")
app.command()(batch_driver)
app.command(hidden=True)(receiver)
app.command(hidden=True)(agent.tracker)

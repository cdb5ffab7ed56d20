"""`forebay db`: the driver log's schema, its roles, and the check that its data is intact."""

from __future__ import annotations

import itertools
import json
import textwrap
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from forebay.cli.commands.driver_log.db_shell import shell, url
from forebay.cli.instance import names
from forebay.cli.instance.database import database_url, driver_log
from forebay.cli.terminal.console import Console
from forebay.cli.terminal.failures import clear_errors
from orchestration.batches.attached_store import open_attached_store
from orchestration.block_checks.unknown_frames import Fate, StoreComparison
from orchestration.declarations.settings import Settings
from tracker_store.batches.pipelines import get_pipeline
from tracker_store.install import migrate, role_matrix, roles, schema_reference
from tracker_store.install.programs import FUNCTIONS
from tracker_store.reports import checks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

APPLICATION = "forebay db"
# The most entries of a list that are printed in a terminal.
_SHOWN = 20
AgainstStore = Annotated[
    bool,
    typer.Option("--against-store", help="Also read every file of the block store, and list blocks that have no row."),
]

app = typer.Typer(
    help="The driver log in Postgres: address, SQL shell, schema, roles, and the check that it is intact.",
    no_args_is_help=True,
)


app.command()(url)
app.command()(shell)


@app.command()
def upgrade(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """Bring the schema to the newest migration.

    `forebay up` does it at its start.

    For example:

        forebay db upgrade
        forebay db upgrade --json
    """
    console = Console(highlight=False, stderr=as_json)
    migrations = list[str]()

    def ran(migration: str) -> None:
        # On a large table a migration may take minutes.
        migrations.append(migration.partition(":")[0])
        console.print(f"  {migration}", markup=False)

    with clear_errors(console):
        url = database_url(Settings(), as_owner=True)
        migrate.upgrade(url, told=ran)
    console.print(f"The driver log is at revision {migrate.newest_revision()}.")
    with driver_log(console, application_name=APPLICATION) as connection:
        missing = roles.missing_roles(connection)
    if missing:
        console.print(
            f"This user may not make the roles {', '.join(missing)}: only the owner can use the driver log until an "
            "administrator runs `forebay db roles`, or gives `forebay db roles --sql` to psql.",
            style="yellow",
        )
    if as_json:
        report = {"revision": migrate.newest_revision(), "migrations": migrations, "missing_roles": missing}
        typer.echo(json.dumps(report))


@app.command()
def current(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """Show the schema's revision, and the one that this installation expects.

    The exit code is 1 if they differ.

    For example:

        forebay db current
        forebay db current --json
    """
    console = Console(highlight=False, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        found = migrate.current_revision(connection)
    expected = migrate.newest_revision()
    if as_json:
        typer.echo(json.dumps({"revision": found, "expected": expected, "is_newest": found == expected}))
    if found != expected:
        console.print(f"revision {found or 'none'}, expected {expected}: {migrate.way_out(found)}", style="bold red")
        raise typer.Exit(1)
    if not as_json:
        console.print(f"revision {found}, the newest")


@app.command("roles")
def make_roles(
    sql: Annotated[bool, typer.Option("--sql", help="Print the statements for psql; change nothing.")] = False,  # noqa: FBT002
    matrix: Annotated[bool, typer.Option("--matrix", help="Print what each role may do, as Markdown.")] = False,  # noqa: FBT002
    as_json: Annotated[  # noqa: FBT002
        bool, typer.Option("--json", help="Without --sql and --matrix: one JSON object on standard output.")
    ] = False,
) -> None:
    """Create the roles that are missing, and grant each role exactly its rights.

    Needed if the user that migrates may not create roles. Run it, or the output of --sql, as a user that may create
    roles and has the rights of the driver log's owner. Running it again changes nothing.

    For example:

        forebay db roles
        forebay db roles --sql | psql -d forebay
    """
    if as_json and (sql or matrix):
        raise typer.BadParameter("--json can't be combined with --sql or --matrix")
    if sql:
        typer.echo(roles.script(FUNCTIONS), nl=False)
        return
    if matrix:
        typer.echo(role_matrix.describe(), nl=False)
        return
    console = Console(highlight=False, stderr=as_json)
    with driver_log(console, application_name=APPLICATION, as_owner=True) as connection:
        missing = roles.install(connection, FUNCTIONS)
    if as_json:
        made = [{"name": name, "purpose": role.purpose} for name, role in roles.ROLES.items() if name not in missing]
        typer.echo(json.dumps({"roles": made, "missing_roles": missing}))
    if missing:
        console.print(f"This user may not make {', '.join(missing)}; an administrator may.", style="bold red")
        raise typer.Exit(1)
    for name, role in roles.ROLES.items():
        console.print(f"{name}: {role.purpose}")


@app.command()
def describe() -> None:
    """Print the reference of the schema as Markdown, from the database's own comments.

    For example:

        forebay db describe > schema.md
    """
    with driver_log(Console(highlight=False, stderr=True), application_name=APPLICATION) as connection:
        typer.echo(schema_reference.describe(connection), nl=False)


@app.command()
def check(
    pipeline: Annotated[
        str | None, typer.Option(help="This pipeline and the streams that it reads.", autocompletion=names.pipelines)
    ] = None,
    against_store: AgainstStore = False,  # noqa: FBT002
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """Check on the live data that the driver log is intact: chains, totals, fence, positions, ranges, commits, schema.

    Changes and locks nothing, and may run at any time; on millions of blocks it reads for minutes. Exits with 1 if a
    promise is broken, and names the first few rows that break it. With --against-store it also exits with 1 if the
    store has blocks that have no row and that no process will register: after a failover, or a restore.

    For example:

        forebay db check
        forebay db check --against-store --json
    """
    console = Console(highlight=False, stderr=as_json)
    with driver_log(console, application_name=APPLICATION) as connection:
        with _progress_of_checks(console, shown=not as_json) as begins:
            results = checks.check_schema(connection, begins=begins)
            complete = checks.revision_is_the_newest(connection).passed
            if complete:
                pipeline_id = None if pipeline is None else get_pipeline(connection, pipeline).pipeline_id
                results += checks.check_data(connection, pipeline_id, begins=begins)
        intact = complete and all(result.passed for result in results)
        comparison, paths = None, list[str]()
        if against_store and complete:
            with clear_errors(console):
                comparison = StoreComparison(connection, open_attached_store(connection, Settings().block_store_roots))
                paths = comparison.paths()
        _show_checks(console, results, complete=complete, as_json=as_json)
        if comparison is not None:
            _show_unknown_frames(console, comparison, paths, as_json=as_json)
            intact = intact and comparison.intact
    if as_json:
        # This key comes last, because everything before it is written as soon as it is found.
        typer.echo(f', "intact": {json.dumps(intact)}}}')
    if not intact:
        raise typer.Exit(1)


@contextmanager
def _progress_of_checks(console: Console, *, shown: bool) -> Iterator[Callable[[str], None]]:
    """Show a bar of the checks while they run, on a terminal only; yield what is to be called before each check."""
    numbers = itertools.count()
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as progress:
        task = progress.add_task("", total=len(checks.SCHEMA_CHECKS) + len(checks.DATA_CHECKS))

        def begins(name: str) -> None:
            progress.update(task, description=name.replace("_", " "), completed=next(numbers), refresh=True)

        yield begins


def _show_checks(console: Console, results: Sequence[checks.CheckResult], *, complete: bool, as_json: bool) -> None:
    if as_json:
        report = [{**asdict(result), "passed": result.passed} for result in results]
        typer.echo(f'{{"data_checked": {json.dumps(complete)}, "checks": {json.dumps(report)}', nl=False)
    else:
        for result in results:
            _print_check(console, result)
        if not complete:
            console.print("The data was not looked at: the schema must fit first.", style="bold red")


def _print_check(console: Console, result: checks.CheckResult) -> None:
    """Print a check's promise, and below it each offender on a line of its own: no name is broken."""
    promise = textwrap.fill(
        result.promise,
        width=console.width,
        initial_indent=f"{'ok' if result.passed else 'BROKEN':<8}",
        subsequent_indent=" " * 8,
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = [promise]
    if not result.passed:
        lines += [f"        {result.violations:,} found:", *(f"          {offender}" for offender in result.offenders)]
    for line in lines:
        console.print(line, style="" if result.passed else "bold red", markup=False, soft_wrap=True)


def _show_unknown_frames(console: Console, comparison: StoreComparison, paths: Sequence[str], *, as_json: bool) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = 0
    if as_json:
        typer.echo(', "unknown_frames": [', nl=False)
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("Reading files", total=len(paths))
        for frame in comparison.frames(paths, on_file=lambda: progress.advance(task)):
            if as_json:
                typer.echo((", " if shown else "") + json.dumps(asdict(frame)), nl=False)
            elif comparison.frames_by_fate[frame.fate] <= _SHOWN:
                progress.console.print(
                    f"  {frame.path} at {frame.offset}: {frame.records:,} records, receiver {frame.receiver_id}, "
                    f"epoch {frame.epoch}, sequence {frame.sequence}{', acknowledged' if frame.acknowledged else ''}: "
                    f"{frame.why}",
                    markup=False,
                    soft_wrap=True,
                )
            shown += 1
    found = {
        fate.value: {"blocks": comparison.frames_by_fate[fate], "records": comparison.records_by_fate[fate]}
        for fate in Fate
    }
    if as_json:
        store = {"files": comparison.files, "blocks": comparison.blocks, "unreadable": comparison.unreadable, **found}
        typer.echo(f'], "store": {json.dumps(store)}', nl=False)
        return
    if left := sum(max(0, count - _SHOWN) for count in comparison.frames_by_fate.values()):
        console.print(f"  … and {left:,} more (--json shows all)")
    for path, why in comparison.unreadable[:_SHOWN]:
        console.print(f"can't be read: {path}: {why}", style="bold red", markup=False, soft_wrap=True)
    if len(comparison.unreadable) > _SHOWN:
        console.print(f"  … and {len(comparison.unreadable) - _SHOWN:,} more files that can't be read")
    said = ", ".join(f"{counts['blocks']:,} ({counts['records']:,} records) {fate}" for fate, counts in found.items())
    console.print(
        f"{comparison.files:,} files with {comparison.blocks:,} blocks were read; of blocks that no row knows: {said}.",
        style="green" if comparison.intact else "bold red",
    )

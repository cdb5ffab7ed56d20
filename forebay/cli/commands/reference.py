"""`forebay reference PAGE`: write a page of the reference as Markdown, from the program itself.

The build of the site writes the pages of commands and of the Python API; a test compares the others, which are in
docs/reference. It needs no driver log, and reads no environment.
"""

from __future__ import annotations

from enum import StrEnum
from textwrap import dedent
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from forebay.cli.reference_pages.setting_values import OPTION_VARIABLES, PREFIX, UNSET, shown
from forebay.cli.terminal.exit_codes import EXIT_CODES, FINDINGS
from orchestration.declarations.settings import Settings
from orchestration.tracker.http.metrics import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator

# Wider than any usage line, so that the page does not depend on the terminal.
_WIDTH = 10_000


class Page(StrEnum):
    """Name a generated page of the reference."""

    CLI = "cli"
    SETTINGS = "settings"
    EXIT_CODES = "exit-codes"
    METRICS = "metrics"
    PYTHON_API = "python-api"


def reference(page: Annotated[Page, typer.Argument(help="The page's name in the reference.")]) -> None:
    """Print a page of the reference: `forebay reference settings > docs/reference/settings.md`."""
    typer.echo(describe(page), nl=False)


def describe(page: Page) -> str:
    """Return the page as Markdown."""
    lines = {
        Page.CLI: _cli,
        Page.SETTINGS: _settings,
        Page.EXIT_CODES: _exit_codes,
        Page.METRICS: _metrics,
        Page.PYTHON_API: _python_api,
    }[page]()
    return "\n".join(lines) + "\n"


def _cli() -> Iterator[str]:
    from forebay.cli.main import app  # noqa: PLC0415  it imports this module

    yield "# The command line"
    yield ""
    yield "Every command of `forebay`, as `forebay COMMAND --help` shows it. Written by `forebay reference cli`."
    yield "[settings.md](settings.md) has the settings that commands read from the environment, and"
    yield "[exit-codes.md](exit-codes.md) what exit codes mean."
    root = get_command(app)
    assert isinstance(root, TyperGroup)
    yield from _options(root, "forebay")
    context = root.make_context("forebay", [], resilient_parsing=True)
    for name in sorted(root.list_commands(context)):
        command = root.get_command(context, name)
        assert isinstance(command, TyperCommand | TyperGroup)
        if not command.hidden:
            yield from _command(command, f"forebay {name}", "##")


def _command(command: TyperCommand | TyperGroup, name: str, heading: str) -> Iterator[str]:
    context = command.make_context(name, [], resilient_parsing=True, terminal_width=_WIDTH, max_content_width=_WIDTH)
    yield ""
    yield f"{heading} {name}"
    yield ""
    yield f"`{command.get_usage(context).removeprefix('Usage: ')}`"
    yield ""
    yield from (line if line.startswith("    ") else _escaped(line) for line in _help(command).splitlines())
    yield from _options(command, name)
    if isinstance(command, TyperGroup):
        for part in command.list_commands(context):
            found = command.get_command(context, part)
            assert isinstance(found, TyperCommand | TyperGroup)
            if not found.hidden:
                yield from _command(found, f"{name} {part}", f"{heading}#")


def _help(command: TyperCommand | TyperGroup) -> str:
    return (command.help or "").partition("\f")[0].strip()


def _options(command: TyperCommand | TyperGroup, name: str) -> Iterator[str]:
    """Yield a table of a command's arguments and options, without those that every command has."""
    context = command.make_context(name, [], resilient_parsing=True, terminal_width=_WIDTH)
    records = [
        (record[0].replace("|", "\\|"), _cell(record[1]))
        for parameter in command.params
        if (record := parameter.get_help_record(context)) is not None
    ]
    if records:
        yield ""
        yield "| argument or option | |"
        yield "|---|---|"
        yield from (f"| `{what}` | {text} |" for what, text in records)


def _settings() -> Iterator[str]:
    yield "# Settings"
    yield ""
    yield "Every setting is an environment variable of the process that reads it. `forebay config` shows the values"
    yield "that hold here, and where each comes from. What is set for a stream or a pipeline is declared with it:"
    yield "[receiver-settings.md](receiver-settings.md). Written by `forebay reference settings`."
    yield ""
    yield "| setting | default | |"
    yield "|---|---|---|"
    for name, field in Settings.model_fields.items():
        default = shown(field.get_default(call_default_factory=True))
        text = UNSET if default == UNSET else f"`{default}`"
        yield f"| `{PREFIX}{name.upper()}` | {text} | {_cell(field.description or '')} |"
    yield ""
    yield "These variables give the value of an option where it is not on the command line:"
    yield ""
    yield "| variable | option |"
    yield "|---|---|"
    for variable, option in OPTION_VARIABLES.items():
        yield f"| `{variable}` | `{option}` |"


def _exit_codes() -> Iterator[str]:
    yield "# Exit codes"
    yield ""
    yield "Written by `forebay reference exit-codes`."
    yield ""
    yield "| code | |"
    yield "|---|---|"
    yield from (f"| {code} | {text} |" for code, text in EXIT_CODES.items())
    yield ""
    yield "The code 1 of these commands is an answer. Of all others it says that they could not do what was asked."
    yield ""
    yield "| command | 1 means |"
    yield "|---|---|"
    yield from (f"| `forebay {command}` | {text} |" for command, text in FINDINGS.items())


def _metrics() -> Iterator[str]:
    yield "# Metrics"
    yield from _paragraph("""
        What `/metrics` of a tracker has, in Prometheus' text format or, for a scraper that asks for it, OpenMetrics.
        [Monitoring](../how-to/monitoring.md) says where that is, and has alerts and a dashboard. Written by
        `forebay reference metrics`.
    """)
    yield ""
    yield "## Spark's gauges"
    yield from _paragraph("""
        These are the gauges of Spark Streaming (its StreamingSource), under the same names. There they were
        `<app>.StreamingMetrics.streaming.<name>`: here the application is the label `pipeline`, and the dot is an
        underscore. Times and delays are in milliseconds, as in Spark. A missing value is -1; the records of a missing
        batch are 0.
    """)
    yield ""
    yield from _metric_table("streaming_")
    yield from _paragraph("""
        Totals begin with the newest 1000 finished batches that the tracker finds at its first look, and start again
        with its process; in Spark they started again with the driver. A batch without records did not run, so as the
        last batch it has no start and no delays. Delays count from the batch time, not from the moment of allocation:
        a batch that was allocated late was delayed.
    """)
    yield from _paragraph("""
        A batch is due when its batch time has passed. Spark makes the batch at that moment. Forebay makes it when the
        previous batch is done, so batches that are due may have no row yet. `waitingBatches` counts both kinds (with
        `catch_up="merge"` several due batches count as one). It counts no due batches of a stopped pipeline.
    """)
    yield ""
    yield "## Forebay's own metrics"
    yield ""
    yield from _metric_table("forebay_")
    yield from _paragraph("""
        A receiver's queue holds the blocks that are cut and not stored yet. At `block_queue_size` (10 by default) the
        receiver stops reading from its source until there is room: the block store is slow or unavailable. Its
        process reports the number of blocks with its heartbeat, each second.
    """)
    yield from _paragraph("""
        `forebay_pipeline_holds_back_seconds` shows the same kind of problem as a stale replication slot: a pipeline
        that completes nothing, for example because no process runs it any more, keeps every block that waits for it.
        [Pipelines that no process runs](../runbooks/pipeline-stale.md) says what to do.
    """)


def _paragraph(text: str) -> Iterator[str]:
    """Yield an empty line and the lines of a paragraph."""
    yield ""
    yield from dedent(text).strip().splitlines()


def _metric_table(prefix: str) -> Iterator[str]:
    yield "| metric | type | labels | meaning |"
    yield "|---|---|---|---|"
    for name, (kind, labels, text) in METRICS.items():
        if name.startswith(prefix):
            yield f"| `{name}` | {kind} | {', '.join(labels) or 'none'} | {_cell(text)} |"


def _python_api() -> Iterator[str]:
    # It loads every public module, with Dagster and Spark.
    from forebay.cli.reference_pages.api_reference import python_api  # noqa: PLC0415

    return python_api()


def _cell(text: str) -> str:
    return _escaped(text).replace("|", "\\|").replace("\n", " ")


def _escaped(text: str) -> str:
    """Return text in which Markdown finds no HTML."""
    return text.replace("<", "&lt;")

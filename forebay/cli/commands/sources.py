"""`forebay sources`: the kinds of source that can be declared here, and the receivers of installed packages."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic_core import PydanticUndefined
from rich.table import Table

from forebay.cli.checks.extras import is_installed
from forebay.cli.terminal.console import Console
from receiver_runtime.receivers.custom.declaration import CustomSource, named_receivers
from receiver_runtime.sources.plugins import package_of, registered
from receiver_runtime.sources.source import Guarantee, SourceError, SourceRule
from receiver_runtime.sources.source_registry import GROUP, source_class

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# The guarantee of a user's own receiver, by what its sender does after a crash.
_BY_RULE = {
    SourceRule.NOT_SENT_AGAIN: Guarantee.AT_MOST_ONCE,
    SourceRule.SENT_AGAIN: Guarantee.AT_LEAST_ONCE,
    SourceRule.OFFSETS: Guarantee.EXACTLY_ONCE,
}


@dataclass(frozen=True, slots=True)
class Kind:
    """Describe an entry of the list. `fields` are those of the declaration, or the options of a named receiver.

    `guarantee` is the default of a declaration, `guarantees` all that it can have. `columns` is empty if the receiver's
    class is not known, or if it has its columns only once it is created. `installed` says whether the `extra` is
    installed in this environment. `choices` are what packages register for a field.
    `record_column` is what `Stream(records=…)` parses; empty: nothing.
    """

    kind: str
    receiver: str | None
    declaration: str
    fields: dict[str, str | None]
    guarantee: str | None
    package: str
    error: str | None = None
    guarantees: tuple[str, ...] = ()
    columns: dict[str, str] = field(default_factory=dict)
    extra: str | None = None
    installed: bool = True
    choices: dict[str, list[str]] = field(default_factory=dict)
    record_column: str = ""


def known_kinds() -> list[Kind]:
    """Return the registered kinds by name, then the receivers by entry point. Imports both, to read their fields."""
    kinds = [_kind(name, entry) for name, entry in registered(GROUP).items()]
    return kinds + [_named(name, entry) for name, entry in sorted(named_receivers().items())]


def _kind(name: str, entry: EntryPoint) -> Kind:
    try:
        source = source_class(name)
    except SourceError as error:
        return Kind(name, None, entry.attr, {}, None, package_of(entry), str(error))
    guarantees = tuple(one.words for one in source.guarantees()) if source.columns else ()
    return Kind(
        name,
        None,
        source.__name__,
        {
            field_name: _shown(found.get_default(call_default_factory=True))
            for field_name, found in source.model_fields.items()
            if field_name != "kind"
        },
        guarantees[0] if guarantees else None,
        package_of(entry),
        guarantees=guarantees,
        columns=dict(source.columns),
        extra=source.needs_extra,
        installed=source.needs_extra is None or is_installed(source.needs_extra),
        choices={field_name: list(registered(group)) for field_name, group in source.plugin_fields.items()},
        record_column=source.record_column,
    )


def _named(name: str, entry: EntryPoint) -> Kind:
    package = package_of(entry)
    declaration = f'CustomSource(receiver="{name}")'
    try:
        found = CustomSource(receiver=name).load()
    except (SourceError, ValueError) as error:
        return Kind("custom", name, declaration, {}, None, package, str(error))
    options = {
        parameter.name: _shown(PydanticUndefined if parameter.default is parameter.empty else parameter.default)
        for parameter in inspect.signature(found).parameters.values()
        if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    }
    rule = getattr(found, "source_rule", None) or SourceRule.NOT_SENT_AGAIN
    words = _BY_RULE[rule].words
    return Kind(
        "custom",
        name,
        declaration,
        options,
        words,
        package,
        guarantees=(words,),
        columns=_columns_of(found),
        record_column=getattr(found, "record_column", ""),
    )


def _columns_of(receiver_class: type) -> dict[str, str]:
    """Return the columns that the class declares; none if they are known only once it is created."""
    schema = getattr(receiver_class, "schema", None)
    if schema is not None:
        return {column.name: str(column.type) for column in schema}
    return {str(name): str(kind) for name, kind in getattr(receiver_class, "columns", ())}


def _shown(default: object) -> str | None:
    """Return a default as code, or None if there is none, so that the field must be given."""
    return None if default is PydanticUndefined else repr(default)


def _lines(kind: Kind) -> Table:
    """Return a kind's lines, as wide as the terminal. One table of all kinds would be too wide."""
    table = Table(box=None, show_header=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    if kind.error:
        table.add_row("  error", kind.error)
        return table
    fields = ", ".join(name if value is None else f"{name}={value}" for name, value in kind.fields.items())
    table.add_row("  fields", fields or "none")
    table.add_row("  columns", ", ".join(kind.columns) or "the receiver's")
    if kind.columns:
        table.add_row("  record", kind.record_column or "none: records= has nothing to parse")
    table.add_row("  guarantee", "; or ".join(kind.guarantees) or "the receiver's")
    for name, choices in kind.choices.items():
        table.add_row(f"  {name}", ", ".join(choices))
    if kind.extra is not None:
        table.add_row("  extra", f"{kind.extra}: {'installed' if kind.installed else 'not installed'}")
    return table


def sources(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """List the kinds of source and the receivers that installed packages register: Forebay's own, and others.

    Fields are shown with their defaults. The guarantee holds from the source to a registered block, also when a process
    is killed. An extra must be installed where the agent runs, for example by `pip install 'forebay[mqtt]'`; this list
    says whether it is installed in this environment. If your own package is missing from the list, it is not installed
    in this environment; docs/how-to/add-a-source.md says how to make one.

    For example:

        forebay sources
        forebay sources --json
    """
    kinds = known_kinds()
    if as_json:
        typer.echo(json.dumps({"sources": [asdict(kind) for kind in kinds]}))
    else:
        console = Console(highlight=False, markup=False)
        for kind in kinds:
            console.print(
                f"{kind.receiver or kind.kind}: {kind.declaration}, {kind.package}", style="bold", soft_wrap=True
            )
            console.print(_lines(kind))

"""`forebay sources`: the kinds of source that can be declared here, and the receivers of installed packages."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic_core import PydanticUndefined
from rich import box
from rich.console import Console
from rich.table import Table

from receiver_runtime.sources.base import SourceError, SourceRule
from receiver_runtime.sources.custom import CustomSource, named_receivers
from receiver_runtime.sources.source_registry import KINDS

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

# From the source to a registered block, when a receiver's process is killed.
_GUARANTEES = {
    SourceRule.NOT_SENT_AGAIN: "at most once",
    SourceRule.SENT_AGAIN: "at least once",
    SourceRule.OFFSETS: "exactly once",
}


@dataclass(frozen=True, slots=True)
class Kind:
    """A line of the list. `fields` are those of the declaration, or the options of a named receiver."""

    kind: str
    receiver: str | None
    declaration: str
    fields: dict[str, str | None]
    guarantee: str | None
    package: str
    error: str | None = None


def known_kinds() -> list[Kind]:
    """Forebay's own kinds by name, then the receivers by entry point. Imports those, to see what they take."""
    package = _package("forebay")
    own = [
        Kind(
            kind,
            None,
            source.__name__,
            {
                name: _shown(field.get_default(call_default_factory=True))
                for name, field in source.model_fields.items()
                if name != "kind"
            },
            None if source is CustomSource else _GUARANTEES[source.source_rule],
            package,
        )
        for kind, source in sorted(KINDS.items())
    ]
    return own + [_named(name, entry) for name, entry in sorted(named_receivers().items())]


def _named(name: str, entry: EntryPoint) -> Kind:
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "unknown"
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
    rule = getattr(found, "source_rule", None) or CustomSource.source_rule
    return Kind("custom", name, declaration, options, _GUARANTEES[rule], package)


def _shown(default: object) -> str | None:
    """A default as it would be written; None where there is none, so that the field must be given."""
    return None if default is PydanticUndefined else repr(default)


def _package(name: str) -> str:
    try:
        return f"{name} {version(name)}"
    except PackageNotFoundError:
        return name


def _table(kinds: list[Kind]) -> Table:
    table = Table(
        "kind", "declared as", "fields (with what they are unless given)", "guarantee", "package", box=box.SIMPLE
    )
    for kind in kinds:
        fields = ", ".join(name if value is None else f"{name}={value}" for name, value in kind.fields.items())
        table.add_row(
            kind.receiver or kind.kind,
            kind.declaration,
            kind.error or fields,
            kind.guarantee or ("-" if kind.error else "the receiver's"),
            kind.package,
        )
    return table


def sources(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,  # noqa: FBT002
) -> None:
    """List the kinds of source: Forebay's own, and the receivers that installed packages bring by entry point.

    The guarantee is what holds from the source to a registered block when a process is killed. A package of your own
    that is missing here is not installed in this environment; docs/how-to/custom-receiver.md says how it is made.
    """
    kinds = known_kinds()
    if as_json:
        typer.echo(json.dumps({"sources": [asdict(kind) for kind in kinds]}))
    else:
        Console(highlight=False, markup=False).print(_table(kinds))

"""Find the kinds of source that installed packages register, and turn a stored declaration back into its source.

A kind is an entry point of the group ``forebay.sources``: its name is the declarations' ``kind``, its value the class.
Forebay's own kinds are registered in the same way, and listed nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from receiver_runtime.sources import plugins
from receiver_runtime.sources.fields.secret import SecretError
from receiver_runtime.sources.source import UNKNOWN_FIELD, Source, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

#: A package registers its kinds of source in this entry point group: ``KIND = "package.module:Class"``.
GROUP = "forebay.sources"


def source_kinds() -> list[str]:
    """Return the names of all registered kinds, in order, without importing any."""
    return list(plugins.registered(GROUP))


def source_class(kind: object) -> type[Source]:
    """Import the class of a kind. Raises SourceError if no package registers it, or it can't be used."""
    if not isinstance(kind, str) or kind not in plugins.registered(GROUP):
        raise SourceError(f"kind: {kind!r} is no kind of source: use one of {', '.join(source_kinds())}")
    try:
        return plugins.load(GROUP, kind, Source)
    except plugins.PluginError as error:
        raise SourceError(f"kind: {error}") from error


def parse_source(declaration: Mapping[str, Any]) -> Source:
    """Return the source that a declaration (``Source.model_dump(mode="json")``) describes.

    Raises:
        SourceError: the kind is missing or unknown, or a field is wrong; names field, value and way out.
    """
    source = source_class(declaration.get("kind"))
    try:
        return source.model_validate(dict(declaration))
    except ValidationError as error:
        details = error.errors()
        secret = [detail["loc"] for detail in details if _is_of_secret(detail)]
        # What is said of a field around one would show what was given for it.
        shown = [one for one in details if not any(one["loc"] == loc[: len(one["loc"])] != loc for loc in secret)]
        raise SourceError("; ".join(_sentence(source, detail) for detail in shown)) from error


def _sentence(source: type[Source], detail: ErrorDetails) -> str:
    kind = source.model_fields["kind"].default
    field = ".".join(str(part) for part in detail["loc"]) or kind
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == UNKNOWN_FIELD:
        meant = detail["ctx"]
        return f"{meant['name']}: {kind} has no such field: {meant['hint']}"
    match detail["type"]:
        case "extra_forbidden":
            fields = ", ".join(source.model_fields)
            return f"{field}: {kind} has no such field (found {detail['input']!r}): use {fields}"
        case "missing":
            return f"{field}: {kind} needs it and it is missing: give it"
        case "value_error" if _is_of_secret(detail):
            # The value that was given may be the secret itself.
            return f"{field}: {message}"
        case _:
            return f"{field}: {message} (found {detail['input']!r}): correct it"


def _is_of_secret(detail: ErrorDetails) -> bool:
    return isinstance(detail.get("ctx", {}).get("error"), SecretError)

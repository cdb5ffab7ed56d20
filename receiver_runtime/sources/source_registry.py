"""Turn a stored declaration back into its source: look up the kind of source by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from receiver_runtime.sources import kinds
from receiver_runtime.sources.declarations.base import Source, SourceError
from receiver_runtime.sources.fields.secret import SecretError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic_core import ErrorDetails

#: Kinds of source, by the name in their declarations.
KINDS: Mapping[str, type[Source]] = {
    source.model_fields["kind"].default: source for source in map(vars(kinds).__getitem__, kinds.__all__)
}


def parse_source(declaration: Mapping[str, Any]) -> Source:
    """Return the source that a declaration (``Source.model_dump(mode="json")``) describes.

    Raises:
        SourceError: the kind is missing or unknown, or a field is wrong; names field, value and way out.
    """
    kind = declaration.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise SourceError(f"kind: {kind!r} is no kind of source: use one of {', '.join(sorted(KINDS))}")
    try:
        return KINDS[kind].model_validate(dict(declaration))
    except ValidationError as error:
        raise SourceError("; ".join(_sentence(kind, detail) for detail in error.errors())) from error


def _sentence(kind: str, detail: ErrorDetails) -> str:
    field = ".".join(str(part) for part in detail["loc"]) or kind
    message = detail["msg"].removeprefix("Value error, ")
    match detail["type"]:
        case "extra_forbidden":
            fields = ", ".join(KINDS[kind].model_fields)
            return f"{field}: {kind} has no such field (found {detail['input']!r}): use {fields}"
        case "missing":
            return f"{field}: {kind} needs it and it is missing: give it"
        case "value_error" if isinstance(detail.get("ctx", {}).get("error"), SecretError):
            # The value that was given may be the secret itself.
            return f"{field}: {message}"
        case _:
            return f"{field}: {message} (found {detail['input']!r}): correct it"

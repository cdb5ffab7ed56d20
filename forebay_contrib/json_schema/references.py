"""Join the documents of one JSON Schema: each reference says which document it is in, and where there.

A registry has the documents that a schema refers to by names. A reference is such a name, or relative to the nearest
``$id`` around it. It asks no server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urldefrag, urljoin

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_REFERENCE = "$ref"


def joined_documents(
    document: Mapping[str, Any], references: Sequence[tuple[str, str]] = ()
) -> Mapping[str, Mapping[str, Any]]:
    """Return documents by name, the first one as an empty name. Each ``$ref`` to a place of one is ``NAME#PLACE``.

    A ``$ref`` to a document that is not there stays as it is. Raises ValueError: a document is no JSON object.
    """
    documents = {"": document}
    for name, text in references:
        parsed = json.loads(text)
        if not isinstance(parsed, Mapping):
            raise ValueError(f"{name}, which the schema refers to, is no JSON object")  # noqa: TRY004  as all others
        documents[name] = parsed
    names: dict[str, str] = {}
    for name, one in documents.items():
        names |= _identifiers(one, _Place(name))
    names |= {name: f"{name}#" for name in documents if name}
    return {name: _with_places(one, _Place(name), names) for name, one in documents.items()}


@dataclass(frozen=True, slots=True)
class _Place:
    """Say where the schema with the nearest ``$id`` begins, which references are relative to, and what that is."""

    document: str
    pointer: str = ""
    base: str = ""

    def of(self, schema: Mapping[str, Any], pointer: str) -> _Place:
        """Return the place for what is in a schema at this pointer. Raises ValueError: its ``$id`` is no address."""
        identifier = schema.get("$id")
        # One that is only a fragment names a place, and nothing is relative to it.
        if not isinstance(identifier, str) or identifier.startswith("#"):
            return self
        return _Place(self.document, pointer, urljoin(self.base, identifier).rstrip("#"))


def _identifiers(value: Any, place: _Place, pointer: str = "") -> dict[str, str]:  # noqa: ANN401  any JSON
    """Return where each ``$id`` in a document is, as ``NAME#PLACE``. Raises ValueError: one is no address."""
    found: dict[str, str] = {}
    if isinstance(value, Mapping):
        inner = place.of(value, pointer)
        if inner is not place:
            found[inner.base] = f"{place.document}#{pointer}"
        place = inner
    for key, one in _inside(value):
        found |= _identifiers(one, place, f"{pointer}/{key}")
    return found


def _inside(value: Any) -> Iterable[tuple[str, Any]]:  # noqa: ANN401  any JSON
    """Return what is in a value, by names as pointers have them."""
    if isinstance(value, Mapping):
        return [(_named(key), one) for key, one in value.items()]
    return [(str(at), one) for at, one in enumerate(value)] if isinstance(value, list) else []


def _named(key: object) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def _with_places(value: Any, place: _Place, names: Mapping[str, str], pointer: str = "") -> Any:  # noqa: ANN401  any JSON
    if isinstance(value, Mapping):
        place = place.of(value, pointer)
        # A property may have this name too: its value is a schema, not a text.
        return {
            key: _placed(one, place, names)
            if key == _REFERENCE and isinstance(one, str)
            else _with_places(one, place, names, f"{pointer}/{_named(key)}")
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_with_places(one, place, names, f"{pointer}/{at}") for at, one in enumerate(value)]
    return value


def _placed(reference: str, place: _Place, names: Mapping[str, str]) -> str:
    if reference.startswith("#"):
        return f"{place.document}#{place.pointer}{reference[1:]}"
    for whole in (reference, urljoin(place.base, reference)):
        address, fragment = urldefrag(whole)
        if address in names:
            return names[address] + fragment
    return reference

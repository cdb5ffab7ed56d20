"""Join the documents of one JSON Schema: each reference says which document it is in, and where there.

A registry has the documents that a schema refers to by names. A reference is such a name, or relative to the ``$id`` of
its document. It asks nobody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urldefrag, urljoin

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    names = {str(one["$id"]).rstrip("#"): name for name, one in documents.items() if isinstance(one.get("$id"), str)}
    names |= {name: name for name in documents if name}
    return {name: _with_places(one, name, str(one.get("$id", "")), names) for name, one in documents.items()}


def _with_places(value: Any, document: str, base: str, names: Mapping[str, str]) -> Any:  # noqa: ANN401  any JSON
    if isinstance(value, Mapping):
        # A property may have this name too: its value is a schema, not a text.
        return {
            key: _placed(one, document, base, names)
            if key == _REFERENCE and isinstance(one, str)
            else _with_places(one, document, base, names)
            for key, one in value.items()
        }
    if isinstance(value, list):
        return [_with_places(one, document, base, names) for one in value]
    return value


def _placed(reference: str, document: str, base: str, names: Mapping[str, str]) -> str:
    if reference.startswith("#"):
        return document + reference
    for whole in (reference, urljoin(base, reference)):
        address, place = urldefrag(whole)
        if address in names:
            return f"{names[address]}#{place}"
    return reference

"""Load the views for people: stable, documented, used by `forebay status` and the runbooks.

Each view is a file beside this one: CREATE VIEW, then its comments. A view's comment says what it shows and what
reading it costs; each column's says its unit and when it is null. Published names stay; a new column goes at the end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from graphlib import TopologicalSorter
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_OTHER_RELATION = re.compile(r"\bforebay\.(\w+)")
_DESCRIBED_COLUMN = re.compile(r'^COMMENT ON COLUMN forebay\.\w+\."?(\w+)"? IS', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class View:
    """Hold a view: the text of its file, and the columns that the file describes, in their order."""

    source: str
    columns: tuple[str, ...]


def _load() -> Mapping[str, View]:
    """Read every file; each view comes after those that its query reads."""
    files = sorted(
        (file for file in resources.files(__name__).iterdir() if file.name.endswith(".sql")), key=lambda file: file.name
    )
    sources = {file.name.removesuffix(".sql"): file.read_text(encoding="utf-8") for file in files}
    # Sorted, because the order goes into the fingerprint and must be the same in each process.
    reads = {
        name: sorted(sources.keys() & set(_OTHER_RELATION.findall(source)) - {name}) for name, source in sources.items()
    }
    return {
        name: View(sources[name], tuple(_DESCRIBED_COLUMN.findall(sources[name])))
        for name in TopologicalSorter(reads).static_order()
    }


# In the order of creation; they are dropped in reverse.
VIEWS = _load()

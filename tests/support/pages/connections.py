"""Read docs/reference/connections.md: how many connections a process may hold, by its `application_name`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "connections.md"

_ROW = re.compile(r"^\|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|$", re.MULTILINE)
_HEAD = ("process", "`application_name`", "keeps", "at most")
_CODE = re.compile(r"`([^`]+)`")
# What stands for a name or for digits in an application's name.
_VARIABLE = re.compile(r" ?…|PIPELINE|\d+")


@dataclass(frozen=True, slots=True)
class Row:
    """One row. `names`: patterns of `application_name`; none: Dagster's own. `most`: None if there is no bound."""

    process: str
    names: tuple[re.Pattern[str], ...]
    most: int | None

    def matches(self, application_name: str) -> bool:
        """Return whether the row counts this session."""
        if not self.names:
            return not application_name.startswith("forebay")
        return any(name.fullmatch(application_name) for name in self.names)


def connections_table(*, concurrent_outputs: int = 1) -> list[Row]:
    """Return the table's rows, in its order: the first that matches a name counts it."""
    head, _dashes, *rows = [
        [cell.strip() for cell in match.groups()] for match in _ROW.finditer(PAGE.read_text(encoding="utf-8"))
    ]
    assert tuple(head) == _HEAD
    return [
        Row(process, tuple(_pattern(name) for name in _CODE.findall(names)), _most(most, concurrent_outputs))
        for process, names, _keeps, most in rows
    ]


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in _VARIABLE.split(name)))


def _most(cell: str, concurrent_outputs: int) -> int | None:
    if cell == "no bound":
        return None
    own, _, more = cell.partition(" + ")
    return int(own) + (concurrent_outputs if more else 0)

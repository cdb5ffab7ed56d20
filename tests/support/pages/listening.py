"""Read the table "What listens" of docs/security.md, and compare it with the sockets of a running system."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.machine.open_sockets import Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.support.machine.open_sockets import OpenSocket

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
ALWAYS = ("always", "while Spark runs")
"""The column "when" of sockets that each system has which has run a batch."""

_ROW = re.compile(r"^\|(?P<cells>(?:[^|]*\|){6})$", re.MULTILINE)
_CODE = re.compile(r"`([^`]+)`")
_HEAD = ("what", "process", "protocol", "address", "when", "who may connect")


@dataclass(frozen=True, slots=True)
class Row:
    """One row. `process`: words of the command line; `addresses`: exact ones, or patterns of paths."""

    what: str
    process: tuple[str, ...]
    protocols: tuple[Protocol, ...]
    addresses: tuple[str, ...]
    when: str

    def allows(self, found: OpenSocket, home: Path) -> bool:
        """Return whether the row has this socket, at this address and at no other."""
        places = [place.replace("FOREBAY_HOME", str(home)) for place in self.addresses]
        return (
            found.protocol in self.protocols
            and all(word in found.command for word in self.process)
            and (
                any(fnmatchcase(found.address, place) for place in places)
                if found.protocol is Protocol.UNIX
                else found.address in places
            )
        )


def listening_table(text: str | None = None) -> list[Row]:
    """Return the rows of the table in the page, or in `text`."""
    page = PAGE.read_text(encoding="utf-8") if text is None else text
    section = page[page.index("## What listens") :]
    section = section[: section.index("\n## ")]
    head, _dashes, *rows = [
        [cell.strip() for cell in match["cells"].split("|")[:-1]] for match in _ROW.finditer(section)
    ]
    assert tuple(head) == _HEAD
    return [
        Row(
            what,
            tuple(_CODE.findall(process)),
            tuple(Protocol(one.strip()) for one in protocol.split(",")),
            tuple(_CODE.findall(address)),
            when,
        )
        for what, process, protocol, address, when, _who in rows
    ]


def compare(rows: Iterable[Row], found: Iterable[OpenSocket], home: Path) -> tuple[list[OpenSocket], list[str]]:
    """Return the sockets that no row allows, and the rows that each system has and that were not found."""
    rows, found = list(rows), list(found)
    unknown = sorted(one for one in found if not any(row.allows(one, home) for row in rows))
    missing = [row.what for row in rows if row.when in ALWAYS and not any(row.allows(one, home) for one in found)]
    return unknown, missing

"""Hold the findings of commands that check something: what was looked at, how it is, what to do about it.

`forebay doctor` and `forebay validate` print findings. It checks nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from tracker_store.host.terminal_text import escaped

if TYPE_CHECKING:
    from collections.abc import Iterable


class Health(StrEnum):
    """Name a check's outcome. WARNING: it works, but something is worth knowing."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


STYLES: Final = {Health.OK: "green", Health.WARNING: "yellow", Health.FAILED: "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """Hold the result of one check. way_out: what to do about it; never empty if the check failed."""

    check: str
    health: Health
    found: str
    way_out: str = ""


def all_well(findings: Iterable[Finding]) -> bool:
    """Return whether nothing failed. Warnings count as well."""
    return all(finding.health is not Health.FAILED for finding in findings)


def findings_table(findings: Iterable[Finding]) -> Table:
    """Return the findings as lines that fit any terminal, what to do below what was found."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        said = f"{finding.check}: {finding.found}"
        if finding.way_out and finding.health is not Health.OK:
            said += f"\n{finding.way_out}"
        table.add_row(Text(str(finding.health), style=STYLES[finding.health]), Text(escaped(said)))
    return table

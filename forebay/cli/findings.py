"""A finding of a command that checks something: what was looked at, how it is, what to do about it.

`forebay doctor` and `forebay validate` print findings. It checks nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable


class Health(StrEnum):
    """A check's outcome. WARNING: it works, but something is worth knowing."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


STYLES: Final = {Health.OK: "green", Health.WARNING: "yellow", Health.FAILED: "bold red"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. way_out: what to do about it; never empty if the check failed."""

    check: str
    health: Health
    found: str
    way_out: str = ""


def all_well(findings: Iterable[Finding]) -> bool:
    """Return whether nothing failed. Warnings count as well."""
    return all(finding.health is not Health.FAILED for finding in findings)

"""Find the name that was meant where a name does not exist: of a stream, a field, an option, whatever people type.

Every room may import this module, which imports none of ours: so all of Forebay asks "did you mean" by one rule.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: How much alike two names are, from 0 to 1, one of which may be meant by the other.
ALIKE = 0.6


def close_name(given: str, names: Iterable[str], *, alike: float = ALIKE) -> str | None:
    """Return the name that is most like the given one, whatever their case; None if none is `alike` enough."""
    folded: dict[str, str] = {}
    for name in names:
        folded.setdefault(name.casefold(), name)
    close = get_close_matches(given.casefold(), folded, n=1, cutoff=alike)
    return folded[close[0]] if close else None


def did_you_mean(given: str, names: Iterable[str]) -> str:
    """Return "did you mean NAME?", or "" if no name is like the given one."""
    meant = close_name(given, names)
    return "" if meant is None else f"did you mean {meant}?"

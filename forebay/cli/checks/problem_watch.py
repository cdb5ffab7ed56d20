"""Tell the terminal of `forebay up` what became wrong in the system, and what no longer is: one line for each.

Owns when a line is due. What is wrong is what `forebay status` calls a problem; it changes nothing.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from orchestration.status_page.problems import Problem, problems
from orchestration.status_page.system_status import status_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa

#: Seconds between two looks, each of which costs a few statements.
LOOK_SECONDS = 5.0
#: Seconds for which a problem that comes and goes is not told of again.
QUIET_SECONDS = 60.0
# Characters of a line: a reason may have a thousand, which `forebay status` shows.
_MOST = 300
# What counts on while a problem lasts: times, ages, numbers of batches; not the number of a receiver, or in a name.
_NUMBERS = re.compile(r"(?<![\w/.:-])\d[\d,.:TZ-]*")
# What depends on a number: the end of its noun, and the verb.
_COUNTED = re.compile(r"# (\w+?)(?:es|e|s)?\b( (?:is|are|was|were|has|have|does|do)\b)?")


class ProblemWatch:
    """Compare the system's problems with those of the look before; see the module.

    Args:
        tell: called with each line.
        clock: seconds, which never go back.
    """

    def __init__(self, tell: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._tell = tell
        self._clock = clock
        self._next = 0.0
        self._known: dict[str, Problem] = {}
        self._told: dict[str, float] = {}

    def look(self, connection: sa.Connection) -> None:
        """Tell of changes, if a look is due. Raises what the driver log raises."""
        if self._clock() < self._next:
            return
        self.compare(problems(status_of(connection)))
        self._next = self._clock() + LOOK_SECONDS

    def compare(self, found: list[Problem]) -> None:
        """Tell of those that are new, and of those that are gone."""
        now = self._clock()
        there = {_key(problem.what): problem for problem in found}
        said = {key for key, at in self._told.items() if now - at < QUIET_SECONDS}
        for key in there.keys() - self._known.keys() - said:
            self._say(key, there[key].line)
        lasting = {problem.about for problem in found if problem.about}
        for key in self._known.keys() - there.keys():
            if key not in said and self._known[key].about not in lasting:
                self._say(key, f"no longer: {self._known[key].what}")
        # One that went unsaid goes on being known, until its end may be told.
        unsaid = {
            key: one
            for key, one in self._known.items()
            if key in said and key not in there and one.about not in lasting
        }
        self._known = {**there, **unsaid}

    def _say(self, key: str, line: str) -> None:
        self._told[key] = self._clock()
        self._tell(line if len(line) <= _MOST else f"{line[: _MOST - 1]}…")


def _key(what: str) -> str:
    """Return what stays the same while a problem lasts: one request refused, and 288 requests refused, are one."""
    return _COUNTED.sub(lambda counted: f"# {counted[1]}{' #' if counted[2] else ''}", _NUMBERS.sub("#", what))

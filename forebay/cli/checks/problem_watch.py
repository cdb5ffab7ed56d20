"""Tell the terminal of `forebay up` what became wrong in the system, and what no longer is: one line for each.

Owns when a line is due, and that the line which ends a problem repeats the words of the line that began it. What is
wrong is what `forebay status` calls a problem; it changes nothing.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestration.status_page.problems import Problem, problems
from orchestration.status_page.reasons import LONGEST
from orchestration.status_page.system_status import status_of
from tracker_store.host.code_in_force import CodeState
from tracker_store.long_texts import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    import sqlalchemy as sa

#: Seconds between two looks, each of which costs a few statements.
LOOK_SECONDS = 5.0
#: Seconds for which a problem that comes and goes is not told of again.
QUIET_SECONDS = 60.0
# What counts on while a problem lasts: times, ages, numbers of batches; not the number of a receiver, or in a name.
_NUMBERS = re.compile(r"(?<![\w/.:-])\d[\d,.:TZ-]*")
# What depends on a number: the end of its noun, and the verb.
_COUNTED = re.compile(r"# (\w+?)(?:es|e|s)?\b( (?:is|are|was|were|has|have|does|do)\b)?")


@dataclass(slots=True, eq=False)
class _Said:
    """Hold a problem that was reported and has not ended: the words of its line, and how to find it again."""

    words: str
    key: str
    about: str

    def has_words_of(self, problem: Problem) -> bool:
        return self.key == _key(problem.what)

    def is_trouble_of(self, problem: Problem) -> bool:
        return bool(self.about) and self.about == problem.about


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
        self._said: list[_Said] = []
        # When something was told of a key, for as long as it counts.
        self._told: dict[str, float] = {}

    def look(self, connection: sa.Connection, pipelines: Collection[str]) -> None:
        """Tell of changes, if a look is due. Raises what the driver log raises.

        pipelines: those of the code in force; what is not in force is told by others.
        """
        if self._clock() < self._next:
            return
        self.compare(problems(status_of(connection, code=CodeState(pipelines=pipelines))))
        self._next = self._clock() + LOOK_SECONDS

    def compare(self, found: list[Problem]) -> None:
        """Tell of those that are gone, and of those that are new or have other words."""
        now = self._clock()
        self._told = {key: at for key, at in self._told.items() if now - at < QUIET_SECONDS}
        lasting = _matched(self._said, found)
        for said in [one for one in self._said if one not in lasting.values()]:
            # One that has just been told of stays, until its end may be told.
            if said.key not in self._told:
                self._said.remove(said)
                self._say(said.key, f"no longer: {said.words}")
        for problem in found:
            key, match = _key(problem.what), lasting.get(problem)
            if match is not None:
                match.about = problem.about
            if key in self._told or (match is not None and match.key == key):
                continue
            if match is None:
                self._said.append(_Said(problem.what, key, problem.about))
            else:
                match.words, match.key = problem.what, key
            self._say(key, problem.line)

    def _say(self, key: str, line: str) -> None:
        self._told[key] = self._clock()
        self._tell(one_line(line, LONGEST))


def _matched(said: Iterable[_Said], found: Iterable[Problem]) -> dict[Problem, _Said]:
    """Return which of the problems that were said lasts in each one found: in the same words, else in other words."""
    left = list(said)
    matched: dict[Problem, _Said] = {}
    for is_same in (_Said.has_words_of, _Said.is_trouble_of):
        for problem in found:
            match = None if problem in matched else next((one for one in left if is_same(one, problem)), None)
            if match is not None:
                matched[problem] = match
                left.remove(match)
    return matched


def _key(what: str) -> str:
    """Return what stays the same while a problem lasts: one request refused, and 288 requests refused, are one."""
    return _COUNTED.sub(lambda counted: f"# {counted[1]}{' #' if counted[2] else ''}", _NUMBERS.sub("#", what))

"""How far the property searches go: a quarter of their examples in `make test`, all of them in `make searches`.

`make test` draws the same examples each time, so that one state of the code has one result: hundreds of them find no
more the second time. `make searches` draws other ones each time, for all properties. A test that scales its examples
with `examples` has the mark `search`. FOREBAY_TEST_SEARCH chooses: ``whole`` searches; ``brief`` is for a second run of
the same tests beside the first, as the gate's on the newest Python.
"""

from __future__ import annotations

import os

_MOST = 150  # examples of `make test`
_BRIEF_PART = 4  # of the examples of `make test`, one in this many is in a brief run
_DEFAULT = 100  # examples that hypothesis draws for a property that names no number


def is_whole() -> bool:
    """Return whether this run searches: all examples, and other ones than the last time."""
    return os.environ.get("FOREBAY_TEST_SEARCH") == "whole"


def is_brief() -> bool:
    """Return whether another run of the same tests has the usual examples."""
    return os.environ.get("FOREBAY_TEST_SEARCH") == "brief"


def examples(whole: int) -> int:
    """Return how many of `whole` examples, or of what they are to have seen, this run has; at least one."""
    if is_whole():
        return whole
    return _part(min(whole // 4, _MOST))


def default_examples() -> int:
    """Return how many examples this run draws for a property that names no number."""
    return _part(_DEFAULT)


def _part(usual: int) -> int:
    return max(usual // _BRIEF_PART if is_brief() else usual, 1)

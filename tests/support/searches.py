"""How far the property searches go: a quarter of their examples in `make test`, all of them in `make searches`.

`make test` draws the same examples each time, so that one state of the code has one result; `make searches` draws other
ones each time, for all properties. A test that scales its examples with `examples` has the mark `search`.
"""

from __future__ import annotations

import os


def is_whole() -> bool:
    """Return whether this run searches: all examples, and other ones than the last time."""
    return os.environ.get("FOREBAY_TEST_SEARCH") == "whole"


def examples(whole: int) -> int:
    """Return how many of `whole` examples, or of what they are to have seen, this run has; at least one."""
    return whole if is_whole() else max(whole // 4, 1)

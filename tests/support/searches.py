"""How far the property searches go: a quarter of their examples in `make test`, all of them in `make searches`.

A test that scales its examples with `examples` has the mark `search`, so that `make searches` finds it.
"""

from __future__ import annotations

import os

_PART = 1 if os.environ.get("FOREBAY_TEST_SEARCH") == "whole" else 4


def examples(whole: int) -> int:
    """Return how many of `whole` examples, or of what they are to have seen, this run has; at least one."""
    return max(whole // _PART, 1)

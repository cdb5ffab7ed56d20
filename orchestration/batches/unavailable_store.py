"""Tells whether an attempt failed because the block store was unreachable, or a block's key was missing.

Either says nothing about the batch.

A block that is missing, or damaged, in a store that can be reached is another thing: the batch fails, and is counted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from receiver_runtime.block_store.frames.errors import BlockKeyError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

# A Spark task's error comes as the text of its Python stack.
_IN_TEXT = re.compile(rf"\b(?:{StoreUnavailableError.__name__}|{BlockKeyError.__name__}): (?P<what>[^\n]+)")


def unavailable_store(error: BaseException) -> str | None:
    """Return the error if the store could not be reached, or a key is missing; None for any other reason."""
    for cause in _chain(error):
        if isinstance(cause, StoreUnavailableError | BlockKeyError):
            return str(cause)
        if type(cause).__module__.partition(".")[0] in ("pyspark", "py4j") and (found := _IN_TEXT.search(str(cause))):
            return found["what"].strip()
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__

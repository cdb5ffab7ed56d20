"""Tells whether an attempt failed because the block store or a target was unreachable, or a block's key was missing.

None of them says anything about the batch.

A block that is missing, or damaged, in a store that can be reached is another thing: the batch fails, and is counted.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from orchestration.declarations.sink import TargetUnavailableError
from receiver_runtime.block_store.frames.errors import BlockKeyError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

# A Spark task's error comes as the text of its Python stack.
_KINDS = (StoreUnavailableError, BlockKeyError, TargetUnavailableError)
_IN_TEXT = re.compile(rf"\b(?:{'|'.join(kind.__name__ for kind in _KINDS)}): (?P<what>[^\n]+)")


def unavailable_store(error: BaseException) -> str | None:
    """Return the error if the store or a target could not be reached, or a key is missing; None: another reason."""
    for cause in causes(error, hidden=True):
        if isinstance(cause, _KINDS):
            return str(cause)
        if type(cause).__module__.partition(".")[0] in ("pyspark", "py4j") and (found := _IN_TEXT.search(str(cause))):
            return found["what"].strip()
    return None


def causes(error: BaseException | None, *, hidden: bool = False) -> Iterator[BaseException]:
    """Yield the error and what it came from; `hidden`: also what `raise … from None` hides from people."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ and not hidden else error.__context__)

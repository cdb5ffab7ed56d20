"""Tells whether an output failed because the block store or a target was unreachable, or a block's key was missing.

None of them says anything about the batch.

A block that is missing, or damaged, in a store that can be reached is another thing: the batch fails, and is counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestration.declarations.sink import TargetUnavailableError
from receiver_runtime.block_store.frames.errors import BlockKeyError, StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: The block store, as `Unavailable.place` has it.
BLOCK_STORE = ("block store",)
# A Spark task's error comes as the text of its Python stack.
_KINDS = (StoreUnavailableError, BlockKeyError, TargetUnavailableError)
_IN_TEXT = re.compile(rf"\b(?P<kind>{'|'.join(kind.__name__ for kind in _KINDS)}): (?P<what>[^\n]+)")


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Hold what is missing or unreachable, as a message, and the place that other outputs can't reach either.

    `place`: BLOCK_STORE, or the beginning of the keys of the sinks' places there; empty: it concerns this output alone.
    """

    message: str
    place: tuple[str, ...] = ()


def unavailable_store(error: BaseException) -> Unavailable | None:
    """Return what is unavailable if the store or a target could not be reached, or a key is missing; else None."""
    for cause in causes(error, hidden=True):
        if isinstance(cause, _KINDS):
            place = cause.unreachable if isinstance(cause, TargetUnavailableError) else ()
            return Unavailable(str(cause), BLOCK_STORE if isinstance(cause, StoreUnavailableError) else place)
        if type(cause).__module__.partition(".")[0] in ("pyspark", "py4j") and (found := _IN_TEXT.search(str(cause))):
            is_store = found["kind"] == StoreUnavailableError.__name__
            return Unavailable(found["what"].strip(), BLOCK_STORE if is_store else ())
    return None


def causes(error: BaseException | None, *, hidden: bool = False) -> Iterator[BaseException]:
    """Yield the error and what it came from; `hidden`: also what `raise … from None` hides from people."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ and not hidden else error.__context__)

"""Hands over records with the positions that they were read from, for sources that can be read again (Kafka, files).

Owns what is under way, and whether the driver log has said that another receiver has read on: then all that is under
way is dropped, and its owner asks for every position again (``recover``). Knows nothing of what is read. The reader's
thread alone.
"""

from __future__ import annotations

from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracker_store.errors import OffsetConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from receiver_runtime.attached_supervisor import LinkedPath
    from receiver_runtime.receiver import Receiver
    from tracker_store.blocks import NewBlock, OffsetLink


@dataclass(frozen=True, slots=True)
class _UnderWay:
    future: Future[NewBlock]
    links: Sequence[OffsetLink]


class LinkedHandOver:
    """See the module. ``on_registered`` is given the links of each block that the driver log has, in order."""

    def __init__(self, receiver: Receiver, on_registered: Callable[[Sequence[OffsetLink]], None]) -> None:
        self._receiver = receiver
        self._path: LinkedPath = receiver.supervisor.block_path
        self._on_registered = on_registered
        self._under_way: list[_UnderWay] = []
        self._conflict = False

    @property
    def has_conflict(self) -> bool:
        """Whether another receiver has read on; nothing goes in until ``recover``."""
        return self._conflict

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._under_way

    def push(self, batch: pa.RecordBatch, links: Sequence[OffsetLink]) -> bool:
        """Hand over a block's records; False where another receiver has read on, and they are dropped."""
        try:
            future = self._path.push_linked(batch, links)
        except OffsetConflictError as error:
            self._note_conflict(error)
            return False
        self._under_way.append(_UnderWay(future, links))
        return True

    def collect(self) -> None:
        """Note what has been registered, in order. Raises what the receiver was refused with, for good."""
        while self._under_way and self._under_way[0].future.done():
            answered = self._under_way.pop(0)
            error = answered.future.exception()
            if isinstance(error, OffsetConflictError):
                self._note_conflict(error)
            elif error is not None:
                raise error
            else:
                self._on_registered(answered.links)

    def wait(self) -> None:
        """Until all that is under way is registered, or refused."""
        wait([one.future for one in self._under_way])

    def settle(self) -> None:
        """Wait, and note what came of it. Raises as ``collect`` does."""
        self.wait()
        self.collect()

    def recover(self) -> None:
        """After a conflict: drop what is under way. The owner asks the driver log for every position."""
        self.settle()
        self._path.go_on_after_refusal()
        self._conflict = False

    def _note_conflict(self, error: OffsetConflictError) -> None:
        if not self._conflict:
            self._receiver.report_error("another receiver has read on, what was read here is dropped", error)
        self._conflict = True

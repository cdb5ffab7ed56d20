"""Decides which receiver of a stream reads which file. Each receiver decides alone, by who is alive in the driver log.

Correctness does not depend on it. If two receivers both read a file, the links of its positions let only one of them
register each part, at the price of reading again. What must not happen is that no receiver reads a file. So a receiver
whose heartbeat stands still is not counted, and a receiver always counts itself.
"""

from __future__ import annotations

import hashlib
import threading
import time
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.reporting.receiver_driver_log import ReceiverDriverLog
    from tracker_store.blocks.source_positions import Peer

_log = structlog.get_logger(__name__)

_LOOK_SECONDS = 1.0  # how often to ask the driver log
_SILENT_SECONDS = 4.0  # a receiver whose heartbeat has not moved for this long is not counted
_STOP_SECONDS = 1.0  # how long a stop waits for the thread
#: How long to wait before reading files that became ours, until their last reader has seen the change, too.
HAND_OVER_SECONDS = 1.5


class Sharing:
    """Know which receivers share the files. A thread asks the driver log. Call ``start`` and ``stop`` once each.

    Args:
        per_host: only receivers on the same host see the same files.
    """

    def __init__(self, positions: ReceiverDriverLog, *, per_host: bool) -> None:
        self._positions = positions
        self._per_host = per_host
        self._stopping = threading.Event()
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._run, name="files' receivers", daemon=True)
        self._moved: dict[tuple[int, int], tuple[int, float]] = {}
        self._host = ""
        self._state: tuple[frozenset[int], int, float] = (frozenset({positions.receiver_id}), 0, 0.0)

    def start(self) -> None:
        """Start to ask."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. If it is waiting for an answer, it ends on its own soon after."""
        self._stopping.set()
        self._thread.join(_STOP_SECONDS)

    def wait_for_answer(self) -> str | None:
        """Wait until the receivers are known. Return our host, or None if we were stopped before that."""
        while not self._answered.wait(0.05):
            if self._stopping.is_set():
                return None
        return self._host

    def give_up(self) -> None:
        """Ask the thread to end; returns at once."""
        self._stopping.set()

    @property
    def is_alone(self) -> bool:
        """Return whether there is no other receiver."""
        return len(self._state[0]) == 1

    @property
    def version(self) -> int:
        """Return a number that changes with the set of receivers that share the files."""
        return self._state[1]

    def settled(self) -> bool:
        """Return whether the other receivers have had time to see a change."""
        return time.monotonic() >= self._state[2]

    def is_ours(self, key: str) -> bool:
        """Return whether this receiver reads this file."""
        members = self._state[0]
        if len(members) == 1:
            return True
        return max(members, key=lambda one: _weight(one, key)) == self._positions.receiver_id

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._note(self._positions.peers())
                if self._host:
                    self._answered.set()
            except Exception as error:  # noqa: BLE001  it asks again; until then it counts the same receivers
                _log.info("who shares the files is not known now", error=str(error))
            self._stopping.wait(_LOOK_SECONDS if self._answered.is_set() else 0.1)

    def _note(self, peers: Sequence[Peer]) -> None:
        now = time.monotonic()
        own = self._positions.receiver_id
        self._host = next((peer.host for peer in peers if peer.receiver_id == own), self._host)
        moved = {}
        for peer in peers:
            key = (peer.receiver_id, peer.process_id)
            before = self._moved.get(key)
            moved[key] = before if before is not None and before[0] == peer.heartbeat else (peer.heartbeat, now)
        self._moved = moved
        members = frozenset(
            {own}
            | {
                peer.receiver_id
                for peer in peers
                if now - moved[peer.receiver_id, peer.process_id][1] < _SILENT_SECONDS
                and (not self._per_host or peer.host == self._host)
            }
        )
        if members == self._state[0]:
            return
        # Wait only for new receivers: one that is gone hands nothing over, and has been silent for long.
        came = members - self._state[0]
        wait_until = now + HAND_OVER_SECONDS if came else self._state[2]
        self._state = (members, self._state[1] + 1, wait_until)


def _weight(receiver_id: int, key: str) -> bytes:
    return hashlib.blake2b(f"{receiver_id}/{key}".encode("utf-8", "surrogateescape"), digest_size=8).digest()

"""Which receiver of a stream reads which file: each by itself, from who is alive in the driver log.

Nothing here is relied on. Two that believe a file to be theirs are told apart by the links of its positions, at the
price of reading again; what must not happen is that nobody believes it. So whoever's heartbeat stands still is not
counted, and one's own receiver always is.
"""

from __future__ import annotations

import hashlib
import threading
import time
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from receiver_runtime.driver_log import SourcePositions
    from tracker_store.source_positions import Peer

_log = structlog.get_logger(__name__)

_LOOK_SECONDS = 1.0
_SILENT_SECONDS = 4.0
_STOP_SECONDS = 1.0
#: What becomes ours is read so much later: until then who had it has seen that it is ours.
HAND_OVER_SECONDS = 1.5


class Sharing:
    """Who shares the files, by a thread that asks the driver log. ``start`` once, ``stop`` once.

    Args:
        per_host: only receivers on the same host see the same files.
    """

    def __init__(self, positions: SourcePositions, *, per_host: bool) -> None:
        self._positions = positions
        self._per_host = per_host
        self._stopping = threading.Event()
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._run, name="files' receivers", daemon=True)
        self._moved: dict[tuple[int, int], tuple[int, float]] = {}
        self._host = ""
        self._state: tuple[frozenset[int], int, float] = (frozenset({positions.receiver_id}), 0, 0.0)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> None:
        """End; one that waits for an answer ends by itself, soon after."""
        self._stopping.set()
        self._thread.join(_STOP_SECONDS)

    def wait_for_answer(self) -> str | None:
        """Until it is known who there is; our host, or None when we were stopped before."""
        while not self._answered.wait(0.05):
            if self._stopping.is_set():
                return None
        return self._host

    def give_up(self) -> None:
        """End soon; returns at once."""
        self._stopping.set()

    @property
    def is_alone(self) -> bool:
        """Is there no other receiver?"""
        return len(self._state[0]) == 1

    @property
    def version(self) -> int:
        """Another one: others share the files now."""
        return self._state[1]

    def settled(self) -> bool:
        """Have the others had time to see who there is?"""
        return time.monotonic() >= self._state[2]

    def is_ours(self, key: str) -> bool:
        """Is this file ours to read?"""
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
            except Exception as error:  # noqa: BLE001  asked again; until then those count who did before
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
        # Who is gone hands nothing over, and has been silent for long.
        came = members - self._state[0]
        wait_until = now + HAND_OVER_SECONDS if came else self._state[2]
        self._state = (members, self._state[1] + 1, wait_until)


def _weight(receiver_id: int, key: str) -> bytes:
    return hashlib.blake2b(f"{receiver_id}/{key}".encode("utf-8", "surrogateescape"), digest_size=8).digest()

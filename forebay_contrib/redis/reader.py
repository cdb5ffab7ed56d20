"""Read a consumer group's share of Redis streams into blocks, on one thread, from one ``on_start`` to its ``on_stop``.

Two records decide what was read: the group's list of pending entries (delivered, not acknowledged) in Redis, and the
keys of registered entries in the driver log. An entry is acknowledged when its block is registered, so that Redis
delivers all others again. An entry that is delivered again although it is registered is recognised by its key and left
out.

- *At first* this receiver's own pending entries are read again, then new ones.
- *Entries of others* that were delivered long ago are taken over: their receiver is gone, or makes no progress.
- *A lost connection* is a restart, with the supervisor's pauses.
- *At a stop* nothing more is read. What was read is handed over, and acknowledged when it is registered.
- *Entries that the group will never read* are reported, with their number if it can be known: trimmed ones, and those
  past which someone moved the group (``consumer_groups``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import structlog

from forebay_contrib.redis.client import connect
from forebay_contrib.redis.consumer_groups import ConsumerGroups, group_of, time_of
from forebay_contrib.redis.records import StreamEntry, batch_of, keys_of, sorted_out
from receiver_runtime.receivers.keyed_hand_over import HandOverClosedError, KeyedHandOver
from tracker_store.receivers.source_lag import Unread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    import redis

    from forebay_contrib.redis.declaration import RedisStreams
    from receiver_runtime.receivers.keyed_blocks import HandedOver
    from receiver_runtime.supervisor.receiver import Receiver
    from tracker_store.receivers.source_lag import Place

_log = structlog.get_logger(__name__)

# Entries of one request. Their size is not known at first, so it begins with few, and grows by this factor.
_MOST_ENTRIES = 10_000
_LEAST_ENTRIES = 10
_MORE_EACH_TIME = 4
# How long Redis waits for new entries; acknowledgements may have to wait this long.
_BLOCK_MILLISECONDS = 50
_ACKNOWLEDGED_AT_ONCE = 5_000  # ids, at most, of one XACK
# Batches, at most, that are handed over and not registered yet.
_MOST_UNDER_WAY = 16
# How long to wait for room to read more.
_PAUSE_SECONDS = 0.01


class RedisReader:
    """Read entries; see the module. Call ``start`` and ``stop`` once."""

    def __init__(self, receiver: Receiver, source: RedisStreams) -> None:
        self._receiver = receiver
        self._supervisor = receiver.supervisor
        self._source = source
        self._consumer = f"{source.consumer}-{self._supervisor.receiver_id}"
        self._hand_over = KeyedHandOver(self._supervisor, most_in_flight=_MOST_UNDER_WAY)
        self._stopping = threading.Event()
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"redis {self._consumer}", daemon=True)
        # Set by the hand-over's thread: entries to acknowledge, or the error because of which nothing more may be.
        self._registered: deque[Sequence[StreamEntry]] = deque()
        self._failed: BaseException | None = None
        # Only the thread uses everything below.
        self._client: redis.Redis
        self._held: set[str] = set()
        self._bytes_each = 1000.0
        self._at_once = _LEAST_ENTRIES
        self._claim_at = time.monotonic() + source.claim_after / 2
        self._groups = ConsumerGroups(receiver, source, self._consumer, self._held, self._stopping)

    def start(self) -> None:
        """Begin to read; return at once."""
        self._thread.start()

    def stop(self) -> None:
        """End; return when what was handed over is registered and acknowledged, or refused."""
        self._stopping.set()
        self._hand_over.close()
        self._settled.set()
        self._thread.join()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._client = connect(self._source)
        except Exception as error:  # noqa: BLE001  a secret or a file that is missing
            self._receiver.restart("the Redis client could not be made", error)
            return
        try:
            self._groups.open(self._client)
            self._receiver.report_connected(self._source.address)
            self._read_own()
            while not self._stopping.is_set():
                self._acknowledge()
                self._groups.look(self._client)
                self._take_over()
                self._read_new()
                self._receiver.report_unread(self._find_unread)
        except HandOverClosedError:
            pass
        except BaseException as error:  # noqa: BLE001  reported, and started again
            if not self._stopping.is_set():
                self._receiver.restart("reading from Redis failed", error)
                self._client.close()
                return
        self._leave()

    def _leave(self) -> None:
        self._settled.wait()
        try:
            self._acknowledge()
            self._groups.look(self._client, now=True)
        except Exception as error:  # noqa: BLE001  they are delivered again, and left out by their keys
            _log.info("the last entries could not be acknowledged", error=str(error))
        self._client.close()

    def _find_unread(self) -> dict[Place, Unread]:
        """Return what the group has not read or not acknowledged, where Redis knows it."""
        found: dict[Place, Unread] = {}
        for stream in self._source.streams:
            about = group_of(self._client, stream, self._source.group)
            # Before Redis 7, and after some deletions, it does not know how many entries are not read.
            if about is not None and about.get("lag") is not None:
                found[stream, self._source.group] = Unread(
                    max(0, about["lag"] - self._groups.dropped(stream)) + about["pending"],
                    "messages",
                    oldest_at=time_of(about["last-delivered-id"]),
                    # Nil until the group has read an entry.
                    read=(about["entries-read"] or 0) - about["pending"],
                )
        return found

    # -- reading -----------------------------------------------------------------------------------------------------

    def _read_own(self) -> None:
        """Read this receiver's own pending entries."""
        for stream in self._source.streams:
            after = b"0"
            while not self._stopping.is_set():
                self._acknowledge()
                found = self._read({stream: after}, self._most_at_once())
                entries = found.get(stream, [])
                if not entries:
                    break
                after = entries[-1][0]
                self._take(stream, entries)

    def _read_new(self) -> None:
        room = self._source.in_flight - len(self._held)
        if room <= 0:
            self._stopping.wait(_PAUSE_SECONDS)
            return
        most = self._supervisor.block_path.piece(min(room, self._most_at_once()), 0)
        for stream, entries in self._read(dict.fromkeys(self._source.streams, b">"), most).items():
            self._groups.note_given(self._client, stream, entries[0][0], entries[-1][0])
            self._take(stream, entries)

    def _most_at_once(self) -> int:
        """Return how many entries to request: about a block of them, by the size of those that came last."""
        fitting = int(self._supervisor.settings.max_block_bytes / self._bytes_each / len(self._source.streams))
        return max(_LEAST_ENTRIES, min(self._at_once, fitting))

    def _read(self, after: Mapping[str, bytes], most: int) -> dict[str, list[Any]]:
        found: Any = self._client.xreadgroup(
            self._source.group,
            self._consumer,
            dict(after),  # type: ignore[arg-type]
            count=most,
            block=_BLOCK_MILLISECONDS,
        )
        return {stream.decode(): entries for stream, entries in found or ()}

    def _take_over(self) -> None:
        """Take over entries that other consumers did not acknowledge in time; skip our own that are in flight."""
        if time.monotonic() < self._claim_at:
            return
        self._claim_at = time.monotonic() + self._source.claim_after / 2
        for stream in self._source.streams:
            start: bytes | None = b"0-0"
            while start and not self._stopping.is_set() and len(self._held) < self._source.in_flight:
                next_start, entries, *trimmed = self._client.xautoclaim(
                    stream,
                    self._source.group,
                    self._consumer,
                    int(self._source.claim_after * 1000),
                    start,
                    count=min(1000, self._most_at_once()),
                )
                gone = self._not_held(stream, trimmed[0] if trimmed else [])
                if gone:
                    self._groups.report_gone(stream, gone)
                self._take(stream, entries)
                self._acknowledge()
                start = next_start if next_start != b"0-0" else None

    def _take(self, stream: str, found: Sequence[Any]) -> None:
        """Hand over the entries that are not in flight already."""
        gone = [entry_id for entry_id, fields in found if fields is None]
        if gone:
            self._groups.report_gone(stream, gone)
            self._client.xack(stream, self._source.group, *gone)
        came = [StreamEntry(stream, entry_id, fields) for entry_id, fields in found if fields is not None]
        entries = [entry for entry in came if entry.key not in self._held]
        if not entries:
            return
        self._held.update(entry.key for entry in entries)
        try:
            batch = batch_of(entries)
        except ValueError:
            good, letters = sorted_out(entries)
            self._receiver.store_dead_letters(letters)
            kept = {entry.id for entry in good}
            self._registered.append([entry for entry in entries if entry.id not in kept])
            entries = good
            if not entries:
                return
            batch = batch_of(entries)
        self._bytes_each = max(1.0, batch.nbytes / batch.num_rows)
        self._at_once = min(_MOST_ENTRIES, _MORE_EACH_TIME * self._at_once)
        future = self._hand_over.submit(batch, keys_of(entries))
        future.add_done_callback(partial(self._answered, entries))

    def _answered(self, entries: Sequence[StreamEntry], future: Future[HandedOver]) -> None:
        """Note entries to acknowledge, or the failure. Called on the hand-over's thread."""
        error = future.exception()
        if error is None:
            self._registered.append(entries)
        else:
            self._failed = error

    def _acknowledge(self) -> None:
        """Acknowledge what is registered. Raises the error that ended the hand-over, if any."""
        by_stream: dict[str, list[StreamEntry]] = {}
        while self._registered:
            for entry in self._registered.popleft():
                by_stream.setdefault(entry.stream, []).append(entry)
        for stream, entries in by_stream.items():
            for first in range(0, len(entries), _ACKNOWLEDGED_AT_ONCE):
                ids = [entry.id for entry in entries[first : first + _ACKNOWLEDGED_AT_ONCE]]
                self._client.xack(stream, self._source.group, *ids)
            self._held.difference_update(entry.key for entry in entries)
        if self._failed is not None:
            raise self._failed

    def _not_held(self, stream: str, ids: Sequence[bytes]) -> Sequence[bytes]:
        """Return the ids without those in flight here, which are not lost."""
        if not ids:
            return ids
        held = {key.rpartition("@")[0] for key in self._held}
        return [one for one in ids if f"{one.decode('ascii')}@{stream}" not in held]

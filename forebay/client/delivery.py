"""Deliver a spool's records to their channel, each once and in order, with one request in flight.

Decides what an answer means: which records are registered, which are sent again, and which are set aside. Only the
receiver's position says what is registered: an answer that is lost costs a request, never a record. It must never send
a record before the spool's state says that it may have been sent.
"""

from __future__ import annotations

import logging
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

from forebay.client.backoff import Backoff
from forebay.client.batch_size import BatchSize
from forebay.client.channel_requests import NoAnswerError
from forebay.client.errors import ChannelMismatchError, RequestRefusedError, SendError
from forebay.client.meeting import doubt, meet, note_doubt

if TYPE_CHECKING:
    from collections.abc import Callable

    from forebay.client.batch import Batch
    from forebay.client.batch_size import BatchLimits
    from forebay.client.channel_requests import Answer, ChannelRequests
    from forebay.client.framing import Framing
    from forebay.client.meeting import OnMismatch
    from forebay.client.spool import Spool

_log = logging.getLogger("forebay.client")

# A batch that is refused by one of these is divided until the record is found that is refused by itself.
_REFUSES_RECORDS = frozenset(
    {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY}
)
_NOT_A_CHANNEL = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})
# Of the question for the position: as above, or the stream takes no channels.
_NO_POSITION = _NOT_A_CHANNEL | {HTTPStatus.BAD_REQUEST}


class Delivery:
    """Run on a thread until it is stopped or fails. What others read is guarded by the spool's condition."""

    def __init__(
        self,
        spool: Spool,
        requests: ChannelRequests,
        framing: Framing,
        limits: BatchLimits,
        *,
        syncs: bool,
        on_mismatch: OnMismatch,
        set_back_timeout: float,
        max_refused: int,
    ) -> None:
        self._spool = spool
        self._requests = requests
        self._framing = framing
        self._limits = limits
        self._syncs = syncs
        self._on_mismatch = on_mismatch
        self._max_refused = max_refused
        self._set_back_timeout = set_back_timeout
        self._set_back_since: float | None = None
        self._is_met = False
        self._backoff = Backoff()
        self._is_stopped = False
        self._flushes = 0
        # The next record to send, and the one behind the last that was sent, perhaps by an earlier process.
        self._next = spool.first
        self._sent = spool.first
        # All before it were registered, as far as this process knows.
        self._known = spool.first
        # No earlier process has sent records from here on.
        self._own_from = spool.end
        self._size = BatchSize(limits)
        #: Why it ended; None: it has not.
        self.failure: SendError | None = None
        #: Why the last request must be sent again; "": it was answered well.
        self.last_error = ""
        self.dead_letters = 0

    def run(self) -> None:
        """Deliver until it is stopped. What ends it otherwise is `failure`."""
        try:
            while not self._is_met and not self._is_stopped:
                self._try(self._meet_channel)
            while self._wait_for_records():
                self._try(self._deliver)
        except Exception as error:  # noqa: BLE001  callers get it
            with self._spool.changed:
                if isinstance(error, SendError):
                    self.failure = error
                else:
                    said = f"{self._spool.folder}: {type(error).__name__}: {error}: open the sender again"
                    self.failure = SendError(said)
                if not self._is_stopped:
                    _log.error("%s", self.failure, exc_info=None if isinstance(error, SendError) else error)
                self._spool.changed.notify_all()
        finally:
            self._requests.close()

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except OSError as error:
            # Such as a full disk: nothing was forgotten, so the same is done again.
            self._wait_again(str(error))

    def stop(self) -> None:
        """Have `run` end soon; a request in flight is aborted."""
        with self._spool.changed:
            self._is_stopped = True
            self._spool.changed.notify_all()
        self._requests.abort()

    def wait_registered(self, index: int, timeout: float | None) -> bool:
        """Wait until all records before an index are registered, or it fails. Return whether they are."""
        with self._spool.changed:
            self._flushes += 1
            self._spool.changed.notify_all()
            try:
                self._spool.changed.wait_for(
                    lambda: self._spool.acknowledged >= index or self.failure is not None or self._is_stopped, timeout
                )
            finally:
                self._flushes -= 1
            return self._spool.acknowledged >= index

    # -- the channel's position ----------------------------------------------------------------------------------------

    def _meet_channel(self) -> None:
        """Ask where the channel is, and begin there, unless it must be asked again."""
        if (position := self._position()) is None or (self._on_mismatch == "error" and self._waits_for(position)):
            return
        with self._spool.changed:
            met = meet(self._spool, position, self._on_mismatch)
            self._spool.bind(met.shift)
            if met.registered > self._spool.first:
                self._note_path()
            self._own_from = met.unsent_from
            self._next = met.registered
            self._sent = max(self._own_from, self._next)
            self._known = self._next
            self._spool.acknowledge(self._next)
            self._is_met = True

    def _waits_for(self, position: int) -> bool:
        """Wait while the channel is before what was registered. Return whether it waited, and may ask again.

        After a failover of Postgres without its last commits, receivers register those again. If they were sent again
        before, they would be doubled.
        """
        state = self._spool.state
        if state.shift is None or position >= state.offset_of(self._known):
            self._set_back_since = None
            return False
        # If the receiver has lost them, what the spool still holds is sent again.
        self._spool.take_back(state.index_of(position))
        now = time.monotonic()
        self._set_back_since = self._set_back_since or now
        if now - self._set_back_since >= self._set_back_timeout:
            return False
        self._wait_again(f"the channel was set back to {position}, before records that were registered")
        return True

    def _position(self) -> int | None:
        """Return the channel's position; None: ask again, it has waited."""
        try:
            answer = self._requests.position()
        except NoAnswerError as error:
            self._wait_again(str(error))
            return None
        if answer.status == HTTPStatus.OK:
            self._answered_well()
            return answer.offset
        if answer.status in _NO_POSITION:
            raise _no_channels(answer)
        self._wait_again(f"{answer.status}: {answer.reason}", answer.retry_after)
        return None

    # -- records -------------------------------------------------------------------------------------------------------

    def _wait_for_records(self) -> bool:
        """Wait until there is a batch to send; return False when it is stopped."""
        spool = self._spool
        with spool.changed:
            spool.wake_at = self._next + 1
            spool.changed.wait_for(lambda: self._is_stopped or spool.end > self._next)
            if not self._flushes and not self._size.is_searching:
                full = self._next + self._limits.records
                spool.wake_at = full
                spool.changed.wait_for(
                    lambda: self._is_stopped or self._flushes > 0 or spool.end >= full, self._limits.linger
                )
            spool.wake_at = None
            return not self._is_stopped

    def _deliver(self) -> None:
        """Send one request, and do what its answer says."""
        until = self._spool.sync() if self._syncs else self._spool.end
        until = min(until, self._size.end_from(self._next))
        batch = self._spool.read(self._next, until=until, most_bytes=self._size.bytes)
        offset = self._spool.state.offset_of(batch.first)
        before = self._sent
        is_first = batch.first >= max(self._own_from, before)
        self._sent = max(self._sent, batch.end)
        try:
            answer = self._requests.send(batch.body, offset=offset, content_type=self._framing.content_type)
        except NoAnswerError as error:
            if error.was_sent:
                self._size.on_no_answer(len(batch.body))
            else:
                self._sent = before
            self._wait_again(str(error))
            return
        if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES:
            self._registered(batch, offset, answer, is_first=is_first)
        elif answer.status == HTTPStatus.CONFLICT and answer.offset is not None:
            if is_first and answer.offset > offset:
                doubt(self._spool, batch, answer.offset - offset)
            self._go_on_from(answer.offset, offset, answer)
        elif answer.status in _REFUSES_RECORDS:
            self._refused(batch, offset, answer)
        elif answer.status in _NOT_A_CHANNEL:
            raise _no_channels(answer)
        else:
            if answer.status == HTTPStatus.TOO_MANY_REQUESTS:
                # It was not taken. After 503 it may be: such as when its block is registered too late for an answer.
                self._sent = before
            self._wait_again(f"{answer.status}: {answer.reason}", answer.retry_after)

    def _registered(self, batch: Batch, offset: int, answer: Answer, *, is_first: bool) -> None:
        if answer.offset is None:
            raise RequestRefusedError(
                f"an answer {answer.status} has no Forebay-Offset: the receiver, or a proxy before it, has no channels "
                "and may have stored the records: correct the URL"
            )
        if answer.offset < offset + batch.count:
            raise ChannelMismatchError(
                f"the receiver took {answer.offset - offset} records of a request of {batch.count}, from {offset} on: "
                "declare the source without `body`, and open the sender with the records that it takes"
            )
        if is_first and answer.duplicates:
            doubt(self._spool, batch, answer.duplicates)
        self.dead_letters += answer.dead_letters
        self._set_back_since = None
        self._size.on_taken()
        self._answered_well()
        self._move_to(answer.offset)

    def _go_on_from(self, position: int, offset: int, answer: Answer) -> None:
        """Go on where the receiver is."""
        if position == offset:
            self._wait_again(f"{answer.status}: {answer.reason}", answer.retry_after)
            return
        if self._waits_for(position):
            return
        _log.info("%s: the channel is at %d, not %d: goes on there", self._spool.folder, position, offset)
        self._move_to(position)
        if position < offset:
            # It is not to go round and round.
            self._wait_again(f"{answer.status}: {answer.reason}", answer.retry_after)

    def _move_to(self, position: int) -> None:
        """Note that all before a position are registered, and go on there. Raises ChannelMismatchError."""
        state = self._spool.state
        first, sent = state.offset_of(self._spool.first), state.offset_of(self._sent)
        if not first <= position <= sent:
            # A later process would take those that it has not sent for registered.
            unsent = min(state.index_of(position), self._spool.end)
            noted = note_doubt(self._spool, self._sent, unsent) if unsent > self._sent else ""
            raise ChannelMismatchError(
                f"the channel is at offset {position}, and {self._spool.folder} has sent those from {first} to {sent}: "
                "another sender uses the channel, or its stream was removed or restored: open the sender again" + noted
            )
        if position > first:
            self._note_path()
        self._known = self._next = state.index_of(position)
        self._size.on_moved(self._next)
        self._spool.acknowledge(self._next)

    def _note_path(self) -> None:
        """Note which stream has records of the spool. Raises OSError."""
        state, path = self._spool.state, self._requests.path
        with self._spool.changed:
            before = state.path
            if before == path:
                return
            try:
                state.path = path
                state.write(self._spool.folder)
            except OSError:
                state.path = before
                raise

    def _refused(self, batch: Batch, offset: int, answer: Answer) -> None:
        """Divide a batch that is refused, until the record is found; set that one aside."""
        self.last_error = f"{answer.status}: {answer.reason}"
        if batch.count > 1:
            if answer.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                self._size.on_too_large(len(batch.body))
            else:
                self._size.on_refused(batch.end)
            return
        why = self.last_error
        # An earlier request with the record, whose answer was lost, may have been registered.
        if (position := self._position()) is None:
            return
        if position != offset:
            self._go_on_from(position, offset, answer)
            return
        with self._spool.changed:
            self._spool.refused.notice_removal()
        if self._spool.refused.count >= self._max_refused:
            raise RequestRefusedError(
                f"{self._spool.refused.path} has {self._spool.refused.count} records, the limit `refused` is "
                f"{self._max_refused}, and one more was refused ({why}): correct the cause, and move the file away"
            )
        record = self._framing.record_of(batch.body)
        self._spool.set_aside(batch.first, answer.status, answer.reason, record)
        _log.warning("%s: a record was refused and set aside: %s", self._spool.refused.path, why)
        self._size.on_set_aside()
        self._answered_well()
        self._move_to(offset)

    # -- again ---------------------------------------------------------------------------------------------------------

    def _answered_well(self) -> None:
        self._backoff.reset()
        self.last_error = ""

    def _wait_again(self, why: str, retry_after: float | None = None) -> None:
        """Wait before the next request."""
        seconds = self._backoff.next_seconds(retry_after)
        deadline = time.monotonic() + seconds
        with self._spool.changed:
            self.last_error = why
            _log.info("%s: %s: sends again in %.1f s", self._spool.folder, why, seconds)
            self._spool.changed.wait_for(lambda: self._is_stopped, max(0.0, deadline - time.monotonic()))


def _no_channels(answer: Answer) -> RequestRefusedError:
    return RequestRefusedError(
        f"there are no channels at this URL ({answer.status}: {answer.reason}): give the stream's, as "
        "http://host:8080/v1/STREAM, of an Http source that takes channels"
    )

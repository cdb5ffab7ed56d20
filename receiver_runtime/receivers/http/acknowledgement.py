"""Group acknowledgement: requests that come at the same time go into one block, and are answered when it is registered.

This module connects the server's loop to ``KeyedHandOver``, which makes the blocks, and to ``ChannelHandOver``, which
makes those of channels. It gathers requests for a few
milliseconds and hands them over together. No two requests of a group have a key in common: the second one begins the
next group, and the hand-over leaves its records out. Answers come on another thread, and are passed to the loop
together.

It counts what is waiting, in records and bytes, and how old it is: the caller checks that first, and keeps to the
limits. Nothing here answers a sender, and no record is given up: if a request stops waiting, its records stay, and are
registered all the same.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import structlog

from receiver_runtime.block_path.records import conform
from receiver_runtime.block_store.frames.columns import arrow_schema
from receiver_runtime.receivers.http.channels.channel import elsewhere
from receiver_runtime.receivers.http.channels.hand_over import ChannelHandOver
from receiver_runtime.receivers.http.channels.parts import ChannelPositionError, ChannelRequest, Rows
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.requests.refusals import RETRY_SECONDS, refusal
from receiver_runtime.receivers.keyed_hand_over import KeyedHandOver

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from receiver_runtime.block_path.block_handler import DeadLetter
    from receiver_runtime.receivers.http.channels.channel import Place
    from receiver_runtime.receivers.http.channels.parts import ChannelOutcome
    from receiver_runtime.receivers.keyed_blocks import HandedOver
    from receiver_runtime.supervisor.attached_supervisor import AttachedSupervisor

_log = structlog.get_logger(__name__)

# How long the first request of a group waits for others, in seconds: longer while others wait to be registered, because
# the next block need not begin at once then. A group of this many requests is handed over at once. Each group costs as
# much as a dozen requests.
_GATHER_SECONDS = 0.002
_BUSY_GATHER_SECONDS = 0.008
_FULL_GROUP = 64
# No limit on what is under way: the caller sets it, because only the caller can answer a sender with 429.
_NO_BOUND = 2**62
_ROW_BYTES = 40  # what a record counts for besides its body and texts
_SCHEMA = arrow_schema(Http.columns)
_ATTRIBUTES = _SCHEMA.field("attributes").type
_RECEIVED_AT = _SCHEMA.field("received_at").type


@dataclass(frozen=True, slots=True)
class Stored:
    """Count a request's records: those in a registered block, and duplicates, whose keys were known before.

    ``misfits`` did not fit the stream's columns and are dead letters; it has why, by the record's place in the request.
    """

    added: int
    duplicates: int
    misfits: Mapping[int, str] = field(default_factory=dict)
    #: Where the request's channel is now, at least; None: it is of no channel.
    position: int | None = None


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """Hold a request's records. Sequences have one element per record; values that all records share are there once.

    Where the bodies are a column, no other field is a sequence. Where they are rows of the receiver's columns, these
    hold all that is kept.
    """

    bodies: Sequence[bytes | None] | pa.BinaryArray | pa.RecordBatch
    path: str
    received_at: int
    content_type: str | None = None
    content_types: Sequence[str | None] | None = None
    request_key: str | None = None
    keys: Sequence[str | None] | None = None
    #: With a scope, its keys count only among keys of that scope, and those that have none: the source had no tokens
    #: when they were registered.
    key_scope: str | None = None
    ids: Sequence[str | None] | None = None
    attributes: Sequence[Mapping[str, str] | None] | None = None
    request_attributes: Mapping[str, str] | None = None
    #: Of a request of a channel: where its records are in it, and those that can't be parsed.
    place: Place | None = None
    rejected: int = 0
    letters: Sequence[DeadLetter] = ()
    #: The size of all its records. ``beside_bodies`` is the part besides their bodies: the request may have had it only
    #: once for all of them.
    nbytes: int = 0
    beside_bodies: int = 0
    #: For the loop alone: the future of the request, when it was handed in, and what to call when it is registered or
    #: refused. ``on_answered`` takes the outcome at once, where no task waits for the future.
    future: asyncio.Future[Stored] | None = None
    since: float = 0.0
    on_settled: Callable[[], object] | None = None
    on_answered: Callable[[WaitingRequest, Stored | BaseException], object] | None = None

    def __post_init__(self) -> None:
        """Count the bytes."""
        rows = len(self.bodies)
        if isinstance(self.bodies, pa.RecordBatch):
            self.nbytes = self.bodies.nbytes
            return
        each = len(self.path) + len(self.content_type or "") + len(self.request_key or "")
        if self.request_attributes:
            each += _size(self.request_attributes)
        self.beside_bodies = rows * each
        for texts in (self.content_types, self.ids):
            if texts is not None:
                self.beside_bodies += sum(len(text) for text in texts if text)
        if self.attributes is not None:
            self.beside_bodies += sum(map(_size, self.attributes))
        if isinstance(self.bodies, pa.Array):
            # Not `nbytes`, which lets go of Python's lock.
            bodies = sum([buffer.size for buffer in self.bodies.buffers() if buffer is not None])
        else:
            bodies = sum([len(body) for body in self.bodies if body is not None])
        self.nbytes = bodies + self.beside_bodies + _ROW_BYTES * rows

    @property
    def sender(self) -> str:
        """Return who sends, as far as the source tells senders apart: the token's scope, or all of them together."""
        return f"sender {self.key_scope or ''}"

    def row_keys(self) -> Sequence[str | None] | None:
        """Return a key per record, or None where no record has one. A request's key counts for all its records."""
        return self._row_keys(self._scoped)

    def unscoped_row_keys(self) -> Sequence[str | None] | None:
        """Return the keys as they were registered if the source had no tokens then; None without a scope."""
        return None if self.key_scope is None else self._row_keys(lambda key: key)

    def _row_keys(self, form: Callable[[str], str]) -> Sequence[str | None] | None:
        if self.request_key is not None:
            return [form(self.request_key)] * len(self.bodies)
        if self.keys is not None and any(key is not None for key in self.keys):
            return [None if key is None else form(key) for key in self.keys]
        return None

    def _scoped(self, key: str) -> str:
        # No key that a sender gives has this character, so no scoped key equals one without a scope.
        return key if self.key_scope is None else f"{self.key_scope}\x1f{key}"

    def key_forms(self) -> Sequence[str]:
        """Return the request's key in each form in which it may be registered; empty where it has none.

        Keys of its records are none: another request may have had the same records, and other dead letters.
        """
        if (key := self.request_key) is None:
            return ()
        return (key,) if self.key_scope is None else (self._scoped(key), key)


def _size(attributes: Mapping[str, str] | None) -> int:
    return sum(len(name) + len(value) for name, value in attributes.items()) if attributes else 0


def batch_of(group: Sequence[WaitingRequest]) -> pa.RecordBatch:
    """Return the records of requests, in order, with the source's columns."""
    batches: list[pa.RecordBatch] = []
    for kind, some in groupby(group, lambda one: type(one.bodies)):
        requests = list(some)
        if kind is pa.RecordBatch:
            batches += [one.bodies for one in requests]
        else:
            batches.append(_batch_of_columns(requests) if issubclass(kind, pa.Array) else _batch_of_records(requests))
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _batch_of_columns(group: Sequence[WaitingRequest]) -> pa.RecordBatch:
    """Return the records of requests whose bodies are columns: all else is there once for each request."""
    once = pa.RecordBatch.from_arrays(
        [
            pa.array([one.content_type for one in group], pa.string()),
            pa.array([one.path for one in group], pa.string()),
            pa.array([one.received_at for one in group], pa.int64()).cast(_RECEIVED_AT),
            pa.array([one.request_key for one in group], pa.string()),
            pa.array([_items(one.request_attributes) for one in group], _ATTRIBUTES),
        ],
        schema=pa.schema(list(_SCHEMA)[1:]),
    )
    bodies = [one.bodies for one in group]
    rows = np.repeat(np.arange(len(group)), list(map(len, bodies)))
    # Arrow would copy a single one too, and the request is held until it is answered.
    body = bodies[0] if len(bodies) == 1 else pa.concat_arrays(bodies)
    return pa.RecordBatch.from_arrays([body, *once.take(pa.array(rows)).columns], schema=_SCHEMA)


def _items(attributes: Mapping[str, str] | None) -> list[tuple[str, str]] | None:
    return None if attributes is None else list(attributes.items())


def _batch_of_records(group: Sequence[WaitingRequest]) -> pa.RecordBatch:
    bodies: list[bytes | None] = []
    content_types: list[str | None] = []
    paths: list[str] = []
    received: list[int] = []
    ids: list[str | None] = []
    attributes: list[Mapping[str, str] | None] = []
    for one in group:
        rows = len(one.bodies)
        bodies += one.bodies
        content_types += [one.content_type] * rows if one.content_types is None else one.content_types
        paths += [one.path] * rows
        received += [one.received_at] * rows
        ids += [one.request_key] * rows if one.ids is None else one.ids
        attributes += [one.request_attributes] * rows if one.attributes is None else one.attributes
    some = any(attribute is not None for attribute in attributes)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(bodies, pa.binary()),
            pa.array(content_types, pa.string()),
            pa.array(paths, pa.string()),
            pa.array(received, pa.int64()).cast(_RECEIVED_AT),
            pa.array(ids, pa.string()),
            pa.array(list(map(_items, attributes)), _ATTRIBUTES) if some else pa.nulls(len(bodies), _ATTRIBUTES),
        ],
        schema=_SCHEMA,
    )


def _joined(group: Sequence[WaitingRequest], keys: Sequence[Sequence[str | None] | None]) -> pa.StringArray | None:
    """Return the keys of all records of a group; None where none has one."""
    if all(some is None for some in keys):
        return None
    joined: list[str | None] = []
    for one, some in zip(group, keys, strict=True):
        joined += [None] * len(one.bodies) if some is None else some
    return pa.array(joined, pa.string())


def _resolve(one: WaitingRequest, outcome: Stored | BaseException) -> None:
    """Tell the request's task, or its protocol, what came of its records. One that can't be told holds up no other."""
    if one.on_answered is not None:
        try:
            one.on_answered(one, outcome)
        except Exception:  # noqa: BLE001  told, and the next one is answered
            _log.exception("a request could not be answered", path=one.path)
    elif one.future is not None and not one.future.done():
        if isinstance(outcome, Stored):
            one.future.set_result(outcome)
        else:
            one.future.set_exception(outcome)


class Acknowledgement:
    """See the module. Each server has one. Only the loop calls its methods, except ``close``.

    ``on_failed`` is called with the error that has ended the hand-over: from then on no request is taken.
    """

    def __init__(
        self,
        supervisor: AttachedSupervisor,
        loop: asyncio.AbstractEventLoop,
        *,
        on_failed: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._on_failed = on_failed
        self._hand_over = KeyedHandOver(supervisor, most_in_flight=_NO_BOUND, most_bytes=_NO_BOUND)
        self._schema = supervisor.record_schema
        self._channels = ChannelHandOver(
            supervisor, on_answers=self._on_channels_answered, on_failed=self._on_channels_failed
        )
        # Of the channels' requests that were handed over: whose they are.
        self._of_channels: dict[ChannelRequest, WaitingRequest] = {}
        # The next group of requests of channels.
        self._gathered_places: list[tuple[WaitingRequest, Place]] = []
        # The requests of the next group, each with the keys of its records, and these keys.
        self._gathered: list[tuple[WaitingRequest, Sequence[str | None] | None]] = []
        self._gathered_keys: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._unanswered: dict[WaitingRequest, None] = {}
        self.waiting_bytes = 0
        self.waiting_records = 0
        # Guards the answers on their way to the loop.
        self._lock = threading.Lock()
        self._answers: list[Callable[[], None]] = []

    def oldest_seconds(self) -> float:
        """Return for how long the oldest request that is not registered has been waiting, in seconds."""
        for one in self._unanswered:
            return time.monotonic() - one.since
        return 0.0

    def hand_in(self, waiting: WaitingRequest) -> asyncio.Future[Stored]:
        """Take a request's records. The future resolves when they are registered, or fails with the error.

        Where the hand-over has ended already, the future has that error.
        """
        future: asyncio.Future[Stored] = self._loop.create_future()
        waiting.future = future
        waiting.since = time.monotonic()
        self._unanswered[waiting] = None
        self.waiting_bytes += waiting.nbytes
        self.waiting_records += len(waiting.bodies)
        if waiting.place is not None:
            self._gathered_places.append((waiting, waiting.place))
        else:
            self._gather(waiting)
        gathered = len(self._gathered) + len(self._gathered_places)
        if gathered >= _FULL_GROUP:
            self._hand_over_gathered()
        elif gathered and self._timer is None:
            busy = len(self._unanswered) > gathered
            seconds = _BUSY_GATHER_SECONDS if busy else _GATHER_SECONDS
            self._timer = self._loop.call_later(seconds, self._hand_over_gathered)
        return future

    def _gather(self, waiting: WaitingRequest) -> None:
        keys = waiting.row_keys()
        if keys is not None:
            distinct = {key for key in keys if key is not None}
            if not self._gathered_keys.isdisjoint(distinct):
                self._hand_over_gathered()
            self._gathered_keys |= distinct
        self._gathered.append((waiting, keys))

    def give_up(self) -> None:
        """Fail the requests that still wait. Their records are still registered, when the driver log is available."""
        why = "Send this request again: the receiver is stopping and waits for no more registrations."
        for one in self._unanswered:
            _resolve(one, refusal(HTTPStatus.SERVICE_UNAVAILABLE, why, retry_after=RETRY_SECONDS))

    def close(self) -> None:
        """Wait until everything that was handed in is registered or refused. Any thread, after the loop has ended."""
        self._hand_over.close()
        self._channels.close()

    def _hand_over_gathered(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._hand_over_channels()
        gathered, self._gathered = self._gathered, []
        self._gathered_keys = set()
        if not gathered:
            return
        group = [one for one, _ in gathered]
        try:
            batch = batch_of(group)
        except Exception as error:  # noqa: BLE001  passed to the waiting requests
            self._refuse(group, error)
            return
        try:
            future = self._hand_over.submit(
                batch,
                _joined(group, [keys for _, keys in gathered]),
                unscoped_keys=_joined(group, [one.unscoped_row_keys() for one in group]),
                requests=[len(one.bodies) for one in group],
                senders=[one.sender for one in group],
            )
        except Exception as error:  # noqa: BLE001  passed to the waiting requests
            self._refuse(group, error)
            self._on_failed(error)
        else:
            future.add_done_callback(lambda future: self._pass_on(partial(self._answer_group, group, future)))

    def _hand_over_channels(self) -> None:
        gathered, self._gathered_places = self._gathered_places, []
        if not gathered:
            return
        group = [one for one, _ in gathered]
        try:
            batch = conform(batch_of(group), self._schema)
        except Exception as error:  # noqa: BLE001  passed to the waiting requests
            self._refuse(group, error)
            return
        begin = 0
        requests: dict[ChannelRequest, WaitingRequest] = {}
        for one, place in gathered:
            rows = Rows(batch, begin, len(one.bodies))
            begin = rows.end
            made = ChannelRequest(place.channel, place.offset, rows, one.nbytes, one.rejected, one.letters)
            requests[made] = one
        self._of_channels |= requests
        try:
            self._channels.submit(list(requests))
        except Exception as error:  # noqa: BLE001  passed to the waiting requests
            self._fail_channels(error, list(requests))

    # -- the hand-overs' threads -------------------------------------------------------------------------------------

    def _on_channels_answered(
        self, answers: Sequence[tuple[ChannelRequest, ChannelOutcome | ChannelPositionError]]
    ) -> None:
        self._pass_on(partial(self._answer_channels, answers))

    def _on_channels_failed(self, error: BaseException, requests: Sequence[ChannelRequest]) -> None:
        self._pass_on(partial(self._fail_channels, error, requests))

    def _pass_on(self, answer: Callable[[], None]) -> None:
        """Have the loop do this."""
        with self._lock:
            self._answers.append(answer)
            first = len(self._answers) == 1
        if first:
            # A loop that has ended has answered all requests.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._take_answers)

    # -- the loop ----------------------------------------------------------------------------------------------------

    def _take_answers(self) -> None:
        with self._lock:
            answers, self._answers = self._answers, []
        for answer in answers:
            answer()

    def _answer_group(self, group: Sequence[WaitingRequest], future: Future[HandedOver]) -> None:
        error = future.exception()
        if error is not None:
            self._refuse(group, error)
            self._on_failed(error)
            return
        for one, outcome in zip(group, future.result().requests, strict=True):
            self._forget(one)
            _resolve(one, Stored(*outcome))

    def _answer_channels(self, answers: Sequence[tuple[ChannelRequest, ChannelOutcome | ChannelPositionError]]) -> None:
        for request, outcome in answers:
            one = self._of_channels.pop(request)
            self._forget(one)
            if isinstance(outcome, ChannelPositionError):
                _resolve(one, elsewhere(request.channel.name, outcome))
            else:
                _resolve(one, Stored(*outcome))

    def _fail_channels(self, error: BaseException, requests: Sequence[ChannelRequest]) -> None:
        self._refuse([self._of_channels.pop(request) for request in requests], error)
        self._on_failed(error)

    def _refuse(self, group: Sequence[WaitingRequest], error: BaseException) -> None:
        for one in group:
            self._forget(one)
            _resolve(one, error)

    def _forget(self, one: WaitingRequest) -> None:
        del self._unanswered[one]
        self.waiting_bytes -= one.nbytes
        self.waiting_records -= len(one.bodies)
        if one.on_settled is not None:
            one.on_settled()

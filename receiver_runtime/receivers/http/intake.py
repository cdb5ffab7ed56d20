"""Take checked requests to the hand-over of their records: whose they are, what is kept, whether there is room.

Both ways of taking a request share this: with a task (``app``) and without one (``direct``). It owns the time limits of
open requests, and their number. All of it refuses a request by ``RefusedError`` or ``PushRefusedError``.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import re
import time
from contextlib import asynccontextmanager
from http import HTTPStatus
from types import MappingProxyType
from typing import TYPE_CHECKING

import structlog

from receiver_runtime.block_path.block_handler import DeadLetter
from receiver_runtime.block_path.generator_state import GeneratorStateError
from receiver_runtime.receivers.http.acknowledgement import WaitingRequest, batch_of
from receiver_runtime.receivers.http.admission import Admission
from receiver_runtime.receivers.http.channels.channel import check_end
from receiver_runtime.receivers.http.connections.deadlines import Deadlines
from receiver_runtime.receivers.http.requests.idempotency_key import key_header, key_of
from receiver_runtime.receivers.http.requests.peer_checks import check_origin
from receiver_runtime.receivers.http.requests.pushed import MOST_REJECTED, PushedRows, header, header_text
from receiver_runtime.receivers.http.requests.records import Plain
from receiver_runtime.receivers.http.requests.refusals import AWAY_RETRY_SECONDS, RETRY_SECONDS, RefusedError, refusal
from receiver_runtime.receivers.http.requests.route import Answered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from receiver_runtime.receivers.http.acknowledgement import Acknowledgement, Stored
    from receiver_runtime.receivers.http.channels.channel import Place
    from receiver_runtime.receivers.http.connections.buffering import BufferedHandOver
    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.protocol import CheckedRequest, RequestCheck
    from receiver_runtime.receivers.http.requests.pushed import Headers, Pushed, RejectedRecord
    from receiver_runtime.supervisor.attached_supervisor import AttachedSupervisor

    #: The parameters of a request's query, each with its values in order.
    Parameters = Mapping[str, Sequence[str]]

_log = structlog.get_logger(__name__)

# Basic and ApiKey, which is Elasticsearch's, have a name before the token; Splunk's collector is as Bearer.
_AUTHORIZATION = re.compile(rb"(bearer|splunk|basic|apikey) +(\S+)", re.IGNORECASE)
_WITHOUT_NAME = frozenset({b"bearer", b"splunk"})
#: Those of a request without a query.
NO_PARAMETERS: Parameters = MappingProxyType({})


class Intake:
    """Take requests; see the module. The owner sets ``draining``; all methods belong to the server's loop."""

    def __init__(
        self,
        source: Http,
        supervisor: AttachedSupervisor,
        acknowledgement: Acknowledgement,
        buffering: BufferedHandOver,
        *,
        tokens: Sequence[tuple[str, str]],
        check: RequestCheck | None = None,
        is_paused: bool = False,
    ) -> None:
        """Begin with no request. ``tokens``: each with the scope of the keys that come with it."""
        self._source = source
        self.acknowledgement = acknowledgement
        self._buffering = buffering
        self._tokens = [(token.encode(), scope) for token, scope in tokens]
        self._check = check
        self._key_name = key_header(source.key_from)
        #: The header that holds a request's key, in lower case; empty if its body does.
        self.key_header = self._key_name.lower().encode()
        self.draining = asyncio.Event()
        #: The time limits of bodies, dead letters and registrations.
        self.deadlines = Deadlines()
        self.admission = Admission(source, supervisor, acknowledgement, buffering, self.draining, is_paused=is_paused)
        self._open_requests = 0
        #: Set while no request is being answered.
        self.quiet = asyncio.Event()
        self.quiet.set()

    def give_up_waiting(self) -> None:
        """Refuse the requests whose bodies are not whole, or whose records are not registered yet."""
        self.deadlines.expire()

    def request_begins(self) -> None:
        """Count a request that is to be answered."""
        self._open_requests += 1
        self.quiet.clear()

    def request_ends(self) -> None:
        """Count a request no more, whose answer is known."""
        self._open_requests -= 1
        if not self._open_requests:
            self.quiet.set()

    def authorize(self, headers: Headers) -> str | None:
        """Return the scope of the request's keys: its token's, or None where there are no tokens."""
        if not self._tokens:
            check_origin(headers, self._source)
            return None
        given = [(name, value) for name, value in headers if name in (b"authorization", b"x-api-key")]
        token = _token_in(*given[0]) if len(given) == 1 else b""
        # Compare all tokens, so that the time that it takes tells nothing about them.
        scopes = [scope for known, scope in self._tokens if hmac.compare_digest(token, known)]
        if not scopes:
            what = "there is none" if not given else "the token is not one of this stream's"
            raise refusal(
                HTTPStatus.UNAUTHORIZED,
                f"Authorization: {what}: send 'Authorization: Bearer TOKEN', 'X-API-Key: TOKEN', or it as the password "
                "of Basic",
                www_authenticate="Bearer" if not given else 'Bearer error="invalid_token"',
            )
        return scopes[0]

    def signed(self, headers: Headers, query: bytes) -> CheckedRequest | None:
        """Return what is to be checked of the request when its body is there; None if nothing is declared."""
        return None if self._check is None else self._check.begin(headers, query)

    def key_of(self, headers: Headers) -> str | None:
        """Return the key in the request's head, or None."""
        return key_of(header(headers, self.key_header), self._key_name) if self.key_header else None

    def check_size(self, waiting: WaitingRequest, *, buffered: bool) -> None:
        """Refuse records that have no room: they are larger decompressed, and each has its part of the head."""
        most = self._source.max_waiting_bytes
        if waiting.beside_bodies > most:
            raise refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"body: {len(waiting.bodies)} records, with {waiting.beside_bodies} bytes of what is kept beside their "
                f"bodies, max_waiting_bytes is {most}: send fewer at once, or shorter headers",
            )
        if (too_much := self.admission.check_room(waiting.nbytes)) is not None:
            raise RefusedError(too_much)
        if buffered and not self._buffering.has_room(waiting.nbytes):
            # Before the dead letters are stored, or each repeat of the request would store them again.
            raise _buffer_full()

    def waiting_of(
        self,
        parsed: Pushed | PushedRows | Plain,
        path: str,
        headers: Headers,
        key: str | None,
        key_scope: str | None,
        parameters: Parameters = NO_PARAMETERS,
    ) -> WaitingRequest:
        """Return a parsed request's records as they are handed in; those of a channel with ``in_channel``."""
        kept = kept_attributes(self._source, headers, parameters)
        now = time.time_ns() // 1000
        if isinstance(parsed, Plain):
            waiting = WaitingRequest(
                parsed.bodies,
                path,
                now,
                content_type=parsed.content_type,
                # A record's own key identifies it better than the request's key.
                request_key=parsed.key or (key if parsed.keys is None else None),
                keys=parsed.keys,
                key_scope=key_scope,
                ids=parsed.keys,
                request_attributes=kept,
            )
        elif isinstance(parsed, PushedRows):
            # A row's own key identifies it better than the request's key.
            own = parsed.key or (None if parsed.keys is not None and any(parsed.keys) else key)
            waiting = WaitingRequest(parsed.batch, path, now, request_key=own, keys=parsed.keys, key_scope=key_scope)
        else:
            records = parsed.records
            waiting = WaitingRequest(
                [record.body for record in records],
                path,
                now,
                content_types=[record.content_type for record in records],
                # A record's own key identifies it better than the request's key.
                request_key=None if any(record.key is not None for record in records) else key,
                keys=[record.key for record in records],
                key_scope=key_scope,
                ids=[key if record.id is None else record.id for record in records],
                attributes=[
                    {**(kept or {}), **(record.attributes or {})} if kept or record.attributes else None
                    for record in records
                ],
            )
        return waiting

    def in_channel(self, waiting: WaitingRequest, place: Place, rejected: Sequence[RejectedRecord]) -> None:
        """Give a request its place in a channel; its rejected records are stored as dead letters with the others."""
        if len(rejected) > MOST_REJECTED:
            raise refusal(
                HTTPStatus.BAD_REQUEST,
                f"body: {len(rejected)} can't be records, {MOST_REJECTED} are put aside at most; {rejected[0].why}: "
                "correct it, or send less at once",
            )
        check_end(place, len(waiting.bodies) + len(rejected))
        waiting.place = place
        waiting.rejected = len(rejected)
        waiting.letters = [DeadLetter(one.reason, one.data) for one in rejected if one.data]
        waiting.nbytes += sum(len(one.data) for one in rejected)
        # They are known by their offsets alone.
        waiting.keys = None

    async def register(self, waiting: WaitingRequest) -> Stored:
        """Return what was registered of the records, when it is."""
        async with self.in_time():
            return await self.acknowledgement.hand_in(waiting)

    @asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """Refuse the request where the block takes longer than ``acknowledgement_timeout``, or fails."""
        timeout = self.deadlines.create(self._source.acknowledgement_timeout)
        try:
            async with timeout:
                yield
        except Exception as error:
            raise self.not_registered(error) from error
        finally:
            self.deadlines.discard(timeout)

    def not_registered(self, error: BaseException) -> RefusedError:
        """Return the refusal of a request whose records this error keeps from being registered in time."""
        if isinstance(error, TimeoutError):
            if self.draining.is_set() and (not_now := self.admission.check_ready()) is not None:
                return RefusedError(not_now)
            return refusal(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"the records were not registered within acknowledgement_timeout "
                f"({self._source.acknowledgement_timeout:g} s), and may be yet: send again with the same "
                "Idempotency-Key",
                retry_after=AWAY_RETRY_SECONDS,
            )
        if isinstance(error, RefusedError):
            return error
        # For example fenced: another process has the receiver, or will have it.
        _log.warning("requests could not be registered", error=str(error))
        return refusal(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "this receiver can't register records any more, another takes over: send again",
            retry_after=RETRY_SECONDS,
            connection="close",
        )

    def answered(self, stored: Stored, rejected: int = 0, why: str = "", *, may_refuse: bool = True) -> Answered:
        """Return the outcome of a request; ``rejected`` of its records were dead letters before they were handed in.

        Raises RefusedError if no record of it fits the stream's columns, and ``may_refuse``. They are kept as dead
        letters all the same.
        """
        misfits = stored.misfits
        if misfits:
            why = why or misfits[min(misfits)]
            # Those of a channel are behind its position now: a refusal would be of no use.
            if may_refuse and stored.position is None and not (stored.added or stored.duplicates):
                raise refusal(
                    HTTPStatus.UNPROCESSABLE_ENTITY,
                    f"body: none of {len(misfits)} records fits the stream's columns; {misfits[min(misfits)]}: "
                    "correct it",
                )
        return Answered(
            stored.added, stored.duplicates, rejected + len(misfits), why, misfits=misfits, position=stored.position
        )

    def buffer(self, waiting: WaitingRequest) -> None:
        """Hand the records to the block generator, as a block of their own that a successor's salvage registers."""
        try:
            taken = self._buffering.offer(batch_of([waiting]))
        except GeneratorStateError as error:
            raise refusal(
                HTTPStatus.SERVICE_UNAVAILABLE, "the receiver is stopping: send again", retry_after=RETRY_SECONDS
            ) from error
        if not taken:
            raise _buffer_full()


def kept_attributes(source: Http, headers: Headers, parameters: Parameters = NO_PARAMETERS) -> Mapping[str, str] | None:
    """Return the headers and parameters that the source keeps; what came twice is joined, as HTTP defines it."""
    kept = {name: ", ".join(parameters[name]) for name in source.query_parameters if name in parameters}
    if not source.headers:
        return kept or None
    for raw, value in headers:
        name = raw.decode("latin-1")
        if name in source.headers:
            text = header_text(value)
            kept[name] = f"{kept[name]}, {text}" if name in kept else text
    return kept or None


def _token_in(name: bytes, value: bytes) -> bytes:
    """Return the token that a header of a request brings; nothing where it brings none."""
    if name == b"x-api-key":
        return value.strip()
    match = _AUTHORIZATION.fullmatch(value.strip())
    if match is None:
        return b""
    if match[1].lower() in _WITHOUT_NAME:
        return match[2]
    try:
        return base64.b64decode(match[2], validate=True).partition(b":")[2]
    except ValueError:
        return b""


def _buffer_full() -> RefusedError:
    detail = "the buffer is full: send again in a moment"
    return refusal(HTTPStatus.TOO_MANY_REQUESTS, detail, retry_after=RETRY_SECONDS)

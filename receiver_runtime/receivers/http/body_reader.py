"""Read, decompress and parse the bodies of requests, each within the source's limits of size and time.

From a body's first byte until it is parsed, the admission counts it, as large as it is when decompressed. Small bodies
are parsed on the server's loop, others by threads that do nothing else, so that the loop goes on meanwhile. A body
whose sender has left, or whose time is over, is parsed no further. This module never looks at a request's records, and
never answers a request: what it does not take, it refuses by an error.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar

from receiver_runtime.receivers.http.requests.decompression import ENCODINGS, decompressed
from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits, ParsingStoppedError
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError
from receiver_runtime.receivers.http.requests.records import NoRecordError, Plain
from receiver_runtime.receivers.http.requests.refusals import RETRY_SECONDS, RefusedError, refusal

if TYPE_CHECKING:
    from starlette.types import Receive

    from receiver_runtime.receivers.http.admission import Admission
    from receiver_runtime.receivers.http.connections.deadlines import Deadlines
    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.requests.framing_checks import BodyFraming
    from receiver_runtime.receivers.http.requests.protocol import CheckedRequest
    from receiver_runtime.receivers.http.requests.pushed import Headers, Pushed, PushedRows
    from receiver_runtime.receivers.http.requests.route import Reply, Route

T = TypeVar("T")

#: Bytes up to which a body that is not compressed is parsed on the loop: handing it to a thread would take longer.
PARSE_ON_LOOP_BYTES = 64 * 1024
_WORKERS = 2  # threads that decompress and parse
_MOST_TO_CHECK = 16  # requests that wait for the thread that does what their checks need
# How much longer than ``parse_timeout`` to wait for a thread that is within one long step.
_LATE_SECONDS = 1.0
# Bytes and seconds up to which an unwanted body is read: enough for most senders to come to read the answer.
_UNWANTED_BYTES = 2**20
_UNWANTED_SECONDS = 1.0


class RequestBody:
    """Hand out the pieces of one request's body as they come."""

    def __init__(self, receive: Receive, framing: BodyFraming) -> None:
        self._receive = receive
        #: In bytes, as the head announces it; None where the body comes in chunks.
        self.length = framing.length
        #: Whether the body has ended, or its connection.
        self.is_over = framing.length == 0
        # A sender that expects a "continue" sends nothing before the first piece is asked for.
        self._is_asked_for = not framing.expects_continue

    async def next(self) -> bytes:
        """Return the next piece, which may be empty.

        Raises:
            RefusedError: the connection has ended.
        """
        self._is_asked_for = True
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.is_over = True
            raise refusal(HTTPStatus.BAD_REQUEST, "body: the connection ended before its end: send it whole")
        self.is_over = not message.get("more_body", False)
        piece: bytes = message.get("body", b"")
        return piece

    async def discard(self) -> None:
        """Read and drop a limited part of an unwanted body: many senders read no answer before they have sent all."""
        if not self._is_asked_for or (self.length or 0) > _UNWANTED_BYTES:
            return
        size = 0
        try:
            async with asyncio.timeout(_UNWANTED_SECONDS):
                while not self.is_over and size <= _UNWANTED_BYTES:
                    size += len(await self.next())
        except (TimeoutError, RefusedError):
            return

    async def wait_until_gone(self) -> None:
        """Return when the connection has ended, or the request is answered. The body must be whole."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class BodyReader:
    """Read the bodies of a server's requests. Its methods belong to the server's loop.

    Args:
        source: the limits, and what parsers need to know.
        admission: says whether there is room, and counts the bytes of bodies.
        deadlines: hold the time limits of the bodies that are being read.
    """

    def __init__(self, source: Http, admission: Admission, deadlines: Deadlines) -> None:
        self._source = source
        self._admission = admission
        self._deadlines = deadlines
        self._parsers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="http parser")
        # Its thread begins with the first work, which most sources never have.
        self._checks = ThreadPoolExecutor(1, thread_name_prefix="http check")
        self._to_check = 0

    def close(self) -> None:
        """End the threads. The loop must have ended."""
        self._parsers.shutdown(wait=False, cancel_futures=True)
        self._checks.shutdown(wait=False, cancel_futures=True)

    async def read(
        self,
        body: RequestBody,
        route: Route,
        headers: Headers,
        encoding: str | None,
        signed: CheckedRequest | None,
        *,
        may_lack_records: bool = False,
    ) -> Pushed | PushedRows | Plain | Reply:
        """Return what the route's parser makes of the body, if it is signed as it must be.

        With ``may_lack_records``, a body whose lines can all be no records is returned with these alone.

        Raises:
            RefusedError: the body is too large, too late, not whole or not readable, its signature is not good, or
                there is no room for it; or its sender left before it was parsed.
        """
        data = await self._read_whole(body)
        try:
            if signed is not None:
                await self._work_before(body, data, signed)
            return await self._parse(route, headers, body, data, encoding, signed)
        except PushRefusedError as error:
            if may_lack_records and isinstance(error, NoRecordError):
                return Plain([], None, error.rejected)
            if error.status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
                raise refusal(error.status, str(error), accept_encoding=ENCODINGS) from error
            raise refusal(error.status, str(error)) from error

    async def _read_whole(self, body: RequestBody) -> bytes:
        """Return the body as it came. The admission counts its bytes then, and does not where this raises."""
        most = self._source.max_body_bytes
        length = body.length
        if length is not None and length > most:
            raise refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"body: {length} bytes, max_body_bytes is {most}: send less at once",
            )
        if (too_much := self._admission.check_room(length or 0)) is not None:
            raise RefusedError(too_much)
        pieces: list[bytes] = []
        size = 0
        is_whole = False
        # Only bytes that came are counted, not announced ones: a body that never comes takes no room.
        reading = self._deadlines.create(self._source.request_timeout)
        try:
            async with reading:
                while not body.is_over:
                    piece = await body.next()
                    size += len(piece)
                    self._admission.count_body_bytes(len(piece))
                    pieces.append(piece)
                    if size > most:
                        raise refusal(
                            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                            f"body: more than {most} bytes, which is max_body_bytes: send less at once",
                        )
                    if self._admission.body_bytes > size and (too_much := self._admission.check_room(0)) is not None:
                        raise RefusedError(too_much)
            if length not in {None, size}:
                raise refusal(
                    HTTPStatus.BAD_REQUEST,
                    f"body: {size} bytes came, Content-Length is {length}: send it whole",
                    connection="close",
                )
            is_whole = True
        except TimeoutError:
            if (not_now := self._admission.check_ready()) is not None:
                raise RefusedError(not_now) from None
            raise refusal(
                HTTPStatus.REQUEST_TIMEOUT,
                f"body: it was not whole after request_timeout ({self._source.request_timeout:g} s): send it faster, "
                "or less at once",
            ) from None
        finally:
            self._deadlines.discard(reading)
            if not is_whole:
                self._admission.count_body_bytes(-size)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _work_before(self, body: RequestBody, data: bytes, signed: CheckedRequest) -> None:
        """Do what a check needs before it. The admission no longer counts the body where this raises."""
        is_done = False
        try:
            if (work := signed.work_before(data)) is not None:
                if self._to_check >= _MOST_TO_CHECK:
                    raise refusal(
                        HTTPStatus.SERVICE_UNAVAILABLE,
                        f"request: {_MOST_TO_CHECK} others wait to be checked: send again",
                        retry_after=RETRY_SECONDS,
                    )
                self._to_check += 1
                try:
                    await self._finished(body, asyncio.wrap_future(self._checks.submit(work)))
                finally:
                    self._to_check -= 1
            is_done = True
        finally:
            if not is_done:
                self._admission.count_body_bytes(-len(data))

    async def _parse(
        self,
        route: Route,
        headers: Headers,
        body: RequestBody,
        data: bytes,
        encoding: str | None,
        signed: CheckedRequest | None,
    ) -> Pushed | PushedRows | Plain | Reply:
        """Parse a body. The admission no longer counts it when its parsing has ended."""
        held = len(data)

        def grow(nbytes: int) -> None:
            nonlocal held
            held += nbytes
            self._admission.count_body_bytes(nbytes)
            if (too_much := self._admission.check_grown(held)) is not None:
                raise RefusedError(too_much)

        limits = ParsingLimits(
            most_values=self._source.max_body_values, seconds=self._source.parse_timeout, on_grown=grow
        )

        def parse() -> Pushed | PushedRows | Plain | Reply:
            limits.check()
            if signed is not None:
                signed.check(data)
            whole = decompressed(data, encoding, most_bytes=self._source.max_body_bytes, limits=limits)
            return route.parse(headers, whole, self._source, limits)

        if held <= PARSE_ON_LOOP_BYTES and encoding is None:
            try:
                return parse()
            except ParsingStoppedError:
                raise self._too_slow() from None
            finally:
                self._admission.count_body_bytes(-held)
        job = self._parsers.submit(parse)
        # Not before: bodies that wait for a thread, or are parsed in vain, take memory too.
        job.add_done_callback(lambda _: self._admission.count_body_bytes(-held))
        return await self._parsed(body, limits, asyncio.wrap_future(job))

    async def _parsed(
        self, body: RequestBody, limits: ParsingLimits, job: asyncio.Future[Pushed | PushedRows | Plain | Reply]
    ) -> Pushed | PushedRows | Plain | Reply:
        try:
            return await self._finished(body, job)
        finally:
            limits.stop()

    async def _finished(self, body: RequestBody, job: asyncio.Future[T]) -> T:
        """Wait for a thread. Drop the job if its time is over, or no request waits for its answer any more."""
        gone = asyncio.ensure_future(body.wait_until_gone())
        # It waits longer than the job may take: a job says best itself why it ended.
        waiting = self._deadlines.create(self._source.parse_timeout + _LATE_SECONDS)
        try:
            async with waiting:
                either: list[asyncio.Future[Any]] = [job, gone]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if not job.done():
                raise refusal(HTTPStatus.BAD_REQUEST, "body: the connection ended before it was parsed: send it again")
            return job.result()
        except (TimeoutError, ParsingStoppedError):
            if (not_now := self._admission.check_ready()) is not None:
                raise RefusedError(not_now) from None
            raise self._too_slow() from None
        finally:
            self._deadlines.discard(waiting)
            # A thread that has not begun it will not; one that has, ends at its next check.
            job.cancel()
            gone.cancel()

    def _too_slow(self) -> RefusedError:
        return refusal(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"body: it was not parsed within parse_timeout ({self._source.parse_timeout:g} s): send again, or less at "
            "once",
            retry_after=RETRY_SECONDS,
        )

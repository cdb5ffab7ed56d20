"""The bodies of requests: reads, decompresses and parses each within the source's limits of size and time.

From a body's first byte until it is parsed, the admission counts it. Small bodies are parsed on the server's loop,
others by threads that do nothing else, so that the loop goes on meanwhile. This module never looks at a request's
records, and never answers a request: what it does not take, it refuses by an error.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TYPE_CHECKING

from receiver_runtime.receivers.http.decompression import ENCODINGS, decompressed
from receiver_runtime.receivers.http.pushed import PushRefusedError
from receiver_runtime.receivers.http.refusals import RefusedError, refusal

if TYPE_CHECKING:
    from starlette.types import Receive

    from receiver_runtime.receivers.http.admission import Admission
    from receiver_runtime.receivers.http.deadlines import Deadlines
    from receiver_runtime.receivers.http.framing_checks import BodyFraming
    from receiver_runtime.receivers.http.pushed import Headers, Pushed
    from receiver_runtime.receivers.http.records import Plain
    from receiver_runtime.receivers.http.route import Route
    from receiver_runtime.sources.http import Http

# Bytes up to which a body that is not compressed is parsed on the loop: handing it to a thread would take longer.
_PARSE_ON_LOOP_BYTES = 64 * 1024
_WORKERS = 2  # threads that decompress and parse
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

    def close(self) -> None:
        """End the threads. The loop must have ended."""
        self._parsers.shutdown(wait=False, cancel_futures=True)

    async def read(self, body: RequestBody, route: Route, headers: Headers, encoding: str | None) -> Pushed | Plain:
        """Return what the route's parser makes of the body.

        Raises:
            RefusedError: the body is too large, too late, not whole or not readable, or there is no room for it.
        """
        data = await self._read_whole(body)
        try:
            return await self._parse(route, headers, data, encoding)
        except PushRefusedError as error:
            if error.status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE:
                raise refusal(error.status, str(error), accept_encoding=ENCODINGS) from error
            raise refusal(error.status, str(error)) from error
        finally:
            # Not before: bodies that wait for a thread take memory too.
            self._admission.body_bytes -= len(data)

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
                    self._admission.body_bytes += len(piece)
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
                self._admission.body_bytes -= size
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _parse(self, route: Route, headers: Headers, data: bytes, encoding: str | None) -> Pushed | Plain:
        def parse() -> Pushed | Plain:
            body = decompressed(data, encoding, most_bytes=self._source.max_body_bytes)
            return route.parse(headers, body, self._source)

        if len(data) <= _PARSE_ON_LOOP_BYTES and encoding is None:
            return parse()
        return await asyncio.get_running_loop().run_in_executor(self._parsers, parse)

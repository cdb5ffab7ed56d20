"""Answer a sender that asks where its channel is: ``GET …/channels/NAME``.

The answer is the driver log's, read in a thread. It moves nothing.
"""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from receiver_runtime.receivers.http.channels.channel import is_name, no_name
from receiver_runtime.receivers.http.declaration import STREAM_PATH
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError
from receiver_runtime.receivers.http.requests.refusals import AWAY_RETRY_SECONDS, RefusedError, refusal
from receiver_runtime.receivers.http.requests.route import Reply
from receiver_runtime.sources.fields.request_target import unreadable_target
from tracker_store.blocks.channels import ChannelKey
from tracker_store.connection.errors import TRANSIENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Scope

    from receiver_runtime.receivers.http.body_reader import RequestBody
    from receiver_runtime.receivers.http.declaration import Http
    from receiver_runtime.receivers.http.intake import Intake
    from receiver_runtime.receivers.http.requests.pushed import Headers
    from receiver_runtime.supervisor.attached_supervisor import AttachedSupervisor

#: Where a channel's position is asked for: a server has one stream, so its name may be left out.
CHANNEL_PATHS = (f"{STREAM_PATH}/channels/{{name}}", "/channels/{name}")
_WORKERS = 2  # threads that ask the driver log, each over a connection


class ChannelPositions:
    """Answer with positions. All methods except ``close`` belong to the server's loop.

    Args:
        source: what is declared.
        supervisor: the receiver's.
        intake: the server's.
        check: raises RefusedError if the stream takes no channels: else a sender learns it only from its first records.
    """

    def __init__(self, source: Http, supervisor: AttachedSupervisor, intake: Intake, check: Callable[[], None]) -> None:
        self._source = source
        self._supervisor = supervisor
        self._intake = intake
        self._check = check
        self._threads = ThreadPoolExecutor(_WORKERS, thread_name_prefix="http channels")

    def close(self) -> None:
        """End the threads. The loop must have ended."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def answer(self, scope: Scope, headers: Headers, _: RequestBody) -> Reply:
        """Return the position of the channel that a request's path names.

        Raises:
            RefusedError: the request is no such question, or may not ask.
        """
        if (not_now := self._intake.admission.check_ready()) is not None:
            raise RefusedError(not_now)
        if (why := unreadable_target(scope)) is not None:
            raise refusal(HTTPStatus.BAD_REQUEST, why)
        if scope["method"] not in {"GET", "HEAD"}:
            detail = f"method: {scope['method']} does nothing here: GET the channel's position"
            raise refusal(HTTPStatus.METHOD_NOT_ALLOWED, detail, allow="GET, HEAD")
        stream, name = scope["path_params"].get("stream"), scope["path_params"]["name"]
        if stream is not None and self._supervisor.stream_name not in {"", stream}:
            raise refusal(HTTPStatus.NOT_FOUND, f"path: there is no stream {stream!r} at this address")
        sender = self._intake.authorize(headers)
        try:
            if (signed := self._intake.signed(headers, scope["query_string"])) is not None:
                signed.check(b"")
        except PushRefusedError as error:
            raise refusal(error.status, str(error)) from error
        if not is_name(name):
            raise refusal(HTTPStatus.BAD_REQUEST, f"path: {no_name(name)}")
        self._check()
        position = await self._position(ChannelKey(sender or "", name))
        body = json.dumps({"channel": name, "offset": position, "body": self._source.body}).encode()
        return Reply(HTTPStatus.OK, "application/json", body, [("forebay-offset", str(position))])

    async def _position(self, channel: ChannelKey) -> int:
        ask = partial(self._supervisor.block_path.channel_positions, [channel], wait=False)
        async with self._intake.in_time():
            try:
                [position] = await asyncio.get_running_loop().run_in_executor(self._threads, ask)
            except TRANSIENT as error:
                raise refusal(
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    "the driver log does not answer: ask again in a moment",
                    retry_after=AWAY_RETRY_SECONDS,
                ) from error
        return position

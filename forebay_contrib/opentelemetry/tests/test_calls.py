"""Check how many messages of gRPC are in memory before they are counted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc  # type: ignore[import-untyped]
import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from forebay_contrib.opentelemetry.door.calls import serving_calls
from forebay_contrib.opentelemetry.signals import LOGS

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class Holding:
    """Hold the first request where ``reached`` is set, until ``go_on`` is."""

    def __init__(self, *, has_message: bool, asks_again: bool) -> None:
        self._has_message = has_message
        self._asks_again = asks_again
        self._is_first = True
        self.reached = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        is_first, self._is_first = self._is_first, False
        if not self._has_message:
            self.reached.set()
        await receive()
        if is_first:
            again = asyncio.ensure_future(receive()) if self._asks_again else None
            await asyncio.sleep(0)
            self.reached.set()
            await self.go_on.wait()
            if again is not None:
                again.cancel()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def retry_seconds(error: Any) -> int:  # noqa: ANN401  grpcio's
    status = Status.FromString(dict(error.trailing_metadata())["grpc-status-details-bin"])
    info = RetryInfo()
    assert status.details[0].Unpack(info)
    return int(info.retry_delay.seconds)


async def send_two(message: bytes | None, *, asks_again: bool, is_refused: bool) -> None:
    application = Holding(has_message=message is not None, asks_again=asks_again)
    limits: dict[str, Any] = {"most_bytes": 2**20, "most_calls": 10, "most_reading": 1, "idle_seconds": 60.0}
    async with (
        asyncio.timeout(60),
        serving_calls(application, ("127.0.0.1", 0), tls=None, **limits) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        first = channel.stream_unary(LOGS.method)()
        if message is None:
            await first.wait_for_connection()
        else:
            await first.write(message)
        await application.reached.wait()
        second = channel.unary_unary(LOGS.method)
        if is_refused:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await second(b"second")
            assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert retry_seconds(error.value) >= 1
        else:
            assert await second(b"second") == b""
        application.go_on.set()
        if message is None:
            await first.write(b"first")
        await first.done_writing()
        assert await first == b""
        assert await second(b"third") == b""


@pytest.mark.parametrize(
    ("message", "asks_again", "is_refused"),
    [
        (None, False, True),
        (b"small", False, False),
        # As one that is passed on, and that the other receiver has not read yet.
        (b"x" * 100_000, False, True),
        # As one that a thread parses.
        (b"x" * 100_000, True, False),
    ],
    ids=["not sent", "small", "held", "counted"],
)
def test_messages_that_nothing_else_counts_are_limited(
    message: bytes | None, *, asks_again: bool, is_refused: bool
) -> None:
    asyncio.run(send_two(message, asks_again=asks_again, is_refused=is_refused))

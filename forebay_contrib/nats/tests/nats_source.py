"""NATS JetStream for the conformance suite and its own tests: a stream, numbered messages, and the expected output."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from nats.aio.client import Client
from nats.errors import Error, NoRespondersError

from forebay.testing.sending import Sending
from forebay_contrib.nats.declaration import NatsJetStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from nats.js import JetStreamContext

    from forebay.testing.source_rig import SourceRig
    from forebay_contrib.nats.tests.nats import NatsServer

T = TypeVar("T")
_SECONDS = 60.0


class NatsStream:
    """A stream of its own on a server, and each message's data by the sequence number that the server assigned."""

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.name = f"s-{uuid.uuid4().hex[:10]}"
        self._number = 0
        self._sent: dict[int, bytes] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.client = Client()
        self.ask(self._connect)
        self.ask(lambda: self.jetstream.add_stream(name=self.name, subjects=[f"{self.name}.>"]))

    @property
    def jetstream(self) -> JetStreamContext:
        return self.client.jetstream(timeout=5)

    def ask(self, what: Callable[[], Awaitable[T]]) -> T:
        """Await the coroutine on the client's event loop."""

        async def run() -> T:
            return await what()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(_SECONDS)

    async def _connect(self) -> None:
        options: dict[str, Any] = {"reconnect_time_wait": 0.05, "max_reconnect_attempts": -1}
        await self.client.connect(f"nats://{self.server.address}", **options)

    def source(self, **changes: Any) -> NatsJetStream:  # noqa: ANN401  fields of the source
        given: dict[str, Any] = {
            "servers": self.server.address,
            "stream": self.name,
            "durable": f"d-{self.name}",
            "ack_wait": "2s",
            "connect_timeout": "2s",
            **changes,
        }
        return NatsJetStream(**given)

    def send(self, records: int) -> None:
        first, self._number = self._number, self._number + records
        self.ask(lambda: self._send([b"%d" % number for number in range(first, first + records)]))

    async def _send(self, values: list[bytes]) -> None:
        await asyncio.gather(*(self._publish(value) for value in values))

    async def _publish(self, value: bytes, **more: Any) -> int:  # noqa: ANN401  as `publish` takes it
        """Publish, and retry while the server is unavailable; the server deduplicates the copies of a message."""
        headers = {"Nats-Msg-Id": uuid.uuid4().hex, **(more.pop("headers", None) or {})}
        subject = more.pop("subject", f"{self.name}.a")
        deadline = time.monotonic() + _SECONDS
        while True:
            try:
                answer = await self.jetstream.publish(subject, value, headers=headers, **more)
            except (Error, NoRespondersError, TimeoutError):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            else:
                self._sent[answer.seq] = value
                return int(answer.seq)

    def publish(self, value: bytes, **more: Any) -> int:  # noqa: ANN401  as `publish` takes it
        """Publish one message; return its sequence number."""
        return self.ask(lambda: self._publish(value, **more))

    def send_odd(self) -> int:
        self.publish(b"")
        self.publish(b"\0\xff")
        self.publish(b"y" * 900_000)
        # A Status header set by the sender, not by the server.
        self.publish(b"status", headers={"Status": "500", "Description": "Consumer Deleted"})
        self.publish(b"headers", subject=f"{self.name}.b.c", headers={"a": "1"})
        return 5

    def sending(self) -> Sending:
        return Sending(lambda: self.send(50))

    @contextmanager
    def away(self) -> Iterator[None]:
        self.server.kill()
        yield
        self.server.start()

    def all_came(self, rig: SourceRig) -> bool:
        return rig.registered() >= len(self._sent)

    def waiting(self) -> int:
        """Return the number of messages that were delivered and are not acknowledged."""
        info = self.ask(lambda: self.jetstream.consumer_info(self.name, self.source().durable))
        return int(info.num_ack_pending or 0)

    def check(self, rig: SourceRig) -> None:
        rows = rig.rows()
        found = [row["sequence"] for row in rows]
        assert len(found) == len(set(found)), f"{len(found) - len(set(found))} messages came twice"
        missing = sorted(set(self._sent) - set(found))
        assert not missing, f"{len(missing)} messages did not come, as {missing[:5]}"
        assert not set(found) - set(self._sent)
        assert all(row["value"] == self._sent[row["sequence"]] for row in rows)
        assert rig.failed_checks() == []

    def close(self) -> None:
        self.ask(self.client.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_SECONDS)
        self._loop.close()

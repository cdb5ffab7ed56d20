"""Run 2,000 senders on their own connections, kill their receiver, and check that no acknowledged record is lost."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from forebay.testing.receiver_processes import eventually
from forebay.testing.sources import stop
from receiver_runtime.receivers.http.declaration import Http
from tests.conformance.test_http_hazards import port_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.testing.source_rig import SourceRig

# In seconds. A test waits for several things in turn, each for as long as a process start takes on a busy machine.
pytestmark = pytest.mark.timeout(240, func_only=True)

CONNECTIONS = 2000
REQUESTS_EACH = 4
_DESCRIPTORS = CONNECTIONS + 1000
# In seconds. A receiver that is gone ends the connection; this limit is for a connection that hangs nevertheless.
_ANSWER_SECONDS = 60.0


@dataclass
class Senders:
    """Senders, half of them with keys. Each sends its next record when the previous one is acknowledged."""

    port: int
    acknowledged: list[bytes] = field(default_factory=list)
    connected: int = 0
    most_connected: int = 0
    sent_again: int = 0
    #: No sender sends a second record before all are connected, nor its last one before the kill.
    all_connected: asyncio.Event = field(default_factory=asyncio.Event)
    killed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(CONNECTIONS):
                group.create_task(self._send(number))

    async def _send(self, number: int) -> None:
        left = [b'"%s-%d-%d"' % (b"key" if number % 2 else b"none", number, n) for n in range(REQUESTS_EACH)]
        while left:
            with contextlib.suppress(OSError, EOFError, TimeoutError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                self.connected += 1
                self.most_connected = max(self.most_connected, self.connected)
                if self.connected == CONNECTIONS:
                    self.all_connected.set()
                try:
                    while left:
                        if len(left) < REQUESTS_EACH:
                            await asyncio.wait_for(self.all_connected.wait(), 60)
                        if len(left) == 1:
                            await asyncio.wait_for(self.killed.wait(), 60)
                        async with asyncio.timeout(_ANSWER_SECONDS):
                            if await self._post(reader, writer, left[0]) != 200:
                                break
                        self.acknowledged.append(left.pop(0))
                finally:
                    self.connected -= 1
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
            if left:
                self.sent_again += 1
                await asyncio.sleep(0.1)

    @staticmethod
    async def _post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> int:
        key = b"Idempotency-Key: %s\r\n" % body.strip(b'"') if body.startswith(b'"key') else b""
        writer.write(
            b"POST /v1/s0 HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            + key
            + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        await reader.readexactly(length)
        return int(head[9:12])


async def _kill_in_the_midst(rig: SourceRig) -> Senders:
    process = rig.start()
    senders = Senders(await asyncio.to_thread(port_of, rig))
    sending = asyncio.create_task(senders.run())
    while senders.most_connected < CONNECTIONS or len(senders.acknowledged) < CONNECTIONS:
        await asyncio.sleep(0.01)
        assert not sending.done()
    process.kill()
    process.wait(60)
    senders.killed.set()
    rig.start()
    senders.port = await asyncio.to_thread(port_of, rig, after=1)
    await sending
    return senders


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Raise the descriptor limit for both ends of the connections; the receiver raises its own limit too."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _DESCRIPTORS:
        pytest.skip(f"the system allows {hard} descriptors, this takes {_DESCRIPTORS}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, _DESCRIPTORS), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_2000_connections_and_a_kill(make_rig: Callable[..., SourceRig]) -> None:
    rig = make_rig(Http(listen="127.0.0.1:0"), block_interval="200ms")
    senders = asyncio.run(_kill_in_the_midst(rig))
    assert senders.most_connected == CONNECTIONS
    assert senders.sent_again > 0
    eventually(lambda: rig.registered() >= CONNECTIONS * REQUESTS_EACH, "all of them")
    stop(rig.processes[-1])
    came = Counter(row["body"] for row in rig.rows())
    assert set(came) == set(senders.acknowledged)
    assert len(came) == CONNECTIONS * REQUESTS_EACH
    assert {body: times for body, times in came.items() if times > 1 and body.startswith(b'"key')} == {}
    assert rig.failed_checks() == []

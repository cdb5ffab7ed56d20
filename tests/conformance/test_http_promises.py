"""Compare senders' answers with the blocks while receivers are stopped, paused, cut off, and run in pairs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forebay.testing.receiver_processes import DEADLINE_SECONDS, eventually
from forebay.testing.sources import proxied, stop
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.watching.exit_codes import ExitCode
from tests.conformance.test_http_hazards import bodies, port_of, post

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forebay.testing.source_rig import SourceRig

_CONNECTIONS = 60
_AGAIN_SECONDS = 0.05
# In seconds. An agent kills a receiver that takes longer to stop.
_AGENT_SECONDS = 15.0


@dataclass
class Load:
    """Senders, by turns with a key, without one, and with ``ack=buffered``; each records its answers.

    A record with a key is sent until it is answered with 200, any other record once.
    """

    port: int
    #: All bodies, and the last status that their senders got, 0 if they got none.
    sent: set[bytes] = field(default_factory=set)
    told: dict[bytes, int] = field(default_factory=dict)
    answers: Counter[int] = field(default_factory=Counter)
    ended: bool = False
    _thread: threading.Thread | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[Load]:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        try:
            yield self
        finally:
            self.end()

    def end(self) -> None:
        """End the load; each sender first gets its last answer."""
        self.ended = True
        if self._thread is not None:
            self._thread.join(DEADLINE_SECONDS)
            assert not self._thread.is_alive()

    def more(self, answers: int, status: int = 200) -> None:
        before = self.answers[status]
        eventually(lambda: self.answers[status] >= before + answers, f"{answers} answers {status}")

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(_CONNECTIONS):
                group.create_task(self._send(number))

    async def _send(self, number: int) -> None:
        kind = (b"key", b"none", b"buffered")[number % 3]
        numbered = (b'"%s-%d-%d"' % (kind, number, count) for count in itertools.count())
        body = next(numbered)

        def goes_on() -> bool:
            # A sender with a key does not stop before its record is accepted.
            return not self.ended or (kind == b"key" and self.told.get(body, 200) != 200)

        while goes_on():
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                try:
                    is_open = True
                    while is_open and goes_on():
                        is_open = await self._post(reader, writer, body, kind)
                        if kind != b"key" or self.told[body] == 200:
                            body = next(numbered)
                finally:
                    writer.close()
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _post(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes, kind: bytes) -> bool:
        """Post one record; return whether the connection stays open."""
        key = b"Idempotency-Key: %s\r\n" % body.strip(b'"') if kind == b"key" else b""
        query = b"?ack=buffered" if kind == b"buffered" else b""
        self.sent.add(body)
        self.told[body] = 0
        try:
            writer.write(
                b"POST /v1/s0%s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s"
                % (query, key, len(body), body)
            )
            async with asyncio.timeout(DEADLINE_SECONDS):
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
                await reader.readexactly(length)
        except (OSError, EOFError):
            return False
        status = int(head[9:12])
        self.told[body] = status
        self.answers[status] += 1
        assert status in {200, 202, 429, 503}, status
        if status in {429, 503}:
            await asyncio.sleep(_AGAIN_SECONDS)
        return b"connection: close" not in head

    def check(self, rig: SourceRig, *, buffered_may_miss: bool) -> None:
        came = Counter(row["body"] for row in rig.rows())
        lost = [body for body, status in self.told.items() if status == 200 and not came[body]]
        assert lost == []
        assert {body: times for body, times in came.items() if times > 1} == {}
        assert set(came) <= self.sent
        if not buffered_may_miss:
            assert [body for body, status in self.told.items() if status == 202 and not came[body]] == []
        assert rig.failed_checks() == []


def test_a_stop_ends_in_time_and_loses_nothing(make_rig: Callable[..., SourceRig]) -> None:
    rig = make_rig(Http(listen="127.0.0.1:0"))
    process = rig.start()
    load = Load(port_of(rig))
    with load.running():
        load.more(200)
        began = time.monotonic()
        stop(process)
        assert time.monotonic() - began < _AGENT_SECONDS
        second = rig.start()
        load.port = port_of(rig, after=1)
        load.more(200)
    stop(second)
    load.check(rig, buffered_may_miss=False)


def test_a_paused_and_replaced_process_answers_no_request_with_200(make_rig: Callable[..., SourceRig]) -> None:
    rig = make_rig(Http(listen="127.0.0.1:0"))
    first = rig.start()
    load = Load(port_of(rig))
    with load.running():
        load.more(200)
        first.send_signal(signal.SIGSTOP)
        second = rig.start(assignment=2)
        port = port_of(rig, after=1)
        assert post(port, b'"other"', idempotency_key="other")[0] == 200
        first.send_signal(signal.SIGCONT)
        assert first.wait(DEADLINE_SECONDS) == ExitCode.FENCED
        load.sent.add(b'"other"')
        load.port = port
        load.more(200)
    stop(second)
    load.check(rig, buffered_may_miss=True)


def test_a_driver_log_unavailable_for_longer_than_senders_wait(
    make_rig: Callable[..., SourceRig], database_url: str
) -> None:
    rig = make_rig(Http(listen="127.0.0.1:0", acknowledgement_timeout="1s"))
    with proxied(database_url) as (proxy, url):
        process = rig.start(database_url=url)
        load = Load(port_of(rig))
        with load.running():
            load.more(200)
            proxy.away = True
            proxy.cut()
            load.more(200, 503)
            proxy.away = False
            load.more(200)
        stop(process)
    load.check(rig, buffered_may_miss=False)


def test_one_key_on_two_receivers_at_once(make_rig: Callable[..., SourceRig]) -> None:
    rig = make_rig(Http(listen="127.0.0.1:0"), receivers=2)
    processes = [rig.start(0), rig.start(1)]
    ports = [port_of(rig, 0), port_of(rig, 1)]
    stored: dict[int, int] = defaultdict(int)
    with ThreadPoolExecutor(16) as pool:
        posts = [
            (key, pool.submit(post, port, b"[%d, %d]" % (key, key), idempotency_key=f"k{key}"))
            for key in range(60)
            for _ in range(2)
            for port in ports
        ]
        for key, each in posts:
            status, counts = each.result(60)
            assert status == 200
            assert counts["records"] + counts["duplicates"] == 2
            stored[key] += counts["records"]
    assert stored == dict.fromkeys(range(60), 2)
    assert bodies(rig) == sorted(b"%d" % key for key in range(60) for _ in range(2))
    for process in processes:
        stop(process)
    assert rig.failed_checks() == []

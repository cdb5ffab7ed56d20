"""Channels in real processes on a real driver log: killed, replaced, and two that get one channel by turns."""

from __future__ import annotations

import http.client
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay.testing.receiver_processes import DEADLINE_SECONDS, eventually
from forebay.testing.sources import proxied, stop
from receiver_runtime.receivers.http.declaration import Http
from tests.conformance.test_http_hazards import bodies, port_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from forebay.testing.source_rig import SourceRig

LINES = {"Content-Type": "application/x-ndjson"}


@dataclass(frozen=True)
class Answer:
    status: int
    position: int | None
    content: Mapping[str, Any]


def ask(port: int, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = LINES) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_SECONDS)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        position = response.getheader("Forebay-Offset")
        return Answer(response.status, None if position is None else int(position), json.loads(response.read()))
    finally:
        connection.close()


def send(port: int, channel: str, offset: int, records: Sequence[bytes]) -> Answer:
    headers = LINES | {"Forebay-Channel": channel, "Forebay-Offset": str(offset)}
    return ask(port, "POST", "/v1/s0", b"\n".join(records), headers)


def records(first: int, end: int, channel: str = "a") -> list[bytes]:
    return [b'{"%s": %d}' % (channel.encode(), n) for n in range(first, end)]


def assert_each_once(rig: SourceRig, sent: Sequence[bytes]) -> None:
    assert bodies(rig) == sorted(sent)
    assert rig.failed_checks() == []


def positions(rig: SourceRig) -> dict[str, int]:
    return dict(rig.execute("SELECT channel, position FROM forebay.channel_progress WHERE stream = 's0'"))


def test_a_channel_goes_on_after_a_kill_and_on_another_receiver(make_rig: Callable[..., SourceRig]) -> None:
    rig = make_rig(Http(listen="127.0.0.1:0"), receivers=2)
    first = rig.start(0)
    port = port_of(rig)
    assert ask(port, "GET", "/channels/a") == Answer(200, 0, {"channel": "a", "offset": 0, "body": "auto"})
    assert send(port, "a", 0, records(0, 100)) == Answer(200, 100, {"records": 100, "duplicates": 0})
    # All of it again, some of it again, and a gap.
    assert send(port, "a", 0, records(0, 100)) == Answer(200, 100, {"records": 0, "duplicates": 100})
    assert send(port, "a", 90, records(90, 110)) == Answer(200, 110, {"records": 10, "duplicates": 10})
    refused = send(port, "a", 111, records(111, 112))
    assert (refused.status, refused.position) == (409, 110)
    first.kill()
    first.wait(60)
    again = rig.start(0)
    other = rig.start(1)
    ports = port_of(rig, after=1), port_of(rig, 1)
    assert send(ports[1], "a", 100, records(100, 120)) == Answer(200, 120, {"records": 10, "duplicates": 10})
    # The first one has not seen that yet, and asks before it refuses.
    assert send(ports[0], "a", 120, records(120, 130)) == Answer(200, 130, {"records": 10, "duplicates": 0})
    # The second believes that the channel is at 120: the driver log refuses its block.
    assert send(ports[1], "a", 120, records(120, 135)) == Answer(200, 135, {"records": 5, "duplicates": 10})
    # The first one believes 130, and stores what the driver log then refuses.
    assert send(ports[0], "a", 130, records(130, 140)) == Answer(200, 140, {"records": 5, "duplicates": 5})
    assert ask(ports[1], "GET", "/v1/s0/channels/a").content == {"channel": "a", "offset": 140}
    assert positions(rig) == {"a": 140}
    assert_each_once(rig, records(0, 140))
    stop(again)
    stop(other)


def test_killed_between_storing_and_registering_the_sender_s_retry_counts_once(
    make_rig: Callable[..., SourceRig], database_url: str
) -> None:
    rig = make_rig(Http(listen="127.0.0.1:0"))
    with proxied(database_url) as (proxy, url):
        process = rig.start(database_url=url)
        port = port_of(rig)
        assert send(port, "a", 0, records(0, 10)).position == 10
        proxy.away = True
        proxy.cut()
        answers: list[Answer] = []

        def retry() -> None:
            try:
                answers.append(send(port, "a", 10, records(10, 20)))
            except OSError:
                return

        sender = threading.Thread(target=retry, daemon=True)
        sender.start()
        eventually(lambda: rig.stored_frames() == 2, "a stored block that is not registered")
        process.kill()
        process.wait(60)
        sender.join(DEADLINE_SECONDS)
    assert answers == []
    second = rig.start()
    port = port_of(rig, after=1)
    assert rig.said("1 blocks, 10 records left to the sender")
    assert ask(port, "GET", "/channels/a").content == {"channel": "a", "offset": 10}
    assert send(port, "a", 10, records(10, 25)) == Answer(200, 25, {"records": 15, "duplicates": 0})
    assert_each_once(rig, records(0, 25))
    stop(second)


class Sending(threading.Thread):
    """Send a channel's records to receivers by turns, several requests at once, until all are acknowledged."""

    def __init__(self, rig: SourceRig, channel: str, count: int) -> None:
        super().__init__(daemon=True)
        self._rig = rig
        self._channel = channel
        self._records = records(0, count, channel)
        self.position = 0
        self.retries = 0

    def run(self) -> None:
        turn = 0
        with ThreadPoolExecutor(3) as threads:
            while self.position < len(self._records):
                turn += 1
                begins = range(self.position, min(self.position + 21, len(self._records)), 7)
                for answer in threads.map(self._send, begins, [turn // 4] * len(begins)):
                    if answer is None or answer.status != 200:
                        self.retries += 1
                    elif answer.position is not None:
                        self.position = max(self.position, answer.position)

    def _send(self, begin: int, turn: int) -> Answer | None:
        try:
            return send(self._newest_port(turn), self._channel, begin, self._records[begin : begin + 10])
        except (OSError, http.client.HTTPException):
            return None

    def _newest_port(self, turn: int) -> int:
        numbers = range(len(self._rig.receiver_ids))
        return port_of(self._rig, numbers[turn % len(numbers)])


def test_each_record_counts_once_while_receivers_are_killed(make_rig: Callable[..., SourceRig]) -> None:
    rig = make_rig(Http(listen="127.0.0.1:0"), receivers=2)
    processes = [rig.start(0), rig.start(1)]
    sending = [Sending(rig, channel, 400) for channel in "abc"]
    for one in sending:
        one.start()
    for kill in range(4):
        goal = 60 * (kill + 1)
        eventually(lambda goal=goal: all(one.position >= goal for one in sending), "records that are acknowledged")  # type: ignore[misc]
        number = kill % 2
        processes[number].kill()
        processes[number].wait(60)
        processes[number] = rig.start(number, assignment=kill + 2)
    for one in sending:
        one.join(DEADLINE_SECONDS)
        assert not one.is_alive()
    for process in processes:
        stop(process)
    assert sum(one.retries for one in sending) > 0
    assert positions(rig) == dict.fromkeys("abc", 400)
    assert_each_once(rig, [record for channel in "abc" for record in records(0, 400, channel)])
    # The driver log has grown by channels.
    assert rig.execute("SELECT count(*) FROM forebay.channels") == [(3,)]
    assert rig.execute("SELECT count(*) FROM forebay.record_keys") == [(0,)]

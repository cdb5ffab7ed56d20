"""Check requests that are taken without a task: the same answers as the application gives, and the same guarantees."""

from __future__ import annotations

import json
import re
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

import pytest

from receiver_runtime.receivers.http.app import HttpApp
from receiver_runtime.receivers.http.direct import DirectRequests
from tests.unit.receiver_runtime.receivers.http.http_client import SECONDS, Listening, listening
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from receiver_runtime.receivers.http.connections.connections import Exchange
    from receiver_runtime.receivers.http.requests.pushed import Headers

_JSON = b"Content-Type: application/json\r\n"
_LINES = b"Content-Type: application/x-ndjson\r\n"


def request(
    body: bytes, more: bytes = _JSON, *, first: bytes = b"POST /v1/orders HTTP/1.1", host: bytes = b"a"
) -> bytes:
    return b"%s\r\nHost: %s\r\n%sContent-Length: %d\r\n\r\n%s" % (first, host, more, len(body), body)


@pytest.fixture
def only_direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each request fail that is not taken directly."""
    monkeypatch.setattr(HttpApp, "take", None)


class Connection:
    """One open connection; each ``ask`` is one write."""

    def __init__(self, made: Listening) -> None:
        self._made = made
        self.socket = socket.create_connection(("127.0.0.1", made.port), timeout=SECONDS)
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, data: bytes, *, cut: int = 0) -> bytes:
        """Send a request, in two pieces with ``cut``; return its whole answer without the date."""
        if cut:
            self.socket.sendall(data[:cut])
            # The server has taken the piece when it has taken this.
            assert self._made.ask("GET", "/health").status == 200
        self.socket.sendall(data[cut:])
        return self.answer()

    def answer(self) -> bytes:
        found = self._rest
        while (match := re.search(rb"(?is)\A(.*?\r\n)content-length: (\d+)(.*?\r\n)\r\n", found)) is None or len(
            found
        ) < match.end() + int(match[2]):
            piece = self.socket.recv(65536)
            assert piece, found
            found += piece
        end = match.end() + int(match[2])
        self._rest = found[end:]
        return re.sub(rb"(?i)date: [^\r]*\r\n", b"", found[:end])


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Listening]:
    with listening(tmp_path, max_body_bytes="2KiB", max_record_bytes="1KiB", headers=("x-tenant",)) as one:
        yield one


_OTHERS = [
    request(b'{"a": 1}', first=b"POST /v1/orders?ack=registered HTTP/1.1"),
    request(b'{"a": 1}', first=b"POST /v1/%6frders HTTP/1.1"),
    request(b'{"a": 1}', first=b"PUT /v1/orders HTTP/1.1"),
    request(b'{"a": 1}', first=b"POST /v1/orders HTTP/1.0"),
    request(b'{"a": 1}', first=b"POST /v1/others HTTP/1.1"),
    request(b'{"a": 1'),
    request(b""),
    request(b"[]"),
    request(b'"%s"' % (b"x" * 1500)),
    request(b'"%s"' % (b"x" * 2500)),
    request(b'{"a": 1}\nno\n', _LINES),
    request(b"1", _JSON + b"X-Tenant: a\r\nX-Tenant: b\r\n"),
    request(b"1", _JSON + b"Origin: http://elsewhere.example\r\n"),
    request(b"1", _JSON + b"Host: b\r\n"),
    request(b"1", _JSON + b"Content-Encoding: nothing\r\n"),
    request(b"1", _JSON + b"Idempotency-Key: \xff\r\n"),
    request(b"1", _JSON + b"Idempotency-Key: a\r\nIdempotency-Key: b\r\n"),
    b"POST /v1/orders HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n\r\n",
    b"POST /v1/orders HTTP/1.1\r\nContent-Length: 1\r\n\r\n1",
    request(b"1", b"ce-id: 1\r\n"),
]
_TAKEN = [
    request(b'{"a": 1}'),
    request(b'[1, {"a": 2}]', _JSON + b"x-tenant: t\r\n"),
    request(b"one\ntwo\n", b"Content-Type: text/plain\r\n"),
    request(b"\0\1", b""),
    request(b'{"a": 1}', _JSON + b"Idempotency-Key: a key\r\n"),
    request(b"data", b"ce-id: 1\r\nce-source: /s\r\nce-type: t\r\nce-specversion: 1.0\r\n"),
    request(b'{"a": 1}', _JSON + b"Connection: close\r\n"),
]


@pytest.mark.parametrize("data", _TAKEN + _OTHERS)
def test_a_request_has_the_same_answer_however_it_is_cut(made: Listening, data: bytes) -> None:
    answers: list[bytes] = []
    rows: list[list[dict[str, object]]] = []
    for cut in (0, data.index(b"\r\n\r\n") + 4, 10):
        made.log.keys.clear()
        before = len(made.rows())
        with Connection(made) as asking:
            answers.append(asking.ask(data, cut=cut))
        rows.append([{**row, "received_at": None} for row in made.rows()[before:]])
    assert answers[1:] == answers[:1] * 2
    assert rows[1:] == rows[:1] * 2


@pytest.mark.usefixtures("only_direct")
@pytest.mark.parametrize("data", _TAKEN)
def test_usual_requests_are_taken_directly(made: Listening, data: bytes) -> None:
    with Connection(made) as asking:
        assert asking.ask(data).startswith(b"HTTP/1.1 200 OK\r\n")
        assert made.rows()
        if b"close" in data:
            assert asking.socket.recv(1) == b""
        else:
            assert asking.ask(request(b"1")).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_large_body_of_lines_is_taken_directly_if_it_comes_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [b'{"n": %d, "text": "%s"}' % (n, b"x" * 80) for n in range(1000)]
    taken: list[bool] = []
    take = DirectRequests.take

    def noted(direct: DirectRequests, headers: Headers, body: bytes, exchange: Exchange) -> bool:
        taken.append(take(direct, headers, body, exchange))
        return taken[-1]

    monkeypatch.setattr(DirectRequests, "take", noted)
    with listening(tmp_path) as made, Connection(made) as asking:

        def is_taken() -> bool:
            # It goes to the application if it came in two reads.
            assert asking.ask(request(b"\n".join(lines), _LINES)).endswith(b'{"records": 1000, "duplicates": 0}')
            assert made.bodies()[-1000:] == lines
            return bool(taken)

        eventually(is_taken, "a request that came whole")
        assert taken == [True]
        # Checking this line by line would take long, so the application's threads do it.
        bad = asking.ask(request(b"\n".join([*lines, b"no JSON"]), _LINES))
        assert json.loads(bad.partition(b"\r\n\r\n")[2])["dead_letters"] == 1
        assert True not in taken[1:]


@pytest.mark.usefixtures("only_direct")
def test_keys_of_requests_that_come_together_count_each_for_its_request(made: Listening) -> None:
    made.log.keys |= {"known"}
    several = [
        (b"[1, 2]", b"a", (2, 0)),
        (b"3", b"b", (1, 0)),
        (b"[4, 5, 6]", b"known", (0, 3)),
        (b"7", b"b", (0, 1)),
        (b"[8, 9]", b"", (2, 0)),
    ]
    with ExitStack() as stack:
        asking = [stack.enter_context(Connection(made)) for _ in several]
        for one, (body, key, _) in zip(asking, several, strict=True):
            one.socket.sendall(request(body, _JSON + (b"Idempotency-Key: %s\r\n" % key if key else b"")))
        for one, (_, _, (records, duplicates)) in zip(asking, several, strict=True):
            counts = json.loads(one.answer().partition(b"\r\n\r\n")[2])
            assert counts == {"records": records, "duplicates": duplicates}
    assert sorted(made.bodies()) == [b"1", b"2", b"3", b"8", b"9"]


def test_pipelined_requests_are_answered_in_order(made: Listening) -> None:
    bodies = [b"1", b"[2, 3]", b"no JSON", b"[4, 5, 6]"]
    with Connection(made) as asking:
        asking.socket.sendall(b"".join(map(request, bodies)))
        answers = [asking.answer() for _ in bodies]
    assert [answer[9:12] for answer in answers] == [b"200", b"200", b"400", b"200"]
    assert [json.loads(answer.partition(b"\r\n\r\n")[2]).get("records") for answer in answers] == [1, 2, None, 3]
    assert made.bodies() == [b"1", b"2", b"3", b"4", b"5", b"6"]


@pytest.mark.usefixtures("only_direct")
def test_nothing_is_answered_200_before_it_is_registered(tmp_path: Path) -> None:
    with listening(tmp_path, acknowledgement_timeout="300ms") as made, Connection(made) as asking:
        made.log.away = True
        answer = asking.ask(request(b"1", _JSON + b"Idempotency-Key: a\r\n"))
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 5\r\n" in answer
        assert b"not registered within acknowledgement_timeout (0.3 s), and may be yet" in answer
        made.log.away = False
        eventually(lambda: made.bodies() == [b"1"], "the record, which was not given up")
        # The server hears of it a moment later, and until then refuses whatever comes.
        eventually(lambda: made.ask("GET", "/ready").status == 200, "the server's readiness")
        answer = asking.ask(request(b"1", _JSON + b"Idempotency-Key: a\r\n"))
        assert answer.endswith(b'{"records": 0, "duplicates": 1}')


@pytest.mark.usefixtures("only_direct")
def test_a_stop_answers_what_waits(tmp_path: Path) -> None:
    with listening(tmp_path, settings={"receiver_stop_timeout": 1.0}) as made, Connection(made) as asking:
        made.log.away = True
        asking.socket.sendall(request(b"1"))
        eventually(lambda: made.log.calls, "a stored block")
        made.rig.supervisor.lifecycle.stop("the test says so")
        answer = asking.answer()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"connection: close\r\n" in answer
        assert asking.socket.recv(1) == b""
        made.log.away = False

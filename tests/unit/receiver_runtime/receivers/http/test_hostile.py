"""Check requests no well-behaved sender makes, byte by byte on real sockets: they are refused and store nothing."""

from __future__ import annotations

import contextlib
import gzip
import json
import re
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from receiver_runtime.receivers.http import body_reader
from receiver_runtime.receivers.http.connections import connections as http_connections
from receiver_runtime.receivers.http.requests.pushed import MOST_REJECTED
from tests.unit.receiver_runtime.receivers.http.http_client import SECONDS, HandedIn, listening
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.unit.receiver_runtime.receivers.http.http_client import Listening

HEAD = b"POST /v1/orders HTTP/1.1\r\nHost: a\r\nContent-Type: text/plain\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n"
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


def request(body: bytes, more: bytes = b"") -> bytes:
    return HEAD + more + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    """Run one server for all tests: none of them harms it."""
    with listening(
        tmp_path_factory.mktemp("http"), protocols=("cloudevents", "opentelemetry"), webhook_origins="*"
    ) as one:
        yield one


def send(server: Listening, *pieces: bytes, answers: int | None = None) -> list[int]:
    """Send bytes in pieces; return the first `answers` statuses, or all up to the end, after ending our side."""
    found = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as connection:
        # Answers may come before all bytes were read, and can still be read after an error.
        with contextlib.suppress(OSError):
            for piece in pieces:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sendall(piece)
                if piece is not pieces[-1]:
                    # Pause, so that the pieces arrive separately.
                    time.sleep(0.05)
            if answers is None:
                connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            while (answers is None or len(statuses(found)) < answers) and (data := connection.recv(65536)):
                found += data
    return statuses(found)


def statuses(data: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", data)]


def stored(server: Listening, before: int) -> list[bytes]:
    return server.bodies()[before:]


@pytest.mark.parametrize(
    ("pieces", "expected", "bodies"),
    [
        pytest.param([request(b"a") + request(b"b") + request(b"c")], [200] * 3, [b"a", b"b", b"c"], id="pipelined"),
        pytest.param([b"\r\n\r\n" + request(b"a")], [200], [b"a"], id="blank lines before"),
        pytest.param([request(b"a")[:10], request(b"a")[10:90], request(b"a")[90:]], [200], [b"a"], id="in pieces"),
        pytest.param([request(b"ab")[:-1] + b"\xff"], [200], [b"a\xff"], id="no text at all"),
        pytest.param([CHUNKED + b"\r\n2;x=y\r\nab\r\n1\r\nc\r\n0\r\nX: y\r\n\r\n"], [200], [b"abc"], id="chunks"),
        pytest.param([request(b"a").replace(b"HTTP/1.1", b"HTTP/1.0")], [200], [b"a"], id="1.0"),
        pytest.param([request(b"a", b"Expect: banana\r\n")], [200], [b"a"], id="an expectation of its own"),
        pytest.param([request(b"a", b"X: \xff\xfe\r\n")], [200], [b"a"], id="a header of no text"),
        pytest.param([request(b"a").replace(b"orders", b"%6frders")], [200], [b"a"], id="a path percent-encoded"),
        pytest.param([request(b"a").replace(b"/v1", b"http://a:1/v1")], [200], [b"a"], id="a proxy's form of the path"),
    ],
)
def test_odd_requests_that_are_allowed(
    server: Listening, pieces: Sequence[bytes], expected: list[int], bodies: list[bytes]
) -> None:
    before = len(server.bodies())
    assert send(server, *pieces, answers=len(expected)) == expected
    assert stored(server, before) == bodies


@pytest.mark.parametrize("cut", [17, 24, 25, 26, len(HEAD) + 17, len(HEAD) + 19, len(HEAD) + 20, len(HEAD) + 21])
def test_a_head_that_is_cut_behind_another_request_is_read_whole(server: Listening, cut: int) -> None:
    """Cut anywhere, also within a line end."""
    before = len(server.bodies())
    slow, second = request(b"first"), request(b"second")
    # The second request's beginning comes with the end of the first, which is still in progress then.
    assert send(server, slow[:-1], slow[-1:] + second[:cut], second[cut:], answers=2) == [200, 200]
    assert stored(server, before) == [b"first", b"second"]


def test_a_head_behind_an_unanswered_request_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what came with the first request is read of it, and its refusal comes after that request's answer."""
    handed_in = HandedIn(monkeypatch)
    with listening(tmp_path) as made, ThreadPoolExecutor(1) as sender:
        made.log.away = True
        found = sender.submit(send, made, request(b"first") + HEAD + b"X: " + b"a" * 2_000_000, answers=2)
        handed_in.wait_for(1)
        made.log.away = False
        assert found.result(SECONDS) == [200, 431]
        assert made.bodies() == [b"first"]


def test_a_head_begun_behind_another_request_has_a_time_limit(tmp_path: Path) -> None:
    with listening(tmp_path, head_timeout="300ms") as made:
        assert send(made, request(b"first") + HEAD, answers=2) == [200, 408]


@pytest.mark.parametrize(
    "bad",
    [b"nonsense\r\n\r\n", HEAD + b"Content-Length: +5\r\n\r\n", CHUNKED + b"\r\nzz\r\n", b"GET /\xff HTTP/1.1\r\n\r\n"],
    ids=["a line", "a header", "a body", "a path"],
)
def test_an_invalid_request_is_answered_after_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: bytes
) -> None:
    """Otherwise the sender of the first request, which is stored, would take the answer for its refusal."""
    handed_in = HandedIn(monkeypatch)
    with listening(tmp_path) as made, ThreadPoolExecutor(1) as sender:
        made.log.away = True
        found = sender.submit(send, made, request(b"first") + request(b"second") + bad, answers=3)
        handed_in.wait_for(1)
        made.log.away = False
        assert found.result(SECONDS) == [200, 200, 400]
        assert made.bodies() == [b"first", b"second"]


def test_requests_sent_too_far_ahead_of_the_answers_are_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "_MOST_AHEAD", 3)
    handed_in = HandedIn(monkeypatch)
    with listening(tmp_path) as made, ThreadPoolExecutor(1) as sender:
        made.log.away = True
        # Send it as one segment, so that it is read at once.
        ahead = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" * 5
        found = sender.submit(send, made, request(b"first") + ahead, answers=5)
        handed_in.wait_for(1)
        made.log.away = False
        assert found.result(SECONDS) == [200, 200, 200, 200, 503]


def test_a_sender_that_reads_no_answers_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise it would hold its connection for ever."""
    with listening(tmp_path, idle_timeout="300ms", max_connections=1) as made, socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.settimeout(SECONDS)
        deaf.connect(("127.0.0.1", made.port))
        # These are some megabytes of answers.
        deaf.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n" * 900)
        eventually(lambda: made.raw(request(b"a", b"Connection: close\r\n")).startswith(b"HTTP/1.1 200 "), "room")
    assert "Exception" not in caplog.text


def test_a_sender_that_closed_its_sending_side_is_answered(server: Listening) -> None:
    before = len(server.bodies())
    assert send(server, request(b"a")) == [200]
    assert send(server, request(b"b") + request(b"c")) == [200, 200]
    assert stored(server, before) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("abruptly", [False, True])
def test_a_sender_that_left_before_the_answer_finds_its_records_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abruptly: bool
) -> None:
    handed_in = HandedIn(monkeypatch)
    key = {"Idempotency-Key": "k", "Content-Type": "text/plain"}
    with listening(tmp_path) as made:
        made.log.away = True
        with socket.create_connection(("127.0.0.1", made.port), timeout=SECONDS) as gone:
            gone.sendall(request(b"a", b"Idempotency-Key: k\r\n"))
            handed_in.wait_for(1)
            if abruptly:
                # Close with a reset.
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        made.log.away = False
        assert made.post(b"a", key).json() == {"records": 0, "duplicates": 1}
        assert made.bodies() == [b"a"]


@pytest.mark.parametrize(
    "more",
    [
        b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Content-Length: 5, 5\r\n",
        b"Content-Length: -5\r\n",
        b"Content-Length: +5\r\n",
        b"Content-Length: \xb2\r\n",
        b"Content-Length: 99999999999999999999999\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding : chunked\r\n",
        b"X: a\r\n Content-Length: 5\r\n",
        b"X: a\0b\r\n",
        b"X: a\rb\r\n",
    ],
)
def test_an_ambiguous_body_length_is_400_and_ends_the_connection(server: Listening, more: bytes) -> None:
    """Otherwise a proxy in front of the server and the server would find different requests in the same bytes."""
    before = len(server.bodies())
    smuggled = b"0\r\n\r\n" + request(b"smuggled")
    assert send(server, HEAD + more + b"\r\n" + smuggled) == [400]
    assert stored(server, before) == []


@pytest.mark.parametrize(
    "data",
    [
        CHUNKED + b"\r\n5\r\nab",
        CHUNKED + b"\r\n2\r\nab\r\n",
        CHUNKED + b"\r\n2\r\nab\r\n0\r\n",
        HEAD + b"Content-Length: 10\r\n\r\nab",
        HEAD + b"Content-Length: 10\r\nIdempotency-Key: k\r\n\r\nab",
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 99\r\n\r\n" + gzip.compress(b"ab", mtime=0),
        HEAD,
    ],
)
def test_a_truncated_request_stores_nothing(server: Listening, data: bytes) -> None:
    before = len(server.bodies())
    assert [status for status in send(server, data) if status < 400] == []
    assert send(server, request(b"after"), answers=1) == [200]
    assert stored(server, before) == [b"after"]


@pytest.mark.parametrize("size", [b"zz", b"-1", b"fffffffffffffffff"])
def test_a_chunk_with_an_invalid_size_is_400(server: Listening, size: bytes) -> None:
    before = len(server.bodies())
    assert send(server, CHUNKED + b"\r\n" + size + b"\r\nab\r\n0\r\n\r\n") == [400]
    assert stored(server, before) == []


@pytest.mark.parametrize("cut", [0, 1])
def test_an_offer_of_http_2_is_ignored(server: Listening, cut: int) -> None:
    """Java's client makes one with its first request, and still sends the body, which is not a second request."""
    before = len(server.bodies())
    body = request(b"smuggled")
    whole = request(body, H2C)
    pieces = [whole] if not cut else [whole[: -len(body)], body]
    assert send(server, *pieces, answers=1) == [200]
    assert b"\n".join(stored(server, before)) == body.replace(b"\r", b"").rstrip(b"\n").replace(b"\n\n", b"\n")


def test_an_offer_of_http_2_behind_another_request_is_refused(server: Listening) -> None:
    before = len(server.bodies())
    assert send(server, request(b"a") + request(request(b"smuggled"), H2C), answers=2) == [200, 400]
    assert stored(server, before) == [b"a"]


def test_an_unsupported_transfer_encoding_is_501(server: Listening) -> None:
    before = len(server.bodies())
    assert send(server, HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", answers=1) == [501]
    assert stored(server, before) == []


def test_a_sender_that_expects_100_is_told_to_continue_or_refused(server: Listening) -> None:
    before = len(server.bodies())
    awaiting = HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    assert send(server, awaiting % 1, b"a", answers=2) == [100, 200]
    assert send(server, awaiting % 2**30, answers=1) == [413]
    assert stored(server, before) == [b"a"]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"9" * 5000, "application/json", 200),
        (b"[1e999, -0.1E+5]", "application/json", 200),
        (b'"\\ud800"', "application/json", 200),
        (b"NaN", "application/json", 400),
        (b'[{"a": -Infinity}]', "application/json", 400),
        (b'{"a": NaN}', "application/x-ndjson", 400),
        (b'{"a": Inf}', "application/x-ndjson", 400),
        (b"[" * 1_000_000, "application/json", 400),
        (b"[" * 1_000_000, "application/x-ndjson", 400),
        (b'{"a":' * 1_000_000, "application/cloudevents+json", 400),
        (b'{"a":' * 1_000_000, "application/cloudevents-batch+json", 400),
    ],
)
def test_json_at_its_limits_is_taken_or_refused(server: Listening, body: bytes, kind: str, status: int) -> None:
    assert server.post(body, {"Content-Type": kind}).status == status


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip"])
def test_a_decompression_bomb_is_413(server: Listening, encoding: str) -> None:
    bomb = gzip.compress(bytes(50_000_000))
    headers = {"Content-Type": "text/plain", "Content-Encoding": encoding}
    assert server.post(bomb, headers).status == 413
    assert server.post(bomb, headers, path="/v1/logs").status == 413
    for broken in (gzip.compress(b"a" * 1000)[:-5], gzip.compress(b"a") + b"b", b"ab"):
        assert server.post(broken, headers).status == 400


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_body_of_several_compressed_frames_is_taken_whole_or_refused(server: Listening, encoding: str) -> None:
    def compressed(data: bytes) -> bytes:
        return gzip.compress(data, mtime=0) if encoding == "gzip" else zstandard.compress(data)

    headers = {"Content-Type": "text/plain", "Content-Encoding": encoding}
    first, second = compressed(b"a\n"), compressed(bytes(range(1, 9)) * 9)
    before = len(server.bodies())
    for cut in range(1, len(second)):
        assert server.post(first + second[:cut], headers).status == 400, cut
    for behind in (b"a", b"\0", first[1:]):
        assert server.post(first + behind, headers).status == 400
    assert stored(server, before) == []
    assert server.post(first + compressed(b"") + compressed(b"b"), headers).status == 200
    assert stored(server, before) == [b"a", b"b"]


def test_a_large_head_with_many_records_is_413(tmp_path: Path) -> None:
    """Each record keeps part of the head: kilobytes with a hundred thousand lines would be gigabytes."""
    with listening(tmp_path, headers=["X-Kept"]) as made:
        lines = b"1\n" * 100_000
        large = "y" * 50_000
        for headers in ({"Content-Type": f"text/plain; x={large}"}, {"Content-Type": "text/plain", "X-Kept": large}):
            for path in ("/v1/orders", "/v1/orders?ack=buffered"):
                refused = made.post(lines, headers, path=path)
                assert refused.status == 413
                assert "max_waiting_bytes" in refused.json()["detail"]
            assert made.post(b"1\n2", headers).status == 200
        assert len(made.bodies()) == 4


def test_too_many_bad_lines_are_400_and_leave_nothing_behind(tmp_path: Path) -> None:
    """Each is a row and a write: they would take longer than the sender waits, and then it sends them again."""
    lines = {"Content-Type": "application/x-ndjson"}
    with listening(tmp_path, max_record_bytes=1000) as made:
        refused = made.post(b"1\n" + b"{\n" * (MOST_REJECTED + 1), lines)
        assert refused.status == 400
        assert f"more than {MOST_REJECTED} lines" in refused.json()["detail"]
        large = b"[1" + b',"%s"' % (b"x" * 1000) * (MOST_REJECTED + 1) + b"]"
        assert made.post(large, {"Content-Type": "application/json"}).status == 400
        assert made.rig.dead_letters() == []
        assert made.bodies() == []


def test_a_large_resource_with_many_logs_is_413(server: Listening) -> None:
    """Each record contains its resource: a large one with many records would be gigabytes."""
    attribute = {"key": "k", "value": {"stringValue": "x" * 1_000_000}}
    of_resource = {"resource": {"attributes": [attribute]}, "scopeLogs": [{"logRecords": [{}] * 100_000}]}
    refused = server.post(json.dumps({"resourceLogs": [of_resource]}).encode(), path="/v1/logs")
    assert refused.status == 413
    assert "max_waiting_bytes" in refused.json()["message"]


@pytest.mark.parametrize(
    "header",
    [
        {"Idempotency-Key": "k" * 10_000},
        {"Idempotency-Key": "k\xff"},
        {"ce-id": "%ff", "ce-source": "a", "ce-specversion": "1.0", "ce-type": "t"},
        {"Content-Encoding": "gzip, gzip"},
    ],
)
def test_invalid_headers_are_refused(server: Listening, header: dict[str, str]) -> None:
    before = len(server.bodies())
    assert server.post(b"a", {"Content-Type": "text/plain"} | header).status in {400, 415}
    assert stored(server, before) == []


@pytest.mark.parametrize(
    "target", ["/v1/orders?source=%FC", "/v1/orders?a=%00", "/v1/orders?%ff=a", "/v1/%00", "/v1/%FC"]
)
@pytest.mark.parametrize("path", ["", "/v1/logs"])
def test_a_target_that_is_no_text_is_refused_and_never_altered(server: Listening, target: str, path: str) -> None:
    before = len(server.bodies())
    target = target.replace("/v1/orders", path) if path else target
    assert server.post(b"a", {"Content-Type": "text/plain"}, path=target).status == 400
    assert stored(server, before) == []


def test_a_long_event_id_still_works_as_a_key(server: Listening) -> None:
    event = {"specversion": "1.0", "id": "i" * 10_000, "source": "/s", "type": "t"}
    headers = {"Content-Type": "application/cloudevents+json"}
    answers = [server.post(json.dumps(event).encode(), headers).json() for _ in range(2)]
    assert [(answer["records"], answer["duplicates"]) for answer in answers] == [(1, 0), (0, 1)]


def test_bodies_that_wait_for_a_thread_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each connection could hold a body in memory, whatever ``max_waiting_bytes`` says."""
    go_on = threading.Event()

    def waiting(body: bytes, _: str | None, **__: object) -> bytes:
        assert go_on.wait(SECONDS)
        return body

    monkeypatch.setattr(body_reader, "decompressed", waiting)
    body = b"x" * 200_000
    limits: dict[str, Any] = {"max_body_bytes": 300_000, "max_record_bytes": 300_000, "max_waiting_bytes": 500_000}
    headers = {"Content-Type": "text/plain"}
    with listening(tmp_path, **limits) as server, ThreadPoolExecutor(8) as senders:
        first = [senders.submit(server.post, body, headers) for _ in range(8)]
        eventually(lambda: sum(answer.done() for answer in first) >= 6, "six of them to be refused")
        go_on.set()
        found = sorted(answer.result(60).status for answer in first)
        assert found in ([200, *[429] * 7], [200, 200, *[429] * 6])
        assert server.post(body, headers).status == 200


def test_bytes_that_are_no_request_are_events_and_no_log_lines(
    server: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    message = "bytes that are no HTTP/1.1 request were refused"

    def told() -> int:
        return sum(said == message for _, said, _ in server.rig.reporter.events)

    before = told()
    for _ in range(20):
        assert send(server, b"\0\0 no request\r\n\r\n") == [400]
    eventually(lambda: told() == before + 20, "the events")
    assert [record.getMessage() for record in caplog.records if record.name.startswith("uvicorn")] == []

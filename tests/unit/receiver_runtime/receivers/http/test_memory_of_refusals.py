"""Check that a refused request leaves nothing in memory, on any way out: an outsider must not fill it by refusals."""

from __future__ import annotations

import gc
import gzip
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psutil
import pytest

from receiver_runtime.supervisor.receiver import Receiver
from tests.unit.receiver_runtime.receivers.http.http_client import JSON, LINES, listening
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from receiver_runtime.block_path.block_handler import DeadLetter
    from tests.unit.receiver_runtime.receivers.http.http_client import Listening

MOST = 2**20  # bytes of a body
ALLOWED = 64 * 2**20  # bytes: buffers, threads and allocators
LARGE = b'{"a": "%s"}' % (b"x" * (MOST - 64))
GZIP = {"Content-Encoding": "gzip"}
PROTOBUF = {"Content-Type": "application/x-protobuf"}
OTLP = "/v1/logs"
UTF16 = {"Content-Type": "application/json; charset=utf-16"}
ODD_UTF16 = '{"a": "'.encode("utf-16-le") + b"\x00\xd8" + ("x" * (MOST // 2 - 64) + '"}').encode("utf-16-le")
BROKEN = b'{\n"a": "%s",\n}' % (b"x" * (MOST - 64))


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Let nothing be freed but by its last reference: what a circle keeps is then seen at once."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("requests", [64, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("path", "headers", "body", "status"),
    [
        pytest.param("/v1/orders", LINES | GZIP, gzip.compress(b"x" * (MOST + 2**18)), 413, id="too large, unpacked"),
        pytest.param("/v1/orders", LINES | GZIP, gzip.compress(LARGE)[:-9], 400, id="no whole gzip"),
        pytest.param("/v1/orders", JSON, LARGE[:-1], 400, id="no JSON"),
        pytest.param("/v1/orders", JSON | GZIP, gzip.compress(LARGE[:-1]), 400, id="no JSON, unpacked"),
        pytest.param("/v1/orders", JSON | {"Content-Encoding": "compress"}, LARGE, 415, id="an unknown encoding"),
        pytest.param("/v1/orders", {"Content-Type": "text/plain; charset=cp037"}, LARGE, 415, id="an unknown charset"),
        pytest.param("/v1/orders", UTF16, LARGE[:-1], 400, id="no UTF-16"),
        pytest.param("/v1/orders", UTF16, ODD_UTF16, 400, id="a value that is no UTF-16"),
        pytest.param("/v1/orders", {"Content-Type": "text/plain"}, BROKEN, 400, id="a broken document as text"),
        pytest.param("/v1/orders?a=%00", JSON, LARGE, 400, id="a query that is no text"),
        pytest.param("/v1/orders", {"Content-Type": "application/cloudevents+json"}, LARGE, 400, id="no CloudEvent"),
        pytest.param(OTLP, JSON, LARGE, 400, id="no OTLP"),
        pytest.param(OTLP, PROTOBUF | GZIP, gzip.compress(LARGE), 400, id="no protobuf"),
        pytest.param("/v1/nothing", JSON, LARGE, 404, id="no such stream"),
        pytest.param("/v1/orders?ack=never", JSON, LARGE, 400, id="no such parameter"),
    ],
)
def test_refused_requests_leave_nothing(
    tmp_path: Path,
    no_collection: None,
    path: str,
    headers: Mapping[str, str],
    body: bytes,
    status: int,
    requests: int,
) -> None:
    with listening(tmp_path, max_body_bytes=MOST, protocols=("cloudevents", "opentelemetry")) as server:
        assert {send(server, path, headers, body, requests=20)} == {frozenset({status})}
        before = psutil.Process().memory_info().rss
        send(server, path, headers, body, requests=requests)
        grown = psutil.Process().memory_info().rss - before
    # Of 64 requests a half of each body is as much; 5 MiB were seen.
    assert grown < min(requests * MOST // 2, ALLOWED), f"{grown / 2**20:.0f} MiB after {requests} requests"


def send(server: Listening, path: str, headers: Mapping[str, str], body: bytes, *, requests: int) -> frozenset[int]:
    """Send the request again and again on a few connections; return the statuses of the answers."""

    def some(count: int) -> set[int]:
        found = set()
        for _ in range(count):
            found.add(server.post(body, headers, path=path).status)
        return found

    with ThreadPoolExecutor(4) as senders:
        return frozenset().union(*senders.map(some, [requests // 4] * 4))


def test_the_sizes_are_as_said() -> None:
    assert len(LARGE) < MOST
    assert json.loads(LARGE)


def test_requests_that_wait_for_their_dead_letters_count_as_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = threading.Event()
    store = Receiver.store_dead_letters

    def late(receiver: Receiver, letters: Sequence[DeadLetter]) -> None:
        assert stored.wait(30)
        store(receiver, letters)

    monkeypatch.setattr(Receiver, "store_dead_letters", late)
    bad = b"{}\n" + b"x" * (MOST // 2)
    with listening(tmp_path, max_body_bytes=MOST, max_waiting_bytes=4 * MOST) as server, ThreadPoolExecutor(20) as pool:
        answers = [pool.submit(server.post, bad, LINES) for _ in range(20)]
        # Those for which there is no room are answered while the others wait.
        eventually(lambda: sum(answer.done() for answer in answers) >= 12, "12 refusals")
        assert {answer.result(0).status for answer in answers if answer.done()} == {429}
        stored.set()
        assert {answer.result(30).status for answer in answers} == {200, 429}

"""Check that no body keeps a receiver busy: values are counted, time is limited, and abandoned work is dropped."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_contrib.opentelemetry import logs as otlp_logs
from receiver_runtime.receivers.http import body_reader
from receiver_runtime.receivers.http.requests import records
from receiver_runtime.receivers.http.requests.decompression import decompressed
from receiver_runtime.receivers.http.requests.parsing_limits import ParsingLimits, ParsingStoppedError
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError
from receiver_runtime.receivers.http.requests.records import parse_plain
from tests.unit.receiver_runtime.receivers.http.http_client import JSON, LINES, SECONDS, listening
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GZIP = {"Content-Encoding": "gzip"}
JSON_HEADERS = [(b"content-type", b"application/json")]
LINES_HEADERS = [(b"content-type", b"application/x-ndjson")]
VALUES = st.recursive(
    st.none() | st.integers() | st.text('a,:[{"\\}]é', max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('",\\', max_size=2), inner, max_size=4),
)


def marks(value: object) -> int:
    """Count the commas, colons and opening brackets of a value's JSON, outside its strings."""
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(marks, value))
    if isinstance(value, dict):
        return 1 + max(0, len(value) - 1) + len(value) + sum(map(marks, value.values()))
    return 0


@given(VALUES, st.booleans())
def test_values_are_counted_exactly_and_strings_are_not(value: object, ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    expected = marks(value)
    ParsingLimits(most_values=max(1, expected)).check_json(body)
    if expected > 1:
        with pytest.raises(PushRefusedError, match=f"body: {expected} values"):
            ParsingLimits(most_values=expected - 1).check_json(body)


def test_a_record_with_a_large_text_is_taken() -> None:
    body = json.dumps({"csv": 'a,"b":[{\\' * 1000}).encode()
    assert parse_plain(JSON_HEADERS, body, most_bytes=10**6, limits=ParsingLimits(most_values=10)).bodies == [body]


@pytest.mark.parametrize(
    ("headers", "body", "what"),
    [
        (JSON_HEADERS, b"[" + b"[]," * 1000 + b"[]]", "elements of a JSON array"),
        (JSON_HEADERS, b"[[" + b"[]," * 1000 + b"[]]]", "values in JSON"),
        (LINES_HEADERS, b"\n" * 1000 + b"1", "lines"),
        ([(b"content-type", b"text/plain")], b" \n" * 1000, "lines"),
        (LINES_HEADERS, b"[" + b"[]," * 50_000 + b"[]]\n", "values in JSON"),
        ([(b"content-type", b"application/json-seq")], b"\x1e{}" * 1000, "texts of a JSON sequence"),
    ],
)
def test_too_many_values_are_413_before_any_object_is_made(
    headers: list[tuple[bytes, bytes]], body: bytes, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an object was made")

    monkeypatch.setattr(records, "_DECODER", refuse)
    with pytest.raises(PushRefusedError, match=f"{what}.*, max_body_values is 999: send fewer") as raised:
        parse_plain(headers, body, most_bytes=10**6, limits=ParsingLimits(most_values=999))
    assert raised.value.status == 413


@pytest.mark.parametrize(
    "body",
    [
        b"[[" + b"{}," * 5000 + b"{}]}",
        b"[" + b"[" * 2000,
        b"[" + b"{}," * 900 + b"[" * 200 + b"]",
        b"[" + b"1:" * 2000 + b"1]",
    ],
    ids=["other bracket", "no end", "too few ends", "colons"],
)
def test_a_broken_array_of_too_many_values_is_400_before_any_object_is_made(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an object was made")

    monkeypatch.setattr(records, "_DECODER", refuse)
    with pytest.raises(PushRefusedError, match="do not show where an element ends: correct it") as raised:
        parse_plain(JSON_HEADERS, body, most_bytes=10**6, limits=ParsingLimits(most_values=999))
    assert raised.value.status == 400


@pytest.mark.parametrize(
    "odd",
    [b"[" + b"{}," * 10**5 + b"{}]", b"[" * 10**5 + b"]" * 10**5, b'{"a":[' + b"[[],1]," * 10**5 + b'"]"]}'],
    ids=["wide", "deep", "within a member"],
)
def test_what_is_within_an_element_takes_no_steps(odd: bytes) -> None:
    """One step for each bracket and comma would take seconds, which only the time limit would end."""
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return 0.0

    found = parse_plain(
        JSON_HEADERS, b"[1," + odd + b",2]", most_bytes=10**6, limits=ParsingLimits(most_values=999, clock=clock)
    )
    assert found.bodies == [b"1", b"2"]
    assert [one.data for one in found.rejected] == [odd]
    assert "max_body_values is 999" in found.rejected[0].why
    assert looks < 10


def test_newlines_within_the_texts_of_a_sequence_are_no_texts() -> None:
    text = b"[" + b"\n" * 1000 + b"]\n"
    headers = [(b"content-type", b"application/json-seq")]
    found = parse_plain(headers, b"\x1e" + text, most_bytes=10**6, limits=ParsingLimits(most_values=999))
    assert found.bodies == [text.strip()]


def test_a_protobuf_of_many_empty_messages_is_413_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("it was read")

    monkeypatch.setattr(otlp_logs, "Protobuf", refuse)
    headers = [(b"content-type", b"application/x-protobuf")]
    with pytest.raises(PushRefusedError, match="messages in protobuf, max_body_values is 999") as raised:
        otlp_logs.parse_logs(
            headers,
            b"\x12\x00" * 1000,
            most_bytes=1000,
            most_bytes_in_all=1000,
            limits=ParsingLimits(most_values=999),
        )
    assert raised.value.status == 413


@pytest.mark.parametrize(
    ("headers", "body"),
    [(JSON_HEADERS, b"[NaN," + b"1," * 9000 + b"1]"), (LINES_HEADERS, b"1\r\n" * 9000)],
    ids=["array", "lines"],
)
def test_parsing_ends_when_its_time_is_over_or_it_is_stopped(headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    ticks = iter(range(10**6))
    limits = ParsingLimits(seconds=5, clock=lambda: float(next(ticks)))
    with pytest.raises(ParsingStoppedError):
        parse_plain(headers, body, most_bytes=100, limits=limits)
    assert next(ticks) < 20
    stopped = ParsingLimits()
    stopped.stop()
    with pytest.raises(ParsingStoppedError):
        parse_plain(headers, body, most_bytes=100, limits=stopped)


class Held:
    """Holds the threads that decompress until it is told to go on; counts the bodies that they began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, decompressed: Callable[..., bytes]) -> None:
        self.go_on = threading.Event()
        self.began = 0

        def hold(body: bytes, encoding: str | None, **limits: object) -> bytes:
            self.began += 1
            assert self.go_on.wait(SECONDS)
            return decompressed(body, encoding, **limits)

        monkeypatch.setattr(body_reader, "decompressed", hold)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch, decompressed)


def test_the_work_of_a_connection_that_was_closed_is_dropped(tmp_path: Path, held: Held) -> None:
    body = gzip.compress(b"1")
    head = b"POST /v1/orders HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\n"
    with listening(tmp_path) as made, ThreadPoolExecutor(2) as senders:
        first = [senders.submit(made.post, body, JSON | GZIP) for _ in range(2)]
        eventually(lambda: held.began == 2, "both threads to be busy")
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", made.port), timeout=SECONDS) as gone:
                gone.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                # The server has taken the request when it has taken the next one.
                assert made.ask("GET", "/health").status == 200
                # Close with a reset.
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Each takes the loop some turns, in which it finds that the last of them was reset.
        for _ in range(10):
            assert made.ask("GET", "/health").status == 200
        held.go_on.set()
        assert [answer.result(SECONDS).status for answer in first] == [200, 200]
        assert made.post(b"2", JSON, path="/v1/orders?ack=registered").status == 200
        # The last one was parsed on the loop.
        assert held.began == 2 + 1
        assert made.bodies() == [b"1", b"1", b"2"]


def test_a_body_that_waits_too_long_for_a_thread_is_503(tmp_path: Path, held: Held) -> None:
    with listening(tmp_path, parse_timeout="200ms") as made, ThreadPoolExecutor(3) as senders:
        answers = [senders.submit(made.post, gzip.compress(b"1"), JSON | GZIP) for _ in range(3)]
        for answer in answers:
            refused = answer.result(SECONDS)
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            assert "parse_timeout" in refused.json()["detail"]
        held.go_on.set()
        assert made.post(gzip.compress(b"2"), JSON | GZIP).status == 200
        assert made.bodies() == [b"2"]


def test_bytes_count_as_they_are_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes may become megabytes: only what fits into ``max_waiting_bytes`` is decompressed at once."""
    go_on = threading.Event()
    entered = threading.Semaphore(1)
    parse = records._json
    limits: dict[str, Any] = {"max_body_bytes": "1MiB", "max_record_bytes": "1MiB", "max_waiting_bytes": "1500KiB"}

    def hold(*arguments: object) -> object:
        # The first body waits for the other's answer, or for the other one itself if both had room.
        if not entered.acquire(blocking=False):
            go_on.set()
        assert go_on.wait(SECONDS)
        return parse(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(records, "_json", hold)
    body = gzip.compress(b'"' + b"x" * 900_000 + b'"')
    with listening(tmp_path, **limits) as made, ThreadPoolExecutor(2) as senders:
        answers = as_completed([senders.submit(made.post, body, JSON | GZIP) for _ in range(2)], SECONDS)
        refused = next(answers).result(SECONDS).status
        go_on.set()
        assert (refused, next(answers).result(SECONDS).status) == (429, 200)
        # Nothing stays counted.
        assert made.post(body, JSON | GZIP).status == 200
        assert made.post(b"1\n2", LINES).status == 200

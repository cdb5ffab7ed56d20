"""Check the HTTP receiver over real sockets: what it takes, what it answers, and when."""

from __future__ import annotations

import base64
import contextlib
import gzip
import http.client
import json
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import zstandard

from receiver_runtime.block_store.frames.frame import FrameKind, SourceRule
from receiver_runtime.block_store.frames.segment import IntactFrame
from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.requests import refusal_counts
from receiver_runtime.sources.fields.tcp import Tls
from receiver_runtime.watching.exit_codes import ExitCode
from tests.support.machine.held_ports import held_port
from tests.unit.receiver_runtime.receivers.certificates import Authority
from tests.unit.receiver_runtime.receivers.http.http_client import JSON, LINES, Answer, HandedIn, Listening, listening
from tests.unit.receiver_runtime.receivers.test_keyed_hand_over import KeyedBlockLog
from tests.unit.receiver_runtime.rig import rig
from tests.unit.receiver_runtime.support import eventually
from tracker_store.schema.states import DesiredState, ReceiverEventKind, ReceiverState

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXT = {"Content-Type": "text/plain"}
OCTETS = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    """Run a server with default settings, for tests that leave nothing behind except records."""
    with listening(tmp_path_factory.mktemp("http")) as made:
        yield made


def newest(made: Listening, answer: Answer) -> list[bytes]:
    """Return the bodies of the newest rows, as many as the answer counts."""
    records = answer.json()["records"]
    return made.bodies()[-records:]


@pytest.mark.parametrize(
    ("body", "headers", "records"),
    [
        (b' {"a": 1} ', JSON, [b'{"a": 1}']),
        (b'[{"a": 1},\n [2] , "x"]', JSON, [b'{"a": 1}', b"[2]", b'"x"']),
        (b'{"a": 1}\r\n\n{"b":\t2}\n', LINES, [b'{"a": 1}', b'{"b":\t2}']),
        (b'1\n"two"\n[3]', {"Content-Type": "application/jsonl"}, [b"1", b'"two"', b"[3]"]),
        (b"one\r\n\n two\n", TEXT, [b"one", b" two"]),
        (b"a=1&b=2", {"Content-Type": "application/x-www-form-urlencoded"}, [b"a=1&b=2"]),
        (b"\x00\xff", {}, [b"\x00\xff"]),
        (gzip.compress(b'{"a": 1}', mtime=0), {**JSON, "Content-Encoding": "gzip"}, [b'{"a": 1}']),
        (zstandard.compress(b"1\n2\n"), {**LINES, "Content-Encoding": "zstd"}, [b"1", b"2"]),
        (b"[1]", {**JSON, "Content-Encoding": "identity"}, [b"1"]),
    ],
)
def test_bodies_become_records(one: Listening, body: bytes, headers: dict[str, str], records: list[bytes]) -> None:
    answer = one.post(body, headers)
    assert answer.status == 200
    assert answer.json() == {"records": len(records), "duplicates": 0}
    assert newest(one, answer) == records


def test_rows_have_all_columns(tmp_path: Path) -> None:
    with listening(tmp_path, headers=["X-GitHub-Event", "X-Other"]) as made:
        sent = {**JSON, "Idempotency-Key": '"k 1"', "x-github-event": "push", "Authorization": "Bearer x"}
        before = datetime.now(UTC) - timedelta(seconds=1)
        assert made.post(b"[1, 2]", sent, path="/v1/orders").status == 200
        assert made.post(b"x", {}).status == 200
        rows = made.rows()
        times = [row.pop("received_at") for row in rows]
        common = {"path": "/v1/orders", "content_type": "application/json", "id": "k 1"}
        kept = [("x-github-event", "push")]
        assert rows == [
            {**common, "body": b"1", "attributes": kept},
            {**common, "body": b"2", "attributes": kept},
            {"body": b"x", "path": "/v1/orders", "content_type": None, "id": None, "attributes": None},
        ]
        assert all(before < each < datetime.now(UTC) + timedelta(seconds=1) for each in times)


def test_many_requests_share_a_block_and_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handed_in = HandedIn(monkeypatch)
    with listening(tmp_path) as made, ThreadPoolExecutor(40) as pool:
        made.log.away = True
        posts = [pool.submit(made.post, b"%d" % n) for n in range(40)]
        handed_in.wait_for(40)
        made.log.away = False
        assert {post.result(30).status for post in posts} == {200}
        assert sorted(made.bodies(), key=int) == [b"%d" % n for n in range(40)]
        # Four blocks may be in progress; later requests share the next one, and the last ones what was being gathered.
        assert len(made.log.chain(1)) <= 6


@pytest.mark.parametrize(
    ("body", "headers", "path", "status", "names"),
    [
        (b"", JSON, "/v1/orders", 400, "body: it is empty"),
        (b"[]", JSON, "/v1/orders", 400, "body: the array is empty"),
        (b"\n\n", LINES, "/v1/orders", 400, "blank lines"),
        (b'{"a": ', JSON, "/v1/orders", 400, "line 1 column 7"),
        (b"[1, 2", JSON, "/v1/orders", 400, "Expecting ','"),
        (b"[1, 2] 3", JSON, "/v1/orders", 400, "more behind the JSON value"),
        (b"1\n2", JSON, "/v1/orders", 400, "application/x-ndjson"),
        (b'"\xff"', JSON, "/v1/orders", 400, "byte 1"),
        (b"[" * 100_000, JSON, "/v1/orders", 400, "nested too deeply"),
        (b"{\n}\n", LINES, "/v1/orders", 400, "none of 2 lines is a record; line 1"),
        (b"zz", {**JSON, "Content-Encoding": "gzip"}, "/v1/orders", 400, "no whole gzip"),
        (
            gzip.compress(b"1" * 99, mtime=0)[:-3],
            {**JSON, "Content-Encoding": "gzip"},
            "/v1/orders",
            400,
            "no whole gzip",
        ),
        (b"1", {**JSON, "Idempotency-Key": "x" * 256}, "/v1/orders", 400, "Idempotency-Key"),
        (b"1", JSON, "/v1/orders?ack=never", 400, "ack: 'never'"),
        (b"1", {**JSON, "Idempotency-Key": "x"}, "/v1/orders?ack=buffered", 400, "leave out one"),
        (b"1", JSON, "/v2/orders", 404, "/v1/"),
        (b"1", {**JSON, "Content-Encoding": "compress"}, "/v1/orders", 415, "'compress'"),
        (b"1", {"Content-Type": "application/json; charset=utf-7"}, "/v1/orders", 415, "utf-7"),
    ],
)
def test_a_refusal_names_the_error_and_how_to_fix_it(
    one: Listening, body: bytes, headers: dict[str, str], path: str, status: int, names: str
) -> None:
    before = len(one.rows())
    answer = one.post(body, headers, path=path)
    assert answer.status == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["type"], problem["status"]) == ("about:blank", status)
    assert names in problem["detail"]
    if status == 415 and "Content-Encoding" in headers:
        assert answer.headers["accept-encoding"] == "gzip, deflate, br, zstd, snappy, identity"
    # The next request is served, and the refused one stored nothing.
    assert one.post(b"7").status == 200
    assert len(one.rows()) == before + 1


def test_405_names_the_allowed_method(one: Listening) -> None:
    for method in ("GET", "PUT", "DELETE"):
        answer = one.ask(method, "/v1/orders")
        assert answer.status == 405
        assert "POST" in answer.headers["allow"]


def test_an_idle_timeout_below_a_second_still_keeps_connections(tmp_path: Path) -> None:
    with listening(tmp_path, idle_timeout="900ms") as made:

        def is_kept() -> bool:
            connection = made.connect()
            try:
                assert made.post(b"1", on=connection).status == 200
                return made.post(b"2", on=connection).status == 200
            except (OSError, http.client.HTTPException):
                # The test may have been too slow to send.
                return False
            finally:
                connection.close()

        eventually(is_kept, "a second request on the same connection")


def test_bad_lines_become_dead_letters_and_are_counted(tmp_path: Path) -> None:
    with listening(tmp_path, max_record_bytes=100) as made:
        body = b'{"good": 1}\n{"bad": \n"' + b"x" * 200 + b'"\n\xff\n{"a":1}{"b":2}\n{"c":\n1}\n{"good": 2}\n'
        answer = made.post(body, LINES)
        assert answer.status == 200
        counts = answer.json()
        assert (counts["records"], counts["dead_letters"]) == (2, 6)
        assert counts["first_dead_letter"].startswith("line 2: ")
        assert made.bodies() == [b'{"good": 1}', b'{"good": 2}']
        letters = [(reason, data) for reason, _, data in made.rig.dead_letters()]
        unparsable = [b'{"bad":', b"\xff", b'{"a":1}{"b":2}', b'{"c":', b"1}"]
        assert sorted(letters) == sorted(
            [("record_too_large", b'"' + b"x" * 200 + b'"'), *(("unparsable", line) for line in unparsable)]
        )


def test_refused_requests_are_counted_by_reason_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal_counts, "_SHOW_SECONDS", 0.05)
    with listening(tmp_path, tokens="env:PATH") as server:
        for _ in range(3):
            assert server.post(b"1", JSON, path="/v1/traces").status == 404
        assert server.post(b"1", JSON).status == 401
        eventually(lambda: "4 requests refused: 3 of them 404 /v1/traces" in server.rig.reporter.reasons[-1])
        assert server.rig.reporter.reasons[-1].startswith("listening on ")
        told = [(message, detail) for kind, message, detail in server.rig.reporter.events if "refused" in message]
        assert {message for message, _ in told} == {
            "requests were refused: 404 /v1/traces",
            "requests were refused: 401 Authorization",
        }
        assert "POST to /v1/orders" in told[0][1]


def test_parameters_are_kept_if_they_are_named_and_a_slash_at_the_end_is_taken(tmp_path: Path) -> None:
    with listening(tmp_path, query_parameters=["source", "tag"], headers=["X-Id"]) as server:
        for path in ("/v1/orders?source=x%20y&tag=1&tag=2&other=3", "/v1/orders/", "/v1/orders/?ack=registered"):
            assert server.post(b"1", {**JSON, "X-Id": "7"}, path=path).status == 200
        assert sorted(sorted(dict(row["attributes"]).items()) for row in server.rows()) == [
            [("source", "x y"), ("tag", "1, 2"), ("x-id", "7")],
            [("x-id", "7")],
            [("x-id", "7")],
        ]
        assert server.post(b"1", JSON, path="/v1/orders?" + "a=1&" * 200).status == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer token"}, 200),
        ({"X-API-Key": "token"}, 200),
        ({"Authorization": "Basic " + base64.b64encode(b"any one:token").decode()}, 200),
        ({"authorization": "basic " + base64.b64encode(b":token").decode()}, 200),
        ({"Authorization": "Basic " + base64.b64encode(b"token:").decode()}, 401),
        ({"Authorization": "Basic token"}, 401),
        ({"Authorization": "token"}, 401),
        ({"X-API-Key": "other"}, 401),
        ({"X-API-Key": "token", "Authorization": "Bearer token"}, 401),
        ({}, 401),
    ],
)
def test_a_token_comes_as_bearer_as_a_key_or_as_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], status: int
) -> None:
    monkeypatch.setenv("FOREBAY_TEST_TOKEN", "token")
    with listening(tmp_path, tokens="env:FOREBAY_TEST_TOKEN") as server:
        assert server.post(b"1", {**JSON, **headers}).status == status


def test_401_without_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_TOKEN", "s3cret-1")
    (tmp_path / "token").write_text("s3cret-2\n")
    with listening(tmp_path / "blocks", tokens=["env:ORDERS_TOKEN", f"file:{tmp_path / 'token'}"]) as made:
        for given in (None, "s3cret-1", "Basic s3cret-1", "Bearer ", "Bearer s3cret-", "Bearer s3cret-11", "Bearer é"):
            answer = made.post(b"1", JSON | ({} if given is None else {"Authorization": given}))
            assert answer.status == 401, given
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert "s3cret" not in answer.body.decode()
        assert made.bodies() == []
        for token in ("s3cret-1", "s3cret-2"):
            assert made.post(b"1", {**JSON, "Authorization": f"bearer {token}"}).status == 200
        # Health can be read without a token.
        assert made.ask("GET", "/health").status == 200


def test_a_missing_token_is_reported(tmp_path: Path) -> None:
    from receiver_runtime.process.receiver_registry import make_receiver  # noqa: PLC0415
    from receiver_runtime.receivers.http.declaration import Http  # noqa: PLC0415
    from tests.unit.receiver_runtime.rig import rig  # noqa: PLC0415

    with rig(tmp_path, make_receiver(Http(listen="127.0.0.1:0", tokens=("env:NOT_THERE",)))) as made:
        eventually(lambda: any("NOT_THERE" in detail for _, _, detail in made.reporter.events), "the reason")


class TestLimits:
    """Check 413, 408, 431 and 503: no sender takes more than its share."""

    def test_413(self, tmp_path: Path) -> None:
        with listening(tmp_path, max_body_bytes="10KiB", max_record_bytes="1KiB") as made:
            many = b"1\n" * 4000
            assert made.post(many, LINES).status == 200
            for body, headers in (
                (b"1\n" * 6000, LINES),
                (b"x" * 2000, OCTETS),
                (b'"' + b"x" * 2000 + b'"', JSON),
                (gzip.compress(b" " * 10**7), {**LINES, "Content-Encoding": "gzip"}),
                (zstandard.compress(b" " * 10**8), {**LINES, "Content-Encoding": "zstd"}),
            ):
                answer = made.post(body, headers)
                assert answer.status == 413
                assert "max_" in answer.json()["detail"]
            connection = made.connect()
            with contextlib.suppress(ConnectionError):
                # The answer may come before the whole body was read.
                connection.request("POST", "/v1/orders", iter([b"1\n" * 3000] * 3), LINES, encode_chunked=True)
            assert connection.getresponse().status == 413
            connection.close()
            assert len(made.rows()) == 4000

    def test_a_body_announced_as_too_large_is_not_waited_for(self, tmp_path: Path) -> None:
        with listening(tmp_path, max_body_bytes="1MiB") as made:
            head = b"POST /v1/orders HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999\r\n"
            assert made.raw(head + b"\r\n").startswith(b"HTTP/1.1 413 ")
            assert made.raw(head + b"Expect: 100-continue\r\n\r\n").startswith(b"HTTP/1.1 413 ")

    def test_408_for_a_missing_head_or_body(self, tmp_path: Path) -> None:
        with listening(tmp_path / "1", head_timeout="300ms", request_timeout="300ms") as made:
            assert made.raw(b"POST /v1/orders HT").startswith(b"HTTP/1.1 408 ")
            half = b"POST /v1/orders HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345"
            answer = made.raw(half)
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert b"request_timeout" in answer
            assert made.bodies() == []
        with listening(tmp_path / "2", idle_timeout="300ms") as made:
            # A connection on which nothing was sent is closed without an answer.
            assert made.raw(b"") == b""

    def test_a_head_that_arrives_too_slowly_is_given_up(self, tmp_path: Path) -> None:
        with (
            listening(tmp_path, head_timeout="400ms") as made,
            socket.create_connection(("127.0.0.1", made.port), timeout=30) as slow,
        ):
            began = time.monotonic()
            slow.sendall(b"POST /v1/orders HTTP/1.1\r\nX: ")
            slow.settimeout(0.02)

            def is_given_up() -> bool:
                try:
                    slow.sendall(b"x")
                    return bool(slow.recv(100))
                except TimeoutError:
                    return False
                except ConnectionError:
                    return True

            eventually(is_given_up, "the end of it")
            assert time.monotonic() - began > 0.3

    def test_431(self, one: Listening) -> None:
        answer = one.raw(b"GET /health HTTP/1.1\r\n" + b"X: " + b"y" * 300_000)
        assert answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")) or answer == b""

    def test_503_beyond_max_connections(self, tmp_path: Path) -> None:
        with listening(tmp_path, max_connections=3) as made:
            held = [made.connect() for _ in range(3)]
            for connection in held:
                assert made.post(b"1", on=connection).status == 200
            refused = made.raw(b"GET /v1/orders HTTP/1.1\r\nHost: x\r\n\r\n")
            assert refused.startswith(b"HTTP/1.1 503 ")
            assert b"max_connections" in refused
            eventually(lambda: ReceiverEventKind.ERROR in made.rig.reporter.kinds(), "the event")
            held.pop().close()

            def is_let_in() -> bool:
                # A refused sender may be unable to send everything.
                with contextlib.suppress(OSError):
                    return made.post(b"1").status == 200
                return False

            eventually(is_let_in, "room")
            for connection in held:
                assert made.post(b"1", on=connection).status == 200
                connection.close()


class TestBackPressure:
    """Check 429 and 503 with Retry-After."""

    def test_429_while_too_much_waits(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        handed_in = HandedIn(monkeypatch)
        with (
            listening(tmp_path, max_body_bytes="4KiB", max_waiting_bytes="8KiB") as made,
            ThreadPoolExecutor(2) as pool,
        ):
            made.log.away = True
            body = b'"' + b"x" * 3000 + b'"'
            posts = []
            # Two have room if sent one after the other: together, they would be in each other's way.
            for n in (1, 2):
                posts.append(pool.submit(made.post, body))
                handed_in.wait_for(n)
            for _ in range(3):
                answer = made.post(body)
                assert (answer.status, int(answer.headers["retry-after"])) == (429, 1)
                assert "max_waiting_bytes" in answer.json()["detail"]
            made.log.away = False
            assert [post.result(30).status for post in posts] == [200, 200]
            assert made.post(body).status == 200

    def test_429_at_a_rate_limit(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        handed_in = HandedIn(monkeypatch)
        with listening(tmp_path, settings={"receiver_max_rate": 50}) as made, ThreadPoolExecutor(3) as pool:
            made.log.away = True
            posts = []
            for n in (1, 2, 3):
                posts.append(pool.submit(made.post, b"1\n" * 20, LINES))
                handed_in.wait_for(n)
            # More than a second's permits wait.
            refused = made.post(b"1\n" * 20, LINES)
            assert (refused.status, refused.headers["retry-after"]) == (429, "2")
            assert "60 records wait, at a rate limit of about 50 a second" in refused.json()["detail"]
            made.log.away = False
            assert [post.result(30).status for post in posts] == [200] * 3
            assert len(made.rows()) == 60

    def test_503_while_the_driver_log_is_away(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        handed_in = HandedIn(monkeypatch)
        with listening(tmp_path, acknowledgement_timeout="300ms") as made:
            assert made.ask("GET", "/ready").status == 200
            made.log.away = True
            answer = made.post(b"1")
            assert answer.status == 503
            assert "acknowledgement_timeout" in answer.json()["detail"]
            # From now on requests are refused at once, except in the moment between arrival and hand-over.
            eventually(lambda: made.ask("GET", "/ready").status == 503, "not ready")
            second = made.post(b"2")
            assert second.status == 503
            assert int(second.headers["retry-after"]) > 1
            assert made.ask("GET", "/ready").status == 503
            assert made.ask("GET", "/health").status == 200
            assert handed_in.requests == 1
            made.log.away = False
            eventually(lambda: made.ask("GET", "/ready").status == 200, "ready")
            # It has a key, because it may take longer than the timeout and be sent again.
            third = JSON | {"Idempotency-Key": "3"}
            eventually(lambda: made.post(b"3", third).status == 200, "an answer in time")
            # The first request was stored and registered later; the second was not taken.
            assert made.bodies() == [b"1", b"3"]

    def test_503_when_another_process_has_the_receiver(self, tmp_path: Path) -> None:
        with listening(tmp_path) as made:
            assert made.post(b"1").status == 200
            made.log.fence.add(1)
            answer = made.post(b"2")
            assert answer.status == 503
            assert int(answer.headers["retry-after"]) >= 1
            assert made.rig.end().exit_code is ExitCode.FENCED
            assert made.bodies() == [b"1"]


class TestIdempotency:
    """Check that a request that is sent again with its key is stored once, and that the answer says so."""

    def test_a_repeated_request_is_answered_200_and_counted(self, tmp_path: Path) -> None:
        with listening(tmp_path) as made:
            key = {"Idempotency-Key": "7f3c"}
            assert made.post(b"[1, 2, 3]", JSON | key).json() == {"records": 3, "duplicates": 0}
            for quoted in ("7f3c", '"7f3c"'):
                again = made.post(b"[1, 2, 3]", JSON | {"Idempotency-Key": quoted})
                assert (again.status, again.json()) == (200, {"records": 0, "duplicates": 3})
            assert made.post(b"[4]", JSON | {"Idempotency-Key": "other"}).json()["records"] == 1
            assert made.bodies() == [b"1", b"2", b"3", b"4"]

    def test_concurrent_requests_with_one_key_are_stored_once(self, tmp_path: Path) -> None:
        with listening(tmp_path) as made, ThreadPoolExecutor(20) as pool:
            posts = [pool.submit(made.post, b"1", JSON | {"Idempotency-Key": f"k{n % 5}"}) for n in range(100)]
            answers = [post.result(30) for post in posts]
            assert {answer.status for answer in answers} == {200}
            assert sum(answer.json()["records"] for answer in answers) == 5
            assert sum(answer.json()["duplicates"] for answer in answers) == 95
            assert made.bodies() == [b"1"] * 5


def test_a_failed_hand_over_answers_503_and_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(tmp_path) as made:

        def fail(_: object) -> set[str]:
            raise RuntimeError("it can't be asked")

        with monkeypatch.context() as failing:
            failing.setattr(made.log, "known_keys", fail)
            assert made.post(b"1", JSON | {"Idempotency-Key": "a"}).status == 503

        def is_taken() -> bool:
            try:
                return made.post(b"1", JSON | {"Idempotency-Key": "a"}).status == 200
            except OSError:
                return False

        eventually(is_taken, "a new server")
        assert ReceiverEventKind.RESTARTED in made.rig.reporter.kinds()
        assert made.bodies() == [b"1"]


class TestBuffered:
    """Check ?ack=buffered: it is answered with 202, and its records are in separate blocks."""

    def test_202_and_blocks_that_salvage_registers(self, tmp_path: Path) -> None:
        with listening(tmp_path, settings={"block_interval": "20ms"}) as made:
            buffered = made.post(b'{"b": 1}\n{"bad":\n{"b": 2}', LINES, path="/v1/orders?ack=buffered")
            assert buffered.status == 202
            assert (buffered.json()["records"], buffered.json()["dead_letters"]) == (2, 1)
            assert made.post(b'"r"').status == 200
            eventually(lambda: len(made.rows()) == 3, "all of them")
            rules = sorted(
                (frame.header.source_rule, frame.header.records)
                for frame in frames(made)
                if frame.header.kind is not FrameKind.NOTE
            )
            # These are the dead letter, the two records that will not be sent again, and the one whose sender waits.
            assert rules == [
                (SourceRule.NOT_SENT_AGAIN, 1),
                (SourceRule.NOT_SENT_AGAIN, 2),
                (SourceRule.SENT_AGAIN, 1),
            ]


def frames(made: Listening) -> list[IntactFrame]:
    return [
        item
        for path in set(made.rig.rows.paths.values())
        for item in made.rig.store.scan(path)
        if isinstance(item, IntactFrame)
    ]


class TestStop:
    """Check the drain: refuse new connections, answer requests in flight, then end."""

    def test_requests_in_flight_are_answered_and_the_port_is_closed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handed_in = HandedIn(monkeypatch)
        settings = {"receiver_stop_timeout": "60s"}
        with listening(tmp_path, settings=settings) as made, ThreadPoolExecutor(4) as pool:
            idle = made.connect()
            assert made.post(b"0", on=idle).status == 200
            made.log.away = True
            posts = [pool.submit(made.post, b"1") for _ in range(3)]
            handed_in.wait_for(4)
            port = made.port
            made.rig.supervisor.lifecycle.stop("the test stops it")

            def is_closed() -> bool:
                with socket.socket() as probe:
                    return probe.connect_ex(("127.0.0.1", port)) != 0

            eventually(is_closed, "the port closed")
            # A connection that is already open gets an answer or is closed, and stores no record.
            with contextlib.suppress(OSError):
                assert made.post(b"late", on=idle).status == 503
            idle.close()
            made.log.away = False
            answers = [post.result(30) for post in posts]
            assert {answer.status for answer in answers} == {200}
            assert {answer.headers.get("connection") for answer in answers} == {"close"}
            assert made.rig.end().drained
            assert made.bodies() == [b"0", b"1", b"1", b"1"]

    def test_it_does_not_wait_for_missing_bodies(self, tmp_path: Path) -> None:
        with (
            listening(tmp_path, settings={"receiver_stop_timeout": "1s"}) as made,
            socket.create_connection(("127.0.0.1", made.port), timeout=30) as half,
        ):
            half.sendall(b"POST /v1/orders HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345")
            assert made.post(b"1").status == 200
            began = time.monotonic()
            made.rig.stop()
            # This is less than request_timeout.
            assert time.monotonic() - began < 25
            assert half.recv(1000).startswith(b"HTTP/1.1 503 ")

    def test_x11_a_restart_takes_the_same_port_and_leaves_nothing_behind(self, tmp_path: Path) -> None:
        with held_port() as port, listening(tmp_path, listen=f"127.0.0.1:{port}") as made:
            threads = 0
            for n in range(3):
                assert made.post(b"%d" % n).status == 200
                threads = threads or threading.active_count()
                starts = len([reason for reason in made.rig.reporter.reasons if reason.startswith("listening")])
                made.rig.attached.restart_receiver("again", None, 0.0)
                eventually(
                    lambda starts=starts: (  # type: ignore[misc]
                        len([r for r in made.rig.reporter.reasons if r.startswith("listening")]) > starts
                    ),
                    "listening again",
                )
            assert made.post(b"3").status == 200
            eventually(lambda: threading.active_count() <= threads + 1, "no more threads than before")
            assert made.bodies() == [b"0", b"1", b"2", b"3"]

    def test_a_taken_port_is_reported_and_tried_again(self, tmp_path: Path) -> None:
        from receiver_runtime.process.receiver_registry import make_receiver  # noqa: PLC0415
        from receiver_runtime.receivers.http.declaration import Http  # noqa: PLC0415
        from tests.unit.receiver_runtime.rig import rig  # noqa: PLC0415

        with socket.create_server(("127.0.0.1", 0)) as taken:
            listen = f"127.0.0.1:{taken.getsockname()[1]}"
            with rig(tmp_path, make_receiver(Http(listen=listen))) as made:
                eventually(lambda: ReceiverEventKind.RESTARTED in made.reporter.kinds(), "the restart")
                taken.close()
                eventually(lambda: any(r.startswith("listening on") for r in made.reporter.reasons), "listening")


def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    certificate = authority.issue("127.0.0.1")
    tls = Tls(certificate_file=certificate.certificate_file, key_file=certificate.key_file)
    context = ssl.create_default_context(cafile=authority.ca_file)
    with listening(tmp_path / "blocks", tls=tls, context=context) as made:
        assert made.post(b"1").status == 200
        # Plain text gets no answer, and other connections are not affected.
        assert not made.raw(b"GET /health HTTP/1.1\r\n\r\n").startswith(b"HTTP")
        assert made.post(b"2").status == 200
        assert made.bodies() == [b"1", b"2"]


def test_large_bodies_do_not_delay_others(one: Listening) -> None:
    large = b"[" + b",".join(b'{"n": %d, "text": "%s"}' % (n, b"x" * 100) for n in range(40_000)) + b"]"
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(one.post, large)
        assert one.ask("GET", "/health").status == 200
        assert answer.result(30).json()["records"] == 40_000


def test_health_and_ready(one: Listening) -> None:
    assert json.loads(one.ask("GET", "/health").body) == {"status": "ok"}
    assert json.loads(one.ask("GET", "/ready").body) == {"status": "ready"}


def pause(made: Listening, wanted: DesiredState, state: ReceiverState) -> None:
    """Pause or resume the receiver, as an operator does."""
    reports = len(made.rig.reporter.states)
    made.log.desired[1] = wanted
    eventually(lambda: [one for one, _ in made.rig.reporter.states[reports:]] == [state])


def test_a_paused_receiver_keeps_its_port_and_answers_503_until_it_goes_on(tmp_path: Path) -> None:
    with listening(tmp_path) as made, contextlib.closing(made.connect()) as open_before:
        assert made.post(b"1", on=open_before).status == 200
        port = made.port
        pause(made, DesiredState.PAUSED, ReceiverState.PAUSED)
        answer = made.post(b"2")
        assert (answer.status, answer.headers["retry-after"]) == (503, "10")
        assert "an operator has paused this stream" in answer.json()["detail"]
        assert made.ask("GET", "/ready").status == 503
        assert made.ask("GET", "/health").status == 200, "the server lives: nothing is to be restarted"
        pause(made, DesiredState.RUNNING, ReceiverState.ACTIVE)
        eventually(lambda: made.post(b"3").status == 200)
        assert made.port == port
        assert made.bodies() == [b"1", b"3"]
        made.rig.stop()
        with pytest.raises(ConnectionRefusedError):
            made.post(b"4")


def test_no_connection_is_refused_while_a_receiver_is_paused_and_resumed(tmp_path: Path) -> None:
    """Check senders that open a connection for each request: each one is answered, 200 or 503."""
    with listening(tmp_path) as made, ThreadPoolExecutor(4) as pool:
        over = threading.Event()

        def send() -> list[int]:
            answers = []
            while not over.is_set():
                answers.append(made.post(b"1").status)
            return answers

        senders = [pool.submit(send) for _ in range(4)]
        try:
            for _ in range(3):
                pause(made, DesiredState.PAUSED, ReceiverState.PAUSED)
                pause(made, DesiredState.RUNNING, ReceiverState.ACTIVE)
        finally:
            over.set()
        answers = [status for sender in senders for status in sender.result(60)]
        assert set(answers) <= {200, 503}
        assert len(made.bodies()) == answers.count(200)


def test_a_receiver_that_starts_paused_answers_503_and_frees_the_port_when_it_ends(tmp_path: Path) -> None:
    log = KeyedBlockLog()
    log.desired[1] = DesiredState.PAUSED
    with held_port() as port:
        receiver = make_receiver(Http(listen=f"127.0.0.1:{port}"))

        def answer() -> int:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as sender:
                sender.request("POST", "/v1/orders", b"1", JSON)
                return sender.getresponse().status

        with rig(tmp_path, receiver, log=log, desired_state=DesiredState.PAUSED) as made:
            eventually(lambda: [state for state, _ in made.reporter.states] == [ReceiverState.PAUSED])
            eventually(lambda: _answers(port))
            assert answer() == 503
            made.stop()
            with pytest.raises(ConnectionRefusedError):
                answer()


def _answers(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=30):
        return True
    return False

"""Check that a waiting request delays no other, and is given up in time: dead letters, a full buffer, a rate."""

from __future__ import annotations

import gzip
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.receivers.http import acknowledgement
from receiver_runtime.receivers.http.dead_letters import RequestDeadLetters
from receiver_runtime.receivers.http.direct import DirectRequests
from tests.unit.receiver_runtime.receivers.http.http_client import JSON, LINES, Answer, HandedIn, Listening, listening
from tests.unit.receiver_runtime.support import eventually
from tracker_store.connection.errors import OutcomeUnknownError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from receiver_runtime.receivers.http.acknowledgement import Stored, WaitingRequest
    from receiver_runtime.receivers.http.requests.pushed import Pushed
    from receiver_runtime.receivers.http.requests.records import Plain
    from tracker_store.blocks.dead_letters import StoredDeadLetter

HALF_BAD = b'1\n{"bad":\n'
BUFFERED = "/v1/orders?ack=buffered"
# As JSON: three of these fill a block of 64 KiB.
THIRD_OF_A_BLOCK = b'"' + b"x" * 20_000 + b'"'
# No block is cut before it is full.
FULL_BLOCKS = {"max_block_bytes": 65536, "block_interval": "600s"}


def most_taken(queue: int) -> int:
    """Return how many thirds of a block are taken while the driver log is unavailable; a 429 before that is temporary.

    These blocks are full: `queue` that wait to be registered, and one on its way there; `queue` in the block queue, and
    one that waits for it; one that is filled; and as much as one more on its way to that.
    """
    return 3 * (queue + 1 + queue + 1 + 1 + 1)


class HeldDeadLetters:
    """Holds rows of dead letters back until `let_go`."""

    def __init__(self, made: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        #: Requests with dead letters that have come so far.
        self.requests = 0
        self._free = threading.Event()
        add = made.rig.rows.add_dead_letters
        put_aside = RequestDeadLetters.store

        def held(letters: Sequence[StoredDeadLetter]) -> None:
            self.asked += 1
            assert self._free.wait(60)
            add(letters)

        async def counted(one: RequestDeadLetters, parsed: Pushed | Plain, waiting: WaitingRequest) -> tuple[int, str]:
            self.requests += 1
            return await put_aside(one, parsed, waiting)

        monkeypatch.setattr(made.rig.rows, "add_dead_letters", held)
        monkeypatch.setattr(RequestDeadLetters, "store", counted)

    def let_go(self) -> None:
        self._free.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def test_waiting_dead_letters_do_not_delay_other_requests(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(tmp_path) as made:
        held = HeldDeadLetters(made, monkeypatch)
        posts = [pool.submit(made.post, HALF_BAD, LINES) for _ in range(4)]
        eventually(lambda: held.asked, "dead letters that wait")
        try:
            # It is compressed, so that a thread has to read it.
            good = pool.submit(made.post, gzip.compress(b"2"), {**JSON, "Content-Encoding": "gzip"})
            assert good.result(15).status == 200
        finally:
            held.let_go()
        assert {post.result(30).status for post in posts} == {200}


def test_a_stop_does_not_wait_indefinitely_for_dead_letters(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(tmp_path, settings={"receiver_stop_timeout": "1s"}) as made:
        held = HeldDeadLetters(made, monkeypatch)
        posts = [pool.submit(made.post, HALF_BAD, LINES) for _ in range(4)]
        eventually(lambda: held.requests == 4 and held.asked, "dead letters that wait")
        made.rig.supervisor.lifecycle.stop("the test stops it")
        try:
            for post in posts:
                assert post.result(15).status == 503
        finally:
            held.let_go()


def test_a_request_that_can_not_be_answered_holds_up_no_other(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check two requests of one group, of which the first breaks while its answer is written."""
    monkeypatch.setattr(acknowledgement, "_FULL_GROUP", 2)
    monkeypatch.setattr(acknowledgement, "_GATHER_SECONDS", 60.0)
    broken: list[bytes] = []
    on_answered = DirectRequests._on_answered

    def broken_first(direct: DirectRequests, waiting: WaitingRequest, outcome: Stored | BaseException) -> None:
        if not broken:
            broken.append(b"first")
            on_answered(direct, waiting, outcome)
            raise RuntimeError("as if the connection's state did not allow it")
        on_answered(direct, waiting, outcome)

    monkeypatch.setattr(DirectRequests, "_on_answered", broken_first)
    with listening(tmp_path) as made:
        # In one piece: a body that comes after its headers is taken by the application, and not directly.
        head = b"POST /v1/orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1\r\n"
        posts = [pool.submit(made.raw, head + b"Connection: close\r\n\r\n" + body) for body in (b"1", b"2")]
        assert [post.result(30)[:12] for post in posts] == [b"HTTP/1.1 200", b"HTTP/1.1 200"]
        assert broken == [b"first"]
        assert sorted(made.bodies()) == [b"1", b"2"]


def test_who_asks_for_202_never_waits(tmp_path: Path) -> None:
    """However long the driver log is unavailable, a full buffer is answered with 429 at once."""
    settings = FULL_BLOCKS | {"block_queue_size": 3, "receiver_stop_timeout": "60s"}
    with listening(tmp_path, settings=settings, acknowledgement_timeout="1s") as made:
        made.log.away = True
        body = THIRD_OF_A_BLOCK
        statuses: list[int] = []

        def is_full(more: bytes = b"") -> bool:
            # Use one sender, which waits for each answer.
            answer = made.post(body + more, LINES, path=BUFFERED)
            statuses.append(answer.status)
            return answer.status == 429 and answer.headers["retry-after"] == "1"

        eventually(lambda: is_full() and statuses.count(202) == most_taken(3), "a buffer that is full")
        assert set(statuses) == {202, 429}
        # Its dead letters are stored when the request is taken, not each time that it is sent.
        before = len(statuses)
        eventually(lambda: is_full(b"\n{"), "a buffer that is full")
        assert len(made.rig.dead_letters()) == statuses[before:].count(202)
        # It does not delay requests that wait for their acknowledgement.
        assert made.post(gzip.compress(b"2"), {**JSON, "Content-Encoding": "gzip"}).status == 503
        made.log.away = False
        assert made.rig.stop().drained
        assert made.bodies().count(body) == statuses.count(202)


def test_what_was_answered_202_is_stored_at_a_stop_and_in_order(tmp_path: Path) -> None:
    settings = {
        "max_block_bytes": 65536,
        "block_queue_size": 1,
        "block_interval": "20ms",
        "receiver_stop_timeout": "60s",
    }
    with listening(tmp_path, settings=settings) as made:
        made.log.away = True
        taken: list[bytes] = []

        def is_full() -> bool:
            body = b'"%05d' % len(taken) + b"x" * 10_000 + b'"'
            if made.post(body, path=BUFFERED).status == 429:
                return True
            taken.append(body)
            return False

        eventually(is_full, "a buffer that is full")
        made.rig.supervisor.lifecycle.stop("the test stops it")
        made.log.away = False
        assert made.rig.end().drained
        assert made.bodies() == taken


def test_lost_records_that_were_answered_202_are_reported(tmp_path: Path) -> None:
    with listening(tmp_path, settings=FULL_BLOCKS | {"block_queue_size": 1}) as made:
        made.log.away = True
        taken = 0

        def is_full() -> bool:
            nonlocal taken
            status = made.post(THIRD_OF_A_BLOCK, path=BUFFERED).status
            taken += status == 202
            return status == 429 and taken == most_taken(1)

        eventually(is_full, "a buffer that is full")
        made.log.fence.add(1)
        made.log.away = False
        made.rig.end()
        eventually(
            lambda: any("answered 202 are lost" in message for _, message, _ in made.rig.reporter.events), "the event"
        )


def test_429_at_a_rate_limit_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handed_in = HandedIn(monkeypatch)
    body = b'"' + b"x" * 3000 + b'"'
    with (
        listening(tmp_path, settings={"receiver_max_bytes_rate": 20_000}) as made,
        ThreadPoolExecutor(32) as senders,
    ):
        made.log.away = True
        posts: list[Future[Answer]] = []
        while not any(post.done() for post in posts):
            before = handed_in.requests
            posts.append(senders.submit(made.post, body))
            eventually(lambda: handed_in.requests > before or posts[-1].done(), "it to wait, or to be refused")  # noqa: B023
        refused = posts.pop().result(60)
        # More than a second's permits wait, in records of this size.
        assert refused.status == 429
        assert "rate limit" in refused.json()["detail"]
        assert 20_000 < len(posts) * 3000 < 40_000
        made.log.away = False
        assert {post.result(30).status for post in posts} == {200}
        assert len(made.rows()) == len(posts)


def test_a_repeated_request_stores_its_bad_lines_once(tmp_path: Path) -> None:
    with listening(tmp_path) as made:
        for n in range(3):
            answer = made.post(HALF_BAD, LINES | {"Idempotency-Key": "a"})
            assert answer.status == 200
            assert answer.json()["records"] == (n == 0)
            assert answer.json()["dead_letters"] == 1
        assert len(made.rig.dead_letters()) == 1
        # Bad lines of other requests are stored for themselves.
        assert made.post(HALF_BAD, LINES | {"Idempotency-Key": "b"}).status == 200
        assert made.post(HALF_BAD, LINES).status == 200
        assert len(made.rig.dead_letters()) == 3


class TestEarlyRepeat:
    """Check repeats before the first request is registered: its key is not known yet, but bad lines are stored once."""

    def test_while_records_wait(
        self, tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        handed_in = HandedIn(monkeypatch)
        with listening(tmp_path) as made:
            made.log.refuse_call = lambda _: OutcomeUnknownError("the server is away")
            posts = []
            for n in (1, 2, 3):
                posts.append(pool.submit(made.post, HALF_BAD, LINES | {"Idempotency-Key": "a"}))
                handed_in.wait_for(n)
            made.log.refuse_call = lambda _: None
            answers = [post.result(30).json() for post in posts]
            assert [answer["records"] for answer in answers] == [1, 0, 0]
            assert [answer["dead_letters"] for answer in answers] == [1, 1, 1]
            assert made.bodies() == [b"1"]
            assert len(made.rig.dead_letters()) == 1

    def test_while_dead_letters_wait(
        self, tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with listening(tmp_path) as made:
            held = HeldDeadLetters(made, monkeypatch)
            posts = [pool.submit(made.post, HALF_BAD, LINES | {"Idempotency-Key": "a"}) for _ in range(4)]
            eventually(lambda: held.asked, "dead letters that wait")
            held.let_go()
            assert sum(post.result(30).json()["records"] for post in posts) == 1
            assert held.asked == len(made.rig.dead_letters()) == 1

    def test_after_the_first_request_failed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with listening(tmp_path) as made:

            def fail(_: object) -> None:
                raise RuntimeError("it can't be recorded")

            with monkeypatch.context() as failing:
                failing.setattr(made.rig.rows, "add_dead_letters", fail)
                assert made.post(HALF_BAD, LINES | {"Idempotency-Key": "a"}).status == 503
            assert made.post(HALF_BAD, LINES | {"Idempotency-Key": "a"}).json()["records"] == 1
            assert len(made.rig.dead_letters()) == 1

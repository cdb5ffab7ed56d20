"""What one request waits for holds no other one up, and is given up in time: dead letters, a full buffer, a rate."""

from __future__ import annotations

import gzip
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.unit.receiver_runtime.receivers.http_client import JSON, LINES, Listening, listening
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tracker_store.dead_letters import StoredDeadLetter

HALF_BAD = b'1\n{"bad":\n'
BUFFERED = "/v1/orders?ack=buffered"


class HeldDeadLetters:
    """Rows of dead letters that are recorded when they are let go."""

    def __init__(self, made: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self._free = threading.Event()
        add = made.rig.rows.add_dead_letters

        def held(letters: Sequence[StoredDeadLetter]) -> None:
            self.asked += 1
            assert self._free.wait(60)
            add(letters)

        monkeypatch.setattr(made.rig.rows, "add_dead_letters", held)

    def let_go(self) -> None:
        self._free.set()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def test_dead_letters_that_wait_hold_no_other_request_up(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(tmp_path) as made:
        held = HeldDeadLetters(made, monkeypatch)
        posts = [pool.submit(made.post, HALF_BAD, LINES) for _ in range(4)]
        eventually(lambda: held.asked, "dead letters that wait")
        try:
            # Compressed, so that a thread is to read it.
            good = pool.submit(made.post, gzip.compress(b"2"), {**JSON, "Content-Encoding": "gzip"})
            assert good.result(15).status == 200
        finally:
            held.let_go()
        assert {post.result(30).status for post in posts} == {200}


def test_a_stop_does_not_wait_for_dead_letters_for_ever(
    tmp_path: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening(tmp_path, settings={"receiver_stop_timeout": "1s"}) as made:
        held = HeldDeadLetters(made, monkeypatch)
        posts = [pool.submit(made.post, HALF_BAD, LINES) for _ in range(4)]
        eventually(lambda: held.asked, "dead letters that wait")
        made.rig.supervisor.stop("the test stops it")
        try:
            for post in posts:
                assert post.result(15).status == 503
        finally:
            held.let_go()


def test_records_that_wait_for_the_buffer_hold_no_other_request_up(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    settings = {"max_block_bytes": 65536, "block_queue_size": 3, "block_interval": "20ms"}
    with listening(tmp_path, settings=settings, acknowledgement_timeout="1s") as made:
        made.log.away = True
        body = b'"' + b"x" * 20_000 + b'"'
        posts = []

        def is_full() -> bool:
            posts.append(pool.submit(made.post, body, path=BUFFERED))
            time.sleep(0.02)
            return sum(not post.done() for post in posts) > 2

        eventually(is_full, "a buffer that is full")
        compressed = pool.submit(made.post, gzip.compress(b"2"), {**JSON, "Content-Encoding": "gzip"})
        try:
            assert compressed.result(15).status == 503
        finally:
            made.log.away = False
        answers = [post.result(30).status for post in posts]
        assert set(answers) <= {202, 429}
        eventually(lambda: made.bodies().count(body) == answers.count(202), "what was taken")


def test_429_at_a_rate_limit_of_bytes(tmp_path: Path) -> None:
    settings = {"receiver_max_bytes_rate": 20_000}
    body = b'"' + b"x" * 3000 + b'"'
    with listening(tmp_path, settings=settings) as made, ThreadPoolExecutor(32) as senders:
        answers = list(senders.map(lambda _: made.post(body), range(48)))
        taken = [answer for answer in answers if answer.status == 200]
        refused = [answer for answer in answers if answer.status == 429]
        assert taken
        assert refused
        assert len(taken) + len(refused) == 48
        assert "rate limit" in refused[0].json()["detail"]
        assert len(made.rows()) == len(taken)


def test_a_repeat_puts_its_bad_lines_aside_once(tmp_path: Path) -> None:
    with listening(tmp_path) as made:
        for n in range(3):
            answer = made.post(HALF_BAD, LINES | {"Idempotency-Key": "a"})
            assert answer.status == 200
            assert answer.json()["records"] == (n == 0)
            assert answer.json()["dead_letters"] == 1
        assert len(made.rig.dead_letters()) == 1
        # Of others they are others.
        assert made.post(HALF_BAD, LINES | {"Idempotency-Key": "b"}).status == 200
        assert made.post(HALF_BAD, LINES).status == 200
        assert len(made.rig.dead_letters()) == 3

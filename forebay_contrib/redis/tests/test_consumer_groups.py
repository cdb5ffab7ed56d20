"""Check how a group that someone moved forward is looked through, against a stream in memory."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from forebay_contrib.redis import consumer_groups
from forebay_contrib.redis.consumer_groups import ConsumerGroups, _create
from forebay_contrib.redis.declaration import RedisStreams
from forebay_contrib.redis.group_gaps import Reached, Seen

BLOCK = 10_000_000
TINY, LARGE = b"x", b"x" * 900_000


class Stream:
    """Entries of one size with the ids `1-0`, `2-0` and so on; nothing is pending."""

    def __init__(self, entries: int, value: bytes) -> None:
        self._entries, self._value = entries, value
        self.asked_for: list[int] = []

    def xrevrange(self, _name: str, end: str, _begin: str, *, count: int) -> list[Any]:
        self.asked_for.append(count)
        last = int(end.strip("(").partition("-")[0]) - end.startswith("(")
        return [(b"%d-0" % one, [b"n", self._value]) for one in range(last, max(0, last - count), -1)]

    def xpending_range(self, *_: object) -> list[Any]:
        return []


SOURCE = RedisStreams(host="127.0.0.1", group="g", streams="s")


def receiver_of(said: list[str]) -> Any:  # noqa: ANN401  a stand-in
    """Return a receiver with no position yet, whose errors are added to a list."""
    path = SimpleNamespace(known_keys=lambda _: set(), positions=None)
    settings = SimpleNamespace(key_window=3600.0, max_block_bytes=BLOCK)
    return SimpleNamespace(supervisor=SimpleNamespace(block_path=path, settings=settings), report_error=said.append)


def moved_past(stream: Stream, entries: int, stopping: threading.Event) -> list[str]:
    """Return what is reported if a receiver is given the entry behind these as its first one."""
    said: list[str] = []
    client: Any = stream
    given = b"%d-0" % (entries + 1)
    ConsumerGroups(receiver_of(said), SOURCE, "c", set(), stopping).note_given(client, "s", given, given)
    return said


@pytest.mark.parametrize(("value", "pages"), [(TINY, [1, 10, 40, 160, 640, 1000, 1000]), (LARGE, [1, 10, 11, 11])])
def test_what_was_passed_over_is_looked_at_in_pages_of_about_a_block(value: bytes, pages: list[int]) -> None:
    stream = Stream(sum(pages) - 5, value)
    assert "past" in moved_past(stream, sum(pages) - 5, threading.Event())[0]
    assert stream.asked_for[: len(pages)] == pages


def test_a_receiver_that_stops_looks_no_further_and_says_so() -> None:
    stopping = threading.Event()
    stopping.set()
    stream = Stream(5000, TINY)
    [said] = moved_past(stream, 5000, stopping)
    assert stream.asked_for == [1]
    assert "past at least 1 entries" in said
    assert "a gap of unknown size" in said
    [said] = moved_past(Stream(5000, TINY), 5000, threading.Event())
    assert "past 5000 entries" in said
    assert "a gap of 5000 entries" in said


def test_a_mark_that_another_receiver_has_moved_meanwhile_is_compared_with_a_later_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Let two receivers see the same gap; the other one reports it, and reads on, before this one reads its mark."""
    others = Reached(through=14, last=14, added=14, rank=14, dropped=0, deleted=12)
    looks = [Seen(10, 13, 1, 12, 13, 10, 12), Seen(14, 14, 1, 13, 14, 14, 12)]
    monkeypatch.setattr(consumer_groups, "_see", lambda *_: looks.pop(0))
    said: list[str] = []
    groups = ConsumerGroups(receiver_of(said), SOURCE, "c", set(), threading.Event())
    group: Any = groups._groups["s"]
    group.reached = Reached(through=10, last=10, added=10, rank=10)
    group.marks = SimpleNamespace(read=lambda: others, note=lambda _: None)
    client: Any = None
    groups.look(client)
    assert (said, looks) == ([], [])


class OlderRedis:
    """Stand for a server that refuses the count of read entries with these words; the stream is missing."""

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal
        self.created: list[object] = []

    def xinfo_stream(self, _: str) -> None:
        raise redis.ResponseError("no such key")

    def xgroup_create(self, _stream: str, _name: str, begin: object, *, mkstream: bool, **options: int) -> None:
        if options:
            raise redis.ResponseError(self._refusal)
        self.created.append((begin, mkstream))


@pytest.mark.parametrize(("latest", "begin"), [(True, "$"), (False, "0")])
@pytest.mark.parametrize(
    "refusal",
    [
        "wrong number of arguments for 'xgroup|create' command",
        "syntax error",
        "The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option",
    ],
)
def test_a_group_is_created_on_servers_that_do_not_take_a_count(refusal: str, latest: bool, begin: str) -> None:
    server: Any = OlderRedis(refusal)
    _create(server, "s", "g", latest=latest)
    assert server.created == [(begin, True)]

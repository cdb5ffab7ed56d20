"""Test the sender against a receiver that stands for the real one, and does what a test wants to go wrong."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from forebay.client import (
    ChannelMismatchError,
    FlushTimeoutError,
    RecordRefusedError,
    RequestRefusedError,
    Sender,
    SenderClosedError,
    SenderLimits,
    SendError,
    SpoolFullError,
)
from forebay.client.channel_requests import ChannelRequests
from forebay.client.spool_state import SpoolState
from tests.support.polling import eventually, joined
from tests.support.searches import is_whole
from tests.support.servers.channel_receiver import ChannelReceiver, Reply, channel_receiver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forebay.client.framing import Record

SECONDS = 20.0
LIMITS = SenderLimits(linger=0.001, request_timeout=5.0, set_back_timeout=0.2)


@pytest.fixture
def receiver() -> Iterator[ChannelReceiver]:
    with channel_receiver() as made:
        yield made


def numbers(begin: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(begin, end)]


def sender(receiver: ChannelReceiver, spool: Path, **named: object) -> Sender:
    return Sender(receiver.url, channel="a", spool=spool, **{"limits": LIMITS, **named})  # type: ignore[arg-type]


def test_records_arrive_once_in_order_byte_for_byte(receiver: ChannelReceiver, tmp_path: Path) -> None:
    with sender(receiver, tmp_path) as made:
        made.send(b'{"n": 1, "text": "a  b"}')
        made.send('{"text": "\u00e4"}')
        made.send({"n": float("1.5"), "s": "\u00e4"})
        made.send([1, None])
        made.send_many(numbers(0, 1000))
        made.flush(SECONDS)
        status = made.status()
        assert (status.taken, status.registered, status.waiting, status.last_error) == (1004, 1004, 0, "")
    assert receiver.channels["a"] == [
        b'{"n": 1, "text": "a  b"}',
        '{"text": "ä"}'.encode(),
        '{"n":1.5,"s":"ä"}'.encode(),
        b"[1,null]",
        *numbers(0, 1000),
    ]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b'{\n"n": 1}', "has a line break at byte 1"),
        (b"", "no JSON"),
        (b" \t", "no JSON"),
        (b"\xef\xbb\xbf1", "no JSON"),
        (b"PK\x03\x04", "no JSON"),
        (b"hello", "no JSON"),
        (b'"\xff"', "no UTF-8 at byte 1"),
        ("\ud800", "can't be written as JSON"),
        ({"n": float("nan")}, "can't be written as JSON"),
        ({"n": object()}, "can't be written as JSON"),
    ],
)
def test_what_could_not_stay_one_record_is_refused_by_name(
    receiver: ChannelReceiver, tmp_path: Path, record: bytes, why: str
) -> None:
    with sender(receiver, tmp_path) as made:
        with pytest.raises(RecordRefusedError, match=why):
            made.send(record)
        with pytest.raises(TypeError, match="not int"):
            made.send(1)  # type: ignore[arg-type]
        with pytest.raises(RecordRefusedError, match=why):
            made.send_many([b"1", record, b"2"])
        made.flush(SECONDS)
    assert receiver.channels["a"] == [b"1"]


def test_no_record_is_sent_before_it_is_on_the_disk(receiver: ChannelReceiver, tmp_path: Path) -> None:
    """Check what makes a power cut safe: the receiver never has a record that the spool may lose."""
    limits = SenderLimits(linger=0.001, fsync_interval=1000.0)
    early: list[int] = []
    with sender(receiver, tmp_path, limits=limits) as made:

        def look(_: str, offset: int, records: list[bytes]) -> None:
            if made._spool._synced < offset + len(records):
                early.append(offset)

        receiver.before = look
        for number in range(20):
            made.send(b"%d" % number)
            made.flush(SECONDS)
    assert len(receiver.channels["a"]) == 20
    assert early == []


def test_lost_answers_neither_lose_nor_double(receiver: ChannelReceiver, tmp_path: Path) -> None:
    turns = iter([True, False, True, True] + [False] * 1000)
    receiver.drop_answer = lambda: next(turns)
    with sender(receiver, tmp_path) as made:
        for number in range(300):
            made.send(b"%d" % number)
        made.flush(SECONDS)
    assert receiver.channels["a"] == numbers(0, 300)


def test_a_sender_that_was_killed_goes_on_where_the_channel_is(receiver: ChannelReceiver, tmp_path: Path) -> None:
    first = sender(receiver, tmp_path / "0")
    first.send_many(numbers(0, 100))
    first.flush(SECONDS)
    # From here on requests are registered, and the sender does not hear of it.
    receiver.drop_answer = lambda: True
    first.send_many(numbers(100, 200))
    eventually(lambda: len(receiver.channels["a"]) == 200, "the second hundred", seconds=SECONDS)
    first.send_many(numbers(200, 250))
    shutil.copytree(tmp_path / "0", tmp_path / "1")
    first.close(0)
    receiver.drop_answer = lambda: False
    with sender(receiver, tmp_path / "1") as again:
        assert again.status().taken == 250
        again.send(b"250")
        again.flush(SECONDS)
    assert receiver.channels["a"] == numbers(0, 251)


def test_records_taken_while_the_receiver_is_away_are_sent_later(receiver: ChannelReceiver, tmp_path: Path) -> None:
    for part in range(3):
        away = Sender("http://127.0.0.1:9/v1/s", channel="a", spool=tmp_path, limits=LIMITS)
        away.send_many(numbers(part * 10, part * 10 + 10))
        with pytest.raises(FlushTimeoutError, match=r"127\.0\.0\.1:9: .*stay in"):
            away.flush(0.1)
        away.close(0)
    with sender(receiver, tmp_path) as made:
        made.flush(SECONDS)
    assert receiver.channels["a"] == numbers(0, 30)


def test_retry_after_is_honoured_and_the_wait_grows(receiver: ChannelReceiver, tmp_path: Path) -> None:
    times: list[float] = []

    def busy(*_: object) -> Reply | None:
        times.append(time.monotonic())
        return Reply(429, {"detail": "slow down"}, {"Retry-After": "1"}) if len(times) == 1 else None

    receiver.before = busy
    with sender(receiver, tmp_path) as made:
        made.send(b"1")
        made.flush(SECONDS)
    assert times[1] - times[0] >= 1.0
    assert receiver.channels["a"] == [b"1"]


def test_what_a_person_must_mend_is_named_and_tried_again(receiver: ChannelReceiver, tmp_path: Path) -> None:
    is_wrong = True
    receiver.before = lambda *_: Reply(401, {"detail": "no token of the stream's"}) if is_wrong else None
    with sender(receiver, tmp_path) as made:
        made.send(b"1")
        eventually(lambda: bool(made.status().last_error), "an answer")
        with pytest.raises(FlushTimeoutError, match="401: no token of the stream's"):
            made.flush(0.2)
        is_wrong = False
        made.flush(SECONDS)
    assert receiver.channels["a"] == [b"1"]


def test_a_refused_record_is_set_aside_and_the_others_go_on(receiver: ChannelReceiver, tmp_path: Path) -> None:
    bad = {b"13", b"500", b"501", b"999"}
    requests = 0

    def refuse(_: str, __: int, records: list[bytes]) -> Reply | None:
        nonlocal requests
        requests += 1
        return Reply(400, {"detail": "no record"}) if bad.intersection(records) else None

    receiver.before = refuse
    with sender(receiver, tmp_path) as made:
        made.send_many(numbers(0, 1000))
        made.flush(SECONDS)
        assert made.status().refused == 4
    assert receiver.channels["a"] == [record for record in numbers(0, 1000) if record not in bad]
    kept = [json.loads(line) for line in (tmp_path / "refused.jsonl").read_text().splitlines()]
    assert [(one["index"], one["record"], one["status"], one["reason"]) for one in kept] == [
        (int(record), record.decode(), 400, "no record") for record in sorted(bad, key=int)
    ]
    # At most one request a division.
    assert requests < 100
    receiver.before = lambda *_: None
    with sender(receiver, tmp_path) as again:
        again.send(b"1000")
        again.flush(SECONDS)
    assert receiver.channels["a"][-1] == b"1000"
    assert len(receiver.channels["a"]) == 997


def test_a_record_that_is_registered_is_not_set_aside_for_a_later_refusal(
    receiver: ChannelReceiver, tmp_path: Path
) -> None:
    receiver.drop_answer = lambda: True
    with sender(receiver, tmp_path) as made:
        made.send(b"1")
        eventually(lambda: receiver.channels.get("a") == [b"1"], "that it is registered")
        receiver.before = lambda _, __, records: Reply(400, {"detail": "no"}) if b"1" in records else None
        receiver.drop_answer = lambda: False
        made.flush(SECONDS)
        made.send(b"2")
        made.flush(SECONDS)
        assert made.status().refused == 0
    assert receiver.channels["a"] == [b"1", b"2"]


class Killing:
    """Refuse bad records, and take the spool's image at one request: nothing is written while the sender waits."""

    def __init__(self, spool: Path, image: Path, kill_at: int, *, is_lost: bool) -> None:
        self._spool = spool
        self._image = image
        self._left = kill_at
        self._is_lost = is_lost
        self.is_done = threading.Event()

    def take(self, _: str, __: int, records: list[bytes]) -> Reply | None:
        if self.is_done.is_set():
            return Reply(503)
        self._left -= 1
        if self._left == 0:
            shutil.copytree(self._spool, self._image)
            self.is_done.set()
            if self._is_lost:
                return Reply(503)
        return refuse_bad("", 0, records)


def refuse_bad(_: str, __: int, records: list[bytes]) -> Reply | None:
    return None if {b"0", b"3", b"4", b"7"}.isdisjoint(records) else Reply(422, {"detail": "no record"})


def is_over(killing: Killing, sender: Sender) -> bool:
    return killing.is_done.is_set() or not sender.status().waiting


@pytest.mark.search
@pytest.mark.parametrize("is_lost", [True, False], ids=["request lost", "answer lost"])
def test_a_kill_at_any_request_with_refused_records_keeps_the_offsets(
    receiver: ChannelReceiver, tmp_path: Path, *, is_lost: bool
) -> None:
    wanted = numbers(1, 3) + numbers(5, 7) + numbers(8, 11)
    for kill_at in itertools.count(1, 1 if is_whole() else 4):
        spool, image = tmp_path / f"{kill_at}", tmp_path / f"{kill_at}-killed"
        receiver.channels.clear()
        killing = Killing(spool, image, kill_at, is_lost=is_lost)
        receiver.before = killing.take
        first = sender(receiver, spool)
        first.send_many(numbers(0, 10))
        eventually(partial(is_over, killing, first), "a kill")
        first.close(0)
        if not killing.is_done.is_set():
            break
        receiver.before = refuse_bad
        with sender(receiver, image) as again:
            again.send(b"10")
            again.flush(SECONDS)
        assert receiver.channels["a"] == wanted
    assert kill_at > 10


def test_a_request_that_is_too_large_is_sent_in_parts(receiver: ChannelReceiver, tmp_path: Path) -> None:
    sizes: list[int] = []

    def small(_: str, __: int, records: list[bytes]) -> Reply | None:
        sizes.append(sum(map(len, records)))
        return Reply(413, {"detail": "max_body_bytes"}) if sizes[-1] > 1000 else None

    receiver.before = small
    with sender(receiver, tmp_path) as made:
        made.send_many([*numbers(0, 5000), b'"%s"' % (b"x" * 2000), b"1"])
        made.flush(SECONDS)
    assert receiver.channels["a"] == [*numbers(0, 5000), b"1"]
    assert json.loads((tmp_path / "refused.jsonl").read_text())["status"] == 413
    assert sum(size > 1000 for size in sizes) < 30


def test_a_receiver_that_refuses_everything_stops_the_sender(receiver: ChannelReceiver, tmp_path: Path) -> None:
    receiver.before = lambda *_: Reply(400, {"detail": "key_from and a channel"})
    with sender(receiver, tmp_path, limits=SenderLimits(linger=0.001, refused=3)) as made:
        made.send_many(numbers(0, 100))
        with pytest.raises(RequestRefusedError, match=r"the limit `refused` is 3.*key_from and a channel"):
            made.flush(SECONDS)
        with pytest.raises(RequestRefusedError, match="the limit"):
            made.send(b"1")
    (tmp_path / "refused.jsonl").unlink()
    receiver.before = lambda *_: None
    with sender(receiver, tmp_path) as again:
        again.flush(SECONDS)
    assert receiver.channels["a"] == numbers(3, 100)


def test_refused_records_that_were_dealt_with_are_not_counted(receiver: ChannelReceiver, tmp_path: Path) -> None:
    receiver.before = lambda _, __, records: Reply(400) if b"0" in records else None
    with sender(receiver, tmp_path, limits=SenderLimits(linger=0.001, refused=1)) as made:
        for number in range(2):
            made.send_many([b"0", b"%d" % (number + 1)])
            made.flush(SECONDS)
            assert made.status().refused == 1
            (tmp_path / "refused.jsonl").unlink()
        assert made.status().refused == 0
    assert receiver.channels["a"] == [b"1", b"2"]


def send_kilobytes(made: Sender, count: int) -> None:
    for _ in range(count):
        made.send(b'"%s"' % (b"x" * 1000))


@pytest.mark.parametrize(("record", "count"), [(b'"%s"' % (b"x" * 200), 900), ({"a": "x" * 20_000}, 40)])
def test_many_records_have_room_in_a_small_spool(
    receiver: ChannelReceiver, tmp_path: Path, record: Record, count: int
) -> None:
    limits = SenderLimits(linger=0.001, spool_bytes=2**18)
    with sender(receiver, tmp_path, limits=limits) as made:
        made.send_many([record] * count)
        made.flush(SECONDS)
    assert len(receiver.channels["a"]) == count


def test_a_full_spool_makes_send_wait_and_then_says_so(receiver: ChannelReceiver, tmp_path: Path) -> None:
    gate = threading.Event()

    def wait(*_: object) -> None:
        gate.wait(SECONDS)

    receiver.before = wait
    limits = SenderLimits(linger=0.001, spool_bytes=2**16, full_timeout=0.2)
    with sender(receiver, tmp_path, limits=limits) as made:
        with pytest.raises(SpoolFullError, match="spool_bytes is 65536"):
            send_kilobytes(made, 1000)
        sent = made.status().taken
        assert 40 < sent < 70
        gate.set()
        made.flush(SECONDS)
        send_kilobytes(made, 200)
        made.flush(SECONDS)
    assert len(receiver.channels["a"]) == sent + 200


# -- spool and channel that do not fit together ------------------------------------------------------------------------


def with_old_spool(receiver: ChannelReceiver, tmp_path: Path) -> Path:
    """Send 20 records, and return a copy of the spool as it was after 10."""
    made = sender(receiver, tmp_path / "0")
    made.send_many(numbers(0, 10))
    made.flush(SECONDS)
    shutil.copytree(tmp_path / "0", tmp_path / "old")
    made.send_many(numbers(10, 20))
    made.flush(SECONDS)
    made.close()
    return tmp_path / "old"


def test_an_old_copy_of_a_spool_is_refused_also_with_new_records(receiver: ChannelReceiver, tmp_path: Path) -> None:
    spool = with_old_spool(receiver, tmp_path)
    for _ in range(2):
        # Without its receiver, it takes more than the channel has.
        away = Sender("http://127.0.0.1:9/v1/s", channel="a", spool=spool, limits=LIMITS)
        away.send_many(numbers(100, 120))
        away.close(0)
    with (
        sender(receiver, spool) as made,
        pytest.raises(ChannelMismatchError, match=r"offset 20, .* before 10: .*old copy"),
    ):
        made.flush(SECONDS)
    with sender(receiver, spool, on_mismatch="discard") as made:
        made.flush(SECONDS)
    assert receiver.channels["a"] == [*numbers(0, 20), *numbers(100, 120), *numbers(100, 120)]


def test_an_old_copy_is_sent_again_if_its_owner_says_so(receiver: ChannelReceiver, tmp_path: Path) -> None:
    spool = with_old_spool(receiver, tmp_path)
    with sender(receiver, spool, on_mismatch="resend") as made:
        made.send(b"20")
        made.flush(SECONDS)
    assert receiver.channels["a"] == [*numbers(0, 20), *numbers(0, 10), b"20"]


def test_a_lost_spool_goes_on_where_the_channel_is(receiver: ChannelReceiver, tmp_path: Path) -> None:
    receiver.channels["a"] = numbers(0, 10)
    for begin in (10, 20):
        with sender(receiver, tmp_path / str(begin)) as made:
            made.send_many(numbers(begin, begin + 10))
            made.flush(SECONDS)
    assert receiver.channels["a"] == numbers(0, 30)


def test_an_empty_spool_goes_on_after_another_sender(receiver: ChannelReceiver, tmp_path: Path) -> None:
    for begin, spool in ((0, "a"), (10, "b"), (20, "a")):
        with sender(receiver, tmp_path / spool) as made:
            made.send_many(numbers(begin, begin + 10))
            made.flush(SECONDS)
    assert receiver.channels["a"] == numbers(0, 30)


@pytest.mark.parametrize("is_open", [True, False])
def test_a_channel_that_is_set_back_for_a_moment_is_waited_for(
    receiver: ChannelReceiver, tmp_path: Path, *, is_open: bool
) -> None:
    """Check what a failover of Postgres without its last commits does, until the receiver has registered them again."""
    limits = SenderLimits(linger=0.001)
    made = sender(receiver, tmp_path, limits=limits)
    made.send_many(numbers(0, 10))
    made.flush(SECONDS)
    made.close()
    if is_open:
        made = sender(receiver, tmp_path, limits=limits)
        eventually(lambda: len(receiver.asked) == 2, "the next sender to meet the channel")
    del receiver.channels["a"][4:]
    if not is_open:
        made = sender(receiver, tmp_path, limits=limits)
    made.send(b"10")
    eventually(lambda: "set back to 4" in made.status().last_error, "that it waits")
    receiver.channels["a"] += numbers(4, 10)
    made.flush(SECONDS)
    made.close()
    assert receiver.channels["a"] == numbers(0, 11)


def test_a_channel_that_was_set_back_is_an_error_until_its_owner_decides(
    receiver: ChannelReceiver, tmp_path: Path
) -> None:
    with sender(receiver, tmp_path) as made:
        made.send_many(numbers(0, 10))
        made.flush(SECONDS)
    del receiver.channels["a"][4:]
    away = Sender("http://127.0.0.1:9/v1/s", channel="a", spool=tmp_path, limits=LIMITS)
    away.send(b"10")
    away.close(0)
    with (
        sender(receiver, tmp_path) as made,
        pytest.raises(ChannelMismatchError, match=r"offset 4, .* from 10 on: .*restored.*on_mismatch"),
    ):
        made.flush(SECONDS)
    with sender(receiver, tmp_path, on_mismatch="resend") as made:
        made.flush(SECONDS)
    assert receiver.channels["a"] == [*numbers(0, 4), b"10"]


def test_a_channel_that_is_set_back_while_records_are_sent_stops_the_sender(
    receiver: ChannelReceiver, tmp_path: Path
) -> None:
    with sender(receiver, tmp_path) as made:
        made.send_many(numbers(0, 10))
        made.flush(SECONDS)
    with sender(receiver, tmp_path) as made:
        made.send(b"10")
        made.flush(SECONDS)
        receiver.channels["a"].clear()
        made.send(b"11")
        with pytest.raises(ChannelMismatchError, match="removed or restored"):
            made.flush(SECONDS)


@pytest.mark.parametrize(("choice", "wanted"), [("resend", [b"1", b"2", b"3", b"4"]), ("discard", [b"1", b"3", b"4"])])
def test_two_senders_of_one_channel_are_found_before_records_are_taken_for_known(
    receiver: ChannelReceiver, tmp_path: Path, choice: str, wanted: list[bytes]
) -> None:
    with sender(receiver, tmp_path / "0") as one, sender(receiver, tmp_path / "1") as two:
        eventually(lambda: len(receiver.asked) == 2, "both to meet the channel")
        one.send(b"1")
        one.flush(SECONDS)
        two.send(b"2")
        with pytest.raises(ChannelMismatchError, match="another sender uses the channel"):
            two.flush(SECONDS)
    # The next process does not take them for registered.
    with (
        sender(receiver, tmp_path / "1") as two,
        pytest.raises(ChannelMismatchError, match=r"1 records before .*may be another sender's"),
    ):
        two.flush(SECONDS)
    with sender(receiver, tmp_path / "1", on_mismatch=choice) as two:
        two.send(b"3")
        two.flush(SECONDS)
    with sender(receiver, tmp_path / "1") as two:
        two.send(b"4")
        two.flush(SECONDS)
    assert receiver.channels["a"] == wanted


@pytest.mark.parametrize("returns", [True, False])
def test_what_the_channel_forgets_is_waited_for_and_then_sent_again(
    receiver: ChannelReceiver, tmp_path: Path, *, returns: bool
) -> None:
    """Check a failover of which the sender still has the records: the receiver may register them again by itself."""
    limits = SenderLimits(linger=0.001, set_back_timeout=0.3)
    with sender(receiver, tmp_path, limits=limits) as made:
        for begin, lost in ((0, 10), (11, 21)):
            made.send_many(numbers(begin, lost))
            made.flush(SECONDS)
            with receiver.lock:
                del receiver.channels["a"][lost - 6 :]
            began = time.monotonic()
            made.send(b"%d" % lost)
            eventually(lambda: "set back to" in made.status().last_error, "that it waits")
            with pytest.raises(FlushTimeoutError):
                made.flush(0)
            if returns:
                with receiver.lock:
                    receiver.channels["a"] += numbers(lost - 6, lost)
            made.flush(SECONDS)
            # The wait is given each time.
            assert returns or time.monotonic() - began > 0.3
    assert receiver.channels["a"] == numbers(0, 22)


def test_records_of_others_behind_ours_are_still_an_error_after_a_restart(
    receiver: ChannelReceiver, tmp_path: Path
) -> None:
    def joins(channel: str, _: int, records: list[bytes]) -> Reply:
        receiver.before = lambda *_: None
        receiver.channels[channel] = [*records, *[b'"other"'] * 5]
        return Reply(200, {"records": 5}, {"Forebay-Offset": "10"})

    receiver.before = joins
    limits = SenderLimits(linger=0.001, batch_records=5)
    with sender(receiver, tmp_path, limits=limits) as made:
        made.send_many(numbers(0, 20))
        with pytest.raises(ChannelMismatchError, match="has sent those from 0 to 5: another sender"):
            made.flush(SECONDS)
    with sender(receiver, tmp_path, limits=limits) as made, pytest.raises(ChannelMismatchError, match="had 5 records"):
        made.flush(SECONDS)
    with sender(receiver, tmp_path, limits=limits, on_mismatch="resend") as made:
        made.flush(SECONDS)
    assert receiver.channels["a"] == [*numbers(0, 5), *[b'"other"'] * 5, *numbers(5, 20)]


class FullDisk:
    """Fail one write of the spool's state."""

    def __init__(self, patch: pytest.MonkeyPatch, fails_at: int = 1) -> None:
        self._left = fails_at
        self._write = SpoolState.write
        # A bound method would not be given the state.
        patch.setattr(SpoolState, "write", lambda state, folder: self.write(state, folder))  # noqa: PLW0108

    def write(self, state: SpoolState, folder: Path) -> None:
        self._left -= 1
        if self._left == 0:
            raise OSError(errno.ENOSPC, "no space")
        self._write(state, folder)


def test_a_doubt_that_a_full_disk_does_not_note_is_an_error(
    receiver: ChannelReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sender(receiver, tmp_path) as made:
        made.send(b"0")
        made.flush(SECONDS)
        receiver.channels["a"] += [b'"other"'] * 3
        FullDisk(monkeypatch)
        made.send_many(numbers(1, 4))
        with pytest.raises(ChannelMismatchError, match=r"another sender .*could not note it .*no space.* 1 to 3 when"):
            made.flush(SECONDS)


def test_a_disk_that_is_full_for_a_moment_at_the_start_ends_nothing(
    receiver: ChannelReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.channels["a"] = [b"0"]
    FullDisk(monkeypatch, fails_at=2)
    with sender(receiver, tmp_path) as made:
        made.send(b"1")
        made.flush(SECONDS)
    assert receiver.channels["a"] == [b"0", b"1"]


@pytest.mark.parametrize("reply", [Reply(429), None], ids=["429", "no connection"])
def test_a_request_that_was_not_taken_is_no_first_try(
    receiver: ChannelReceiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: Reply | None
) -> None:
    with sender(receiver, tmp_path) as made:
        eventually(lambda: len(receiver.asked) == 1, "that it meets the channel")
        if reply is None:
            # Its connection is not touched: the answer to its question may be on the way still.
            monkeypatch.setattr(ChannelRequests, "_connected", refuse_connection)
        else:
            receiver.before = lambda *_: reply
        made.send(b"1")
        eventually(lambda: bool(made.status().last_error), "a failed try")
        receiver.channels["a"] = [b'"other"']
        receiver.before = lambda *_: None
        monkeypatch.undo()
        with pytest.raises(ChannelMismatchError, match="another sender"):
            made.flush(SECONDS)


def refuse_connection(_: ChannelRequests) -> NoReturn:
    raise ConnectionRefusedError


# -- answers of others -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (Reply(200, {"records": 1}), "has no Forebay-Offset"),
        (Reply(200, {"records": 1}, {"Forebay-Offset": "-1"}), "has no Forebay-Offset"),
        (Reply(200, {"records": 1}, {"Forebay-Offset": "9" * 30}), "has no Forebay-Offset"),
        (Reply(200, {"records": 1}, {"Forebay-Offset": "0"}), "took 0 records of a request of 1"),
        (Reply(200, {"records": 1}, {"Forebay-Offset": "2"}), "another sender uses the channel"),
        (Reply(409, {}, {"Forebay-Offset": "7"}), "another sender uses the channel"),
    ],
)
def test_an_answer_that_can_not_be_true_stops_the_sender(
    receiver: ChannelReceiver, tmp_path: Path, reply: Reply, why: str
) -> None:
    receiver.before = lambda *_: reply
    with sender(receiver, tmp_path) as made:
        made.send(b"1")
        with pytest.raises((ChannelMismatchError, RequestRefusedError), match=why):
            made.flush(SECONDS)
        assert made.status().waiting == 1


def test_a_closed_sender_takes_nothing(receiver: ChannelReceiver, tmp_path: Path) -> None:
    made = sender(receiver, tmp_path)
    made.close()
    made.close()
    with pytest.raises(SenderClosedError):
        made.send(b"1")
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("sender")] == []
    open_files = {str(file.resolve()) for file in Path("/proc/self/fd").iterdir()}
    assert [file for file in open_files if file.startswith(str(tmp_path))] == []


def refusals_of_a_child(made: Sender) -> list[str]:
    """Fork, use the sender in the child, and return what that raised there."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(20)  # it must not wait for ever
        said = []
        try:
            for use in (partial(made.send, b'"child"'), partial(made.send_many, [b"1"]), made.flush):
                try:
                    use()
                except SendError as error:
                    said.append(f"{type(error).__name__}: {error}")
            made.close()
        finally:
            os.write(writer, json.dumps(said).encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        said = json.loads(told.read())
    assert os.waitpid(child, 0)[1] == 0
    assert isinstance(said, list)
    return said


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_of_the_process_changes_nothing(receiver: ChannelReceiver, tmp_path: Path) -> None:
    with sender(receiver, tmp_path, fsync="always") as made:
        made.send(b"1")
        # Its threads may hold the spool's lock.
        with made._spool.changed:
            said = refusals_of_a_child(made)
        assert len(said) == 3
        assert all(one.startswith("SpoolLockedError") and "opened by process" in one for one in said)
        made.send(b"22")
        made.flush(SECONDS)
    assert receiver.channels["a"] == [b"1", b"22"]


def test_threads_may_send_at_the_same_time(receiver: ChannelReceiver, tmp_path: Path) -> None:
    with sender(receiver, tmp_path, fsync="always") as made:

        def send(thread: int) -> None:
            for number in range(100):
                made.send([thread, number])

        threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            joined(thread)
        made.flush(SECONDS)
    found = [json.loads(record) for record in receiver.channels["a"]]
    assert sorted(found) == [[thread, number] for thread in range(4) for number in range(100)]
    assert all([n for t, n in found if t == thread] == list(range(100)) for thread in range(4))


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ({"url": "ftp://x/v1/s"}, "url"),
        ({"url": "http:///v1/s"}, "url"),
        ({"channel": "a b"}, "channel 'a b'"),
        ({"channel": "a" * 121}, "channel"),
        ({"fsync": "sometimes"}, "fsync is 'sometimes'"),
        ({"records": "text"}, "records is 'text'"),
        ({"token": "a\nb"}, "token"),
        ({"limits": SenderLimits(spool_bytes=1000)}, "spool_bytes is 1000"),
    ],
)
def test_wrong_arguments_are_named(tmp_path: Path, named: dict[str, object], why: str) -> None:
    usual: dict[str, object] = {"url": "http://127.0.0.1:9/v1/s", "channel": "a", "spool": tmp_path}
    with pytest.raises(ValueError, match=why):
        Sender(**{**usual, **named})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="linger is -1"):
        SenderLimits(linger=-1)

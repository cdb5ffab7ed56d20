"""Check requests of channels over real sockets: what is taken, what is refused, and what is answered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from receiver_runtime.block_path.channel_moves import decode_note, encode_moves
from receiver_runtime.receivers.http.channels.channel import place_of
from tests.unit.receiver_runtime.receivers.http.http_client import JSON, LINES, Answer, Listening, listening
from tracker_store.blocks.blocks import ChannelMove
from tracker_store.blocks.channels import ChannelKey

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    with listening(tmp_path_factory.mktemp("http")) as made:
        yield made


def send(made: Listening, channel: str, offset: object, body: bytes, **more: str) -> Answer:
    headers = {**LINES, "Forebay-Channel": channel, "Forebay-Offset": str(offset), **more}
    return made.post(body, headers)


def said(answer: Answer) -> tuple[int, str | None, Mapping[str, object]]:
    # Names of headers come as they were written.
    offset = {name.lower(): value for name, value in answer.headers.items()}.get("forebay-offset")
    return answer.status, offset, answer.json()


def test_a_large_request_and_one_with_bad_lines_count_as_a_small_one(one: Listening) -> None:
    many = b"\n".join(b'{"n": %d}' % n for n in range(60_000))
    assert said(send(one, "large", 0, many)) == (200, "60000", {"records": 60_000, "duplicates": 0})
    assert said(send(one, "large", 59_999, b"1\n2"))[1:] == ("60001", {"records": 1, "duplicates": 1})
    letters = len(one.rig.dead_letters())
    for records, duplicates in ((2, 0), (0, 3)):
        # The one that can't be read is the second of three; it is known as the others are.
        status, offset, answer = said(send(one, "bad", 0, b'{"a": 1}\n{"a": \n{"a": 3}'))
        assert (status, offset) == (200, "3")
        assert (answer["records"], answer["duplicates"]) == (records, duplicates)
    assert len(one.rig.dead_letters()) == letters + 1
    status, offset, answer = said(send(one, "bad", 2, b'{"a": 3}\n{"a": \n{"a": 5}'))
    assert (status, offset) == (409, "3")
    assert "its dead letters have no offsets" in str(answer["detail"])


def test_a_request_without_a_readable_line_counts_too(one: Listening) -> None:
    letters = len(one.rig.dead_letters())
    for offset, body, end in ((0, b"{", "1"), (1, b'{"a": \n\xff\n[', "4"), (0, b"{", "4")):
        status, position, answer = said(send(one, "unreadable", offset, body))
        assert (status, position, answer["records"]) == (200, end, 0)
    assert [data for _, _, data in one.rig.dead_letters()[letters:]] == [b"{", b'{"a":', b"\xff", b"["]
    assert said(send(one, "unreadable", 4, b"5"))[1:] == ("5", {"records": 1, "duplicates": 0})
    # The receiver can't know how many records these are: nothing is stored, and the position stays.
    assert [send(one, "unreadable", 5, body).status for body in (b"", b"\n \n")] == [400, 400]
    document = one.post(b'[{"a": 1}, {"a"', {**JSON, "Forebay-Channel": "unreadable", "Forebay-Offset": "5"})
    assert document.status == 400
    # Of no channel: refused.
    assert one.post(b"{", LINES).status == 400
    assert said(one.ask("GET", "/channels/unreadable"))[1] == "5"


@pytest.mark.parametrize("body", [b"[1, 2, 3]", b'[1, {"a": [2]}, "3"]'])
def test_an_array_has_as_many_records_as_elements(one: Listening, body: bytes) -> None:
    name = f"array-{len(body)}"
    answer = one.post(body, {**JSON, "Forebay-Channel": name, "Forebay-Offset": "0"})
    assert said(answer) == (200, "3", {"records": 3, "duplicates": 0})


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"Forebay-Channel": "a"}, "Forebay-Offset: it is missing"),
        ({"Forebay-Offset": "0"}, "Forebay-Channel: it is missing"),
        ({"Forebay-Channel": "", "Forebay-Offset": "0"}, "no name of a channel"),
        ({"Forebay-Channel": "a/b", "Forebay-Offset": "0"}, "'a/b' is no name of a channel"),
        ({"Forebay-Channel": "a" * 121, "Forebay-Offset": "0"}, "no name of a channel"),
        ({"Forebay-Channel": "a", "Forebay-Offset": "-1"}, "'-1' is no offset"),
        ({"Forebay-Channel": "a", "Forebay-Offset": "1.0"}, "no offset"),
        ({"Forebay-Channel": "a", "Forebay-Offset": "9" * 19}, "no offset"),
        ({"Forebay-Channel": "a", "Forebay-Offset": "9" * 5000}, "no offset"),
        ({"Forebay-Channel": "a", "Forebay-Offset": str(2**63 - 2)}, "end behind the last offset"),
        ({"Forebay-Channel": "a", "Forebay-Offset": "0", "Idempotency-Key": "k"}, "leave out one of the two"),
    ],
)
def test_a_request_that_is_in_no_channel_is_refused_by_name(
    one: Listening, headers: Mapping[str, str], why: str
) -> None:
    before = dict(one.log.positions)
    for body in (b"1\n2", b"1\n2" * 200_000):
        answer = one.post(body, {**LINES, **headers})
        assert (answer.status, why in answer.json()["detail"]) == (400, True), answer.json()
    assert one.log.positions == before


def test_what_acknowledges_in_another_way_is_refused(one: Listening, tmp_path: Path) -> None:
    place = {**JSON, "Forebay-Channel": "a", "Forebay-Offset": "0"}
    answer = one.post(b"1", place, path="/v1/orders?ack=buffered")
    assert (answer.status, "ack=buffered" in answer.json()["detail"]) == (400, True)
    with listening(tmp_path, key_from="body:/id") as keyed:
        answer = keyed.post(b'{"id": "x"}', place)
        assert (answer.status, "takes keys from body:/id" in answer.json()["detail"]) == (400, True)
        # A sender learns it before it sends records.
        for path in ("/channels/a", "/v1/orders/channels/a"):
            asked = keyed.ask("GET", path)
            assert (asked.status, asked.json()["detail"]) == (400, answer.json()["detail"])


def test_a_path_of_a_protocol_without_channels_refuses_the_question_too(tmp_path: Path) -> None:
    pytest.importorskip("google.rpc", reason="needs the extra forebay[otlp]")
    otlp = {"Content-Type": "application/json", "Forebay-Channel": "a", "Forebay-Offset": "0"}
    with listening(tmp_path, protocols=["opentelemetry"], stream_name="logs") as made:
        answer = made.post(b"{}", otlp, path="/v1/logs")
        asked = made.ask("GET", "/v1/logs/channels/a")
        assert [answer.status, asked.status] == [400, 400]
        assert asked.json()["detail"] == "/v1/logs takes no channels: send without Forebay-Channel"


def test_the_answer_says_how_a_body_becomes_records(tmp_path: Path) -> None:
    with listening(tmp_path, body="whole") as made:
        assert said(made.ask("GET", "/channels/a"))[2] == {"channel": "a", "offset": 0, "body": "whole"}


def test_a_position_is_asked_for_at_both_paths_and_only_so(one: Listening) -> None:
    assert said(send(one, "asked", 0, b"1\n2"))[:2] == (200, "2")
    for path in ("/channels/asked", "/v1/orders/channels/asked"):
        assert said(one.ask("GET", path)) == (200, "2", {"channel": "asked", "offset": 2, "body": "auto"})
    assert said(one.ask("GET", "/channels/never-seen"))[2]["offset"] == 0
    assert one.ask("HEAD", "/channels/asked").status == 200
    for method, path, status in (
        ("POST", "/channels/asked", 405),
        ("GET", "/v1/other/channels/asked", 404),
        ("GET", "/channels/a%2Fb", 404),
        ("GET", "/channels/a%20b", 400),
        ("GET", f"/channels/{'a' * 121}", 400),
        ("GET", "/channels/", 404),
    ):
        answer = one.ask(method, path)
        assert (answer.status, answer.json()["status"]) == (status, status), (path, answer)


def test_each_sender_has_its_own_channels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRST", "one")
    monkeypatch.setenv("SECOND", "two")
    with listening(tmp_path, tokens=["env:FIRST", "env:SECOND"]) as made:
        bearer = {"Authorization": "Bearer two"}
        assert send(made, "a", 0, b"1", Authorization="Bearer one").status == 200
        assert said(send(made, "a", 0, b"2\n3", **bearer))[:2] == (200, "2")
        assert made.ask("GET", "/channels/a").status == 401
        assert said(made.ask("GET", "/channels/a", headers=bearer))[1] == "2"
        assert made.log.positions == {ChannelKey("env:FIRST", "a"): 1, ChannelKey("env:SECOND", "a"): 2}


def test_a_cloud_event_in_a_channel_keeps_its_id_and_no_key(one: Listening) -> None:
    events = [{"specversion": "1.0", "type": "t", "source": "/s", "id": "same", "data": 1}]
    headers = {"Content-Type": "application/cloudevents-batch+json", "Forebay-Channel": "e", "Forebay-Offset": "0"}
    before = set(one.log.keys)
    assert said(one.post(json.dumps(events).encode(), headers)) == (200, "1", {"records": 1, "duplicates": 0})
    assert one.log.keys == before
    assert [row["id"] for row in one.rows()[-1:]] == ["same"]


def test_moves_are_read_as_they_were_written_and_other_notes_have_none() -> None:
    moves = [ChannelMove("env:TOKEN", "a.b_~-", 0, 2**62), ChannelMove("", "é", 1, 2)]
    assert decode_note(encode_moves(moves)).channel_moves == moves
    assert decode_note(b"\0").channel_moves == []
    for damaged in (
        b"{",
        b'{"other": []}',
        b'{"channel_moves": [1]}',
        b'{"channel_moves": [{"sender": "", "channel": "a", "from_offset": 1, "to_offset": 1}]}',
        b"{\xff",
    ):
        with pytest.raises(ValueError, match=r".*"):
            decode_note(damaged)


def test_a_request_without_the_headers_is_in_no_channel() -> None:
    assert place_of([(b"host", b"x")], None) is None

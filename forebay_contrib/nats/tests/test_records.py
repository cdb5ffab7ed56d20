from __future__ import annotations

import pytest

from forebay_contrib.nats.records import Delivered, StreamPlace, batch_of, keys_of, sorted_out

AT = 1_526_919_030_474_123_456


@pytest.mark.parametrize(
    "reply",
    [
        f"$JS.ACK.ORDERS.d.1.42.7.{AT}.3",
        f"$JS.ACK.hub.acc.ORDERS.d.1.42.7.{AT}.3",
        f"$JS.ACK.hub.acc.ORDERS.d.1.42.7.{AT}.3.token",
    ],
)
def test_a_place_is_parsed_from_old_and_new_servers(reply: str) -> None:
    assert StreamPlace.of(reply) == StreamPlace("ORDERS", 42, AT)


@pytest.mark.parametrize("reply", ["", "_INBOX.x", "$JS.ACK.ORDERS"])
def test_a_reply_subject_of_another_form_has_no_place(reply: str) -> None:
    assert StreamPlace.of(reply) is None


def delivered(subject: str = "orders.a", headers: bytes = b"", sequence: int = 42) -> Delivered:
    return Delivered(StreamPlace("ORDERS", sequence, AT), subject, "r", b"data", headers)


def test_rows() -> None:
    headers = b"NATS/1.0\r\na: 1\r\na:2\r\nStatus: 500\r\nempty:\r\n\r\n"
    messages = [delivered(), delivered("orders.ü", headers, 43)]
    first, second = batch_of(messages).to_pylist()
    assert first["headers"] is None
    assert second["subject"] == "orders.ü"
    assert [(pair["key"], pair["value"]) for pair in second["headers"]] == [
        ("a", "1"),
        ("a", "2"),
        ("Status", "500"),
        ("empty", ""),
    ]
    assert second["timestamp"].microsecond == 474_123
    assert keys_of(messages).to_pylist() == [f"42@ORDERS@{AT}", f"43@ORDERS@{AT}"]


def test_a_message_that_is_not_text_becomes_one_dead_letter() -> None:
    poison = [delivered("orders.\udcff"), delivered(headers=b"NATS/1.0\r\na: \xff\r\n\r\n")]
    with pytest.raises(UnicodeError):
        batch_of(poison)
    good, letters = sorted_out([poison[0], delivered(), poison[1]])
    assert good == [delivered()]
    assert [letter.data for letter in letters] == [
        b"orders.\xff\n\ndata",
        b"orders.a\nNATS/1.0\r\na: \xff\r\n\r\n\ndata",
    ]

"""Fuzz the answers to senders of web hooks that ask before they send: each is short, printable, and what was asked."""

from __future__ import annotations

import json
from urllib.parse import parse_qs

from forebay_contrib.web_hooks.handshakes import answer_event_grid, answer_hub, answer_slack
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError
from tests.fuzz.http_bodies import check_refusal
from tests.fuzz.target import fuzzed

_SOURCE = Http(listen="127.0.0.1:0")
_SLACK = b'{"token": "Jhj5", "challenge": "3eZbrw1aBm2rZgRNFdxV", "type": "url_verification"}'
_EVENT_GRID = b'[{"id": "2d17", "data": {"validationCode": "512d38b6-c7b8"}, "eventType": "Validation"}]'
_HUB = b"hub.mode=subscribe&hub.challenge=1158201444&hub.verify_token=a-token"
_MOST_BYTES = 4096


@fuzzed(
    "slack_question",
    valid=[_SLACK, b'{"type": "event_callback", "event": "url_verification"}'],
    words=[b'"challenge"', b'"url_verification"', b"\\u0000", b"\\ud800", b"\\r\\n", b"{", b"\xff"],
    attacks=[
        b'{"type": "url_verification", "challenge": "' + b"a" * 60_000 + b'"}',
        b'"url_verification"' + b"[" * 4000,
    ],
)
def test_slack_gets_its_own_challenge_or_none(body: bytes) -> None:
    try:
        reply = answer_slack([], body, _SOURCE)
    except PushRefusedError as error:
        check_refusal(error)
        return
    if reply is None:
        assert body != _SLACK
        return
    asked = json.loads(body)
    assert asked["type"] == "url_verification"
    assert reply.body.decode("ascii") == asked["challenge"]
    assert reply.body.decode().isprintable()
    assert 0 < len(reply.body) <= _MOST_BYTES


@fuzzed(
    "event_grid_question",
    valid=[_EVENT_GRID],
    words=[b'"data"', b'"validationCode"', b"[", b"{", b"null", b"\\ud800", b"\xff"],
    attacks=[b"[" * 60_000, b'[{"data": {"validationCode": "' + b"a" * 60_000 + b'"}}]'],
)
def test_event_grid_gets_its_own_code_or_none(body: bytes) -> None:
    try:
        reply = answer_event_grid([(b"aeg-event-type", b"SubscriptionValidation")], body, _SOURCE)
    except PushRefusedError as error:
        assert body != _EVENT_GRID
        check_refusal(error)
        return
    assert reply is not None
    assert json.loads(reply.body) == {"validationResponse": json.loads(body)[0]["data"]["validationCode"]}
    assert len(reply.body) <= 6 * _MOST_BYTES


@fuzzed(
    "hub_question",
    valid=[_HUB, b"hub.mode=unsubscribe", b""],
    words=[b"hub.mode=", b"hub.challenge=", b"hub.verify_token=", b"&", b"%0d%0a", b"%ff", b"\xff"],
    attacks=[b"hub.mode=subscribe&" * 5000, b"hub.mode=" + b"a" * 60_000],
)
def test_a_hub_gets_nothing_without_a_token(query: bytes) -> None:
    try:
        reply = answer_hub([], query, _SOURCE)
    except PushRefusedError as error:
        check_refusal(error, frozenset({400, 403}))
        return
    assert reply is None
    assert "hub.mode" not in parse_qs(query.decode())

"""Check the answers to senders that ask whether an address is right, and that nothing else gets one."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest

from forebay_contrib.web_hooks.declaration import Meta, Slack
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.sources.source_registry import parse_source
from tests.unit.receiver_runtime.receivers.http.http_client import JSON, listening

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# From api.slack.com/events/url_verification.
_ASKED = json.dumps(
    {
        "token": "Jhj5dZrVaK7ZwHHjRyZWjbDl",
        "challenge": "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P",
        "type": "url_verification",
    }
).encode()
# From learn.microsoft.com, "Endpoint validation with Event Grid event schema".
_VALIDATION = json.dumps(
    [
        {
            "id": "2d1781af-3a4c-4d7c-bd0c-e34b19da4e66",
            "topic": "/subscriptions/xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx",
            "subject": "",
            "data": {
                "validationCode": "512d38b6-c7b8-40c8-89fe-f46f9e9622b6",
                "validationUrl": "https://rp-eastus2.eventgrid.azure.net:553/eventsubscriptions/myeventsub/validate",
            },
            "eventType": "Microsoft.EventGrid.SubscriptionValidationEvent",
            "eventTime": "2022-10-28T04:23:35.1981776Z",
            "metadataVersion": "1",
            "dataVersion": "1",
        }
    ]
).encode()


def slack_headers(body: bytes, secret: bytes = b"a-secret") -> Mapping[str, str]:
    now = str(int(time.time()))
    digest = hmac.new(secret, b"v0:%s:%s" % (now.encode(), body), hashlib.sha256).hexdigest()
    return JSON | {"X-Slack-Signature": f"v0={digest}", "X-Slack-Request-Timestamp": now}


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_HOOK", "a-secret")
    monkeypatch.setenv("A_TOKEN", "a-token")


def test_slacks_question_is_answered_if_it_is_signed(tmp_path: Path) -> None:
    with listening(tmp_path, verify=Slack("env:A_HOOK"), key_from="body:/event_id") as made:
        answer = made.post(_ASKED, slack_headers(_ASKED))
        assert (answer.status, answer.headers["content-type"]) == (200, "text/plain")
        assert answer.body == b"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"
        assert made.post(_ASKED, slack_headers(_ASKED, b"another")).status == 401
        none = b'{"type": "url_verification"}'
        assert made.post(none, slack_headers(none)).status == 400
        event = b'{"type": "event_callback", "event_id": "Ev1", "text": "url_verification"}'
        assert made.post(event, slack_headers(event)).json() == {"records": 1, "duplicates": 0}
        assert made.bodies() == [event]


def test_it_is_a_record_where_no_one_named_slack(tmp_path: Path) -> None:
    with listening(tmp_path) as made:
        assert made.post(_ASKED).json() == {"records": 1, "duplicates": 0}


def test_metas_question_is_answered_with_its_token(tmp_path: Path) -> None:
    asked = {"hub.mode": "subscribe", "hub.challenge": "1158201444", "hub.verify_token": "a-token"}
    with listening(tmp_path, verify=Meta("env:A_HOOK", verify_token="env:A_TOKEN")) as made:

        def ask(**changed: str) -> tuple[int, bytes]:
            answer = made.ask(
                "GET", f"/v1/orders?{urlencode(asked | {k.replace('_', '.', 1): v for k, v in changed.items()})}"
            )
            return answer.status, answer.body

        assert ask() == (200, b"1158201444")
        assert ask(hub_verify_token="another")[0] == 403
        assert ask(hub_verify_token="")[0] == 403
        assert ask(hub_mode="denied")[0] == 400
        assert ask(hub_challenge="a\r\nb: c")[0] == 400
        assert made.ask("GET", "/v1/orders?hub.mode=subscribe&hub.challenge=1").status == 403
        assert made.ask("GET", "/v1/orders").status == 400
        assert made.ask("PUT", "/v1/orders").headers["allow"] == "POST, GET"
        body = b'{"object": "page"}'
        digest = hmac.new(b"a-secret", body, hashlib.sha256).hexdigest()
        assert made.post(body, JSON | {"X-Hub-Signature-256": f"sha256={digest}"}).status == 200
        assert made.bodies() == [body]


def test_nothing_is_asked_by_get_elsewhere(tmp_path: Path) -> None:
    with listening(tmp_path) as made:
        answer = made.ask("GET", "/v1/orders?hub.mode=subscribe&hub.challenge=1")
        assert (answer.status, answer.headers["allow"]) == (405, "POST")


def test_event_grids_question_is_answered_if_the_source_says_so(tmp_path: Path) -> None:
    asking = JSON | {"aeg-event-type": "SubscriptionValidation"}
    with listening(tmp_path, protocols="event_grid") as made:
        answer = made.post(_VALIDATION, asking)
        assert (answer.status, answer.json()) == (
            200,
            {"validationResponse": "512d38b6-c7b8-40c8-89fe-f46f9e9622b6"},
        )
        for bad in (b"[]", b"{}", b'[{"data": {}}]', b"[1]", _VALIDATION * 9):
            assert made.post(bad, asking).status == 400, bad[:20]
        assert made.post(b'[{"id": "1"}]', JSON | {"aeg-event-type": "Notification"}).json()["records"] == 1
        assert made.bodies() == [b'{"id": "1"}']


def test_a_host_must_know_the_protocols_that_go_with_a_sender() -> None:
    source = Http(listen="127.0.0.1:0", verify=Slack("env:A_HOOK"), protocols=["cloudevents"])
    assert source.plugins == {"forebay.http_protocols": ("cloudevents", "slack")}
    assert parse_source(source.model_dump(mode="json")) == source

"""Send requests that each sender's own library signed, and again: they are one record, and a changed one is refused."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

import pytest
from slack_sdk.signature import SignatureVerifier
from standardwebhooks.webhooks import Webhook
from stripe import WebhookSignature
from twilio.request_validator import RequestValidator

from forebay_contrib.web_hooks.declaration import Slack, StandardWebhooks, Stripe, Twilio
from tests.unit.receiver_runtime.receivers.http.http_client import JSON, listening

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from receiver_runtime.sources.fields.hmac_signature import Hmac

_BODY = json.dumps({"id": "evt_1", "event_id": "Ev1", "text": "tea für zwei"}, ensure_ascii=False)
_SECRET = "whsec_" + "c2VjcmV0" * 4  # what Standard Webhooks takes is a text for all others
_URL = "https://hooks.example/v1/orders"
_FORM = urlencode({"MessageSid": "SM1", "Body": "tea & milk", "From": "+1 555", "Empty": "", "A": "ü"})


def _standard(body: str) -> tuple[str, Mapping[str, str]]:
    now = datetime.now(tz=UTC).replace(microsecond=0)
    signature = Webhook(_SECRET).sign("msg_1", now, body)
    headers = {"webhook-id": "msg_1", "webhook-timestamp": f"{now.timestamp():.0f}", "webhook-signature": signature}
    return "", JSON | headers


def _stripe(body: str) -> tuple[str, Mapping[str, str]]:
    now = int(time.time())
    signature = WebhookSignature._compute_signature(f"{now}.{body}", _SECRET)
    header = f"t={now},v1={signature},v0=00"
    assert WebhookSignature.verify_header(body, header, _SECRET, 300)
    return "", JSON | {"Stripe-Signature": header}


def _slack(body: str) -> tuple[str, Mapping[str, str]]:
    now = str(int(time.time()))
    signature = SignatureVerifier(_SECRET).generate_signature(timestamp=now, body=body)
    return "", JSON | {"X-Slack-Signature": signature or "", "X-Slack-Request-Timestamp": now}


def _twilio_form(body: str) -> tuple[str, Mapping[str, str]]:
    signature = RequestValidator(_SECRET).compute_signature(_URL, dict(parse_qsl(body, keep_blank_values=True)))
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    return "", kind | {"X-Twilio-Signature": signature, "I-Twilio-Idempotency-Token": "a-token"}


def _twilio_json(body: str) -> tuple[str, Mapping[str, str]]:
    validator = RequestValidator(_SECRET)
    query = f"?bodySHA256={validator.compute_hash(body)}"
    signature = validator.compute_signature(_URL + query, {})
    return query, JSON | {"X-Twilio-Signature": signature, "I-Twilio-Idempotency-Token": "a-token"}


_TOKEN = "header:I-Twilio-Idempotency-Token"


@pytest.mark.parametrize(
    ("declared", "sign", "key_from", "body"),
    [
        (StandardWebhooks("env:A_HOOK"), _standard, "header:webhook-id", _BODY),
        (Stripe("env:A_HOOK"), _stripe, "body:/id", _BODY),
        (Slack("env:A_HOOK"), _slack, "body:/event_id", _BODY),
        (Twilio("env:A_HOOK", url=_URL), _twilio_form, _TOKEN, _FORM),
        (Twilio("env:A_HOOK", url=_URL), _twilio_json, _TOKEN, _BODY),
    ],
    ids=["standard_webhooks", "stripe", "slack", "twilio_form", "twilio_json"],
)
def test_what_its_library_signs_is_one_record(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    declared: Hmac,
    sign: Callable[[str], tuple[str, Mapping[str, str]]],
    key_from: str,
    body: str,
) -> None:
    monkeypatch.setenv("A_HOOK", _SECRET)
    with listening(tmp_path, verify=declared, key_from=key_from) as made:
        query, headers = sign(body)
        path = f"/v1/orders{query}"
        data = body.encode()
        assert made.post(data, headers, path=path).json() == {"records": 1, "duplicates": 0}
        assert made.post(data, headers, path=path).json() == {"records": 0, "duplicates": 1}
        changed = made.post(data.replace(b"tea", b"tee"), headers, path=path)
        assert changed.status == 401
        assert changed.headers["content-type"] == "application/problem+json"
        monkeypatch.setenv("A_HOOK", "another")
        assert made.post(data.replace(b"tea", b"tee"), sign(body.replace("tea", "te"))[1], path=path).status == 401
        assert made.bodies() == [data]
        [row] = made.rows()
        assert row["id"] in {"msg_1", "evt_1", "Ev1", "a-token"}

"""Fuzz the check of Amazon SNS's messages: what is taken is what was signed, and nothing else is fetched."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15

from forebay_contrib.web_hooks.sns import Sns
from forebay_contrib.web_hooks.sns_check import SnsCheck
from receiver_runtime.receivers.http.requests.pushed import PushRefusedError
from receiver_runtime.receivers.http.requests.refusals import RefusedError
from tests.fuzz.http_bodies import check_refusal
from tests.fuzz.target import fuzzed

_TOPIC = "arn:aws:sns:us-east-1:123456789012:MyTopic"
_HOST = "https://sns.us-east-1.amazonaws.com"
_NOW = datetime(2026, 5, 2, 12, tzinfo=UTC)
_KEY = rsa.generate_private_key(65537, 2048)
_NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sns.amazonaws.com")])
_DAY = timedelta(days=1)
_PEM = (
    x509.CertificateBuilder(_NAME, _NAME, _KEY.public_key(), 1, _NOW - _DAY, _NOW + _DAY)
    .sign(_KEY, hashes.SHA256())
    .public_bytes(serialization.Encoding.PEM)
)
_MEMBERS = ["Message", "MessageId", "Subject", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"]


def _signed(message: dict[str, str]) -> bytes:
    whole = {
        **message,
        "TopicArn": _TOPIC,
        "Timestamp": "2026-05-02T12:00:00.000Z",
        "SignatureVersion": "2",
        "SigningCertURL": f"{_HOST}/SimpleNotificationService-1.pem",
    }
    text = "".join(f"{name}\n{whole[name]}\n" for name in _MEMBERS if name in whole)
    signature = _KEY.sign(text.encode(), PKCS1v15(), hashes.SHA256())
    return json.dumps({**whole, "Signature": base64.b64encode(signature).decode()}).encode()


_GOOD = [
    _signed({"Type": "Notification", "MessageId": "1", "Message": "a\nMessageId\nb"}),
    _signed({"Type": "Notification", "MessageId": "2", "Subject": "s", "Message": "a"}),
    _signed(
        {
            "Type": "SubscriptionConfirmation",
            "MessageId": "3",
            "Message": "m",
            "Token": "t",
            "SubscribeURL": f"{_HOST}/?Action=ConfirmSubscription&Token=t",
        }
    ),
]
_TAKEN = [{name: json.loads(body).get(name) for name in _MEMBERS} for body in _GOOD]


@fuzzed(
    "sns_message",
    valid=_GOOD,
    words=[
        b'"Type"',
        b'"Message"',
        b"\\n",
        b"\\u004d",
        b"MessageId",
        b"null",
        b".amazonaws.com",
        b"Confirmation",
        b"\xff",
    ],
    attacks=[b'{"Type": ' + b"[" * 60_000, _GOOD[0][:-1] + b', "a": 1' * 9000 + b"}"],
)
def test_what_is_taken_was_signed(body: bytes) -> None:
    asked = []

    def fetch(url: str) -> bytes:
        asked.append(url)
        return _PEM

    try:
        request = SnsCheck(Sns(topics=_TOPIC), clock=_NOW.timestamp, fetch=fetch).begin(
            [(b"x-amz-sns-message-type", b"Notification")], b""
        )
        if (work := request.work_before(body)) is not None:
            work()
        request.check(body)
    except (PushRefusedError, RefusedError) as error:
        assert body not in _GOOD
        check_refusal(error, frozenset({401}))
        taken = None
    else:
        whole = json.loads(body)
        taken = {name: whole.get(name) for name in _MEMBERS}
        # A member that this type does not sign may differ.
        signed = [{**one, **{name: taken[name] for name in one if one[name] is None}} for one in _TAKEN]
        assert taken in signed
    # It is asked for certificates, and to confirm what was signed.
    assert len(asked) <= 2
    for url in asked:
        is_confirmation = url == _TAKEN[2]["SubscribeURL"] and taken is not None and taken["Type"] == _TAKEN[2]["Type"]
        assert is_confirmation or (url.startswith(f"{_HOST}/SimpleNotificationService-") and url.endswith(".pem"))

"""Measure what the check of a web hook's signature costs beside its arithmetic, which no check can do without.

Run as ``python -m benchmarks.web_hooks [--json]``; a few seconds. It measures the CPU of one thread, each figure by
turns with the others, and takes the least of many rounds: other programs on the machine make each a little larger.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import hmac
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15

from benchmarks.report import Figure, Report, machine
from forebay_contrib.web_hooks.declaration import GitHub, Twilio
from forebay_contrib.web_hooks.sns import Sns
from forebay_contrib.web_hooks.sns_check import SnsCheck
from receiver_runtime.receivers.http.requests.signatures import SignatureCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from receiver_runtime.receivers.http.requests.protocol import RequestCheck
    from receiver_runtime.receivers.http.requests.pushed import Headers
    from receiver_runtime.sources.fields.hmac_signature import Hmac

_ROUNDS = 60
_REQUESTS = 300  # of each figure in a round
_AIM_MICROSECONDS = 10.0
_VARIABLE, _SECRET = "FOREBAY_BENCHMARK_HOOK", "a-secret-of-32-characters-or-so"
_URL = "https://hooks.example.com/v1/messages"
# A message as Twilio sends it, with as many fields.
_FORM = {
    "ToCountry": "US",
    "ToState": "CA",
    "SmsMessageSid": "SM" + "1a" * 16,
    "NumMedia": "0",
    "ToCity": "SAN FRANCISCO",
    "FromZip": "94107",
    "SmsSid": "SM" + "1a" * 16,
    "FromState": "CA",
    "SmsStatus": "received",
    "FromCity": "OAKLAND",
    "Body": "Two teas & a cake, please",
    "FromCountry": "US",
    "To": "+14155550100",
    "MessagingServiceSid": "MG" + "2b" * 16,
    "ToZip": "94105",
    "NumSegments": "1",
    "MessageSid": "SM" + "1a" * 16,
    "AccountSid": "AC" + "3c" * 16,
    "From": "+15105550101",
    "ApiVersion": "2010-04-01",
}
_TOPIC = "arn:aws:sns:us-east-1:123456789012:orders"
_CERTIFICATE_URL = "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0123456789abcdef.pem"


def _checked(check: RequestCheck, headers: Headers, body: bytes) -> Callable[[], object]:
    """Return what checks a request as a server does. It is checked once at once, and must be good."""

    def run() -> None:
        request = check.begin(headers, b"")
        if (work := request.work_before(body)) is not None:
            work()
        request.check(body)

    run()
    return run


def _signed(declared: Hmac, header: bytes, body: bytes, *, signature: bytes, kind: bytes) -> Callable[[], object]:
    headers = [
        (b"host", b"hooks.example.com"),
        (b"user-agent", b"a sender"),
        (b"content-type", kind),
        (b"content-length", b"%d" % len(body)),
        (header, signature),
    ]
    return _checked(SignatureCheck(declared), headers, body)


def _github(body: bytes) -> tuple[Callable[[], object], Callable[[], object]]:
    key = _SECRET.encode()
    signature = b"sha256=" + hmac.digest(key, body, "sha256").hex().encode()
    ours = _signed(
        GitHub(f"env:{_VARIABLE}"), b"x-hub-signature-256", body, signature=signature, kind=b"application/json"
    )
    return ours, lambda: hmac.digest(key, body, "sha256")


def _twilio() -> tuple[Callable[[], object], Callable[[], object]]:
    key = _SECRET.encode()
    text = _URL.encode() + "".join(name + _FORM[name] for name in sorted(_FORM)).encode()
    signature = base64.b64encode(hmac.digest(key, text, "sha1"))
    ours = _signed(
        Twilio(f"env:{_VARIABLE}", url=_URL),
        b"x-twilio-signature",
        urlencode(_FORM).encode(),
        signature=signature,
        kind=b"application/x-www-form-urlencoded",
    )
    return ours, lambda: hmac.digest(key, text, "sha1")


def _sns() -> tuple[Callable[[], object], Callable[[], object]]:
    key = rsa.generate_private_key(65537, 2048)
    now = datetime.now(tz=UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "sns.amazonaws.com")])
    made = x509.CertificateBuilder(
        name, name, key.public_key(), x509.random_serial_number(), now - timedelta(1), now + timedelta(1)
    ).sign(key, hashes.SHA256())
    message = {
        "Type": "Notification",
        "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
        "TopicArn": _TOPIC,
        "Message": msgspec.json.encode({"order": 17, "items": ["tea", "cake"]}).decode(),
        "Timestamp": now.isoformat(),
    }
    names = ("Message", "MessageId", "Timestamp", "TopicArn", "Type")
    text = "".join(f"{name}\n{message[name]}\n" for name in names).encode()
    signature = key.sign(text, PKCS1v15(), hashes.SHA256())
    body = msgspec.json.encode(
        message
        | {
            "SignatureVersion": "2",
            "Signature": base64.b64encode(signature).decode(),
            "SigningCertURL": _CERTIFICATE_URL,
            "UnsubscribeURL": "https://sns.us-east-1.amazonaws.com/?Action=Unsubscribe",
        }
    )
    check = SnsCheck(Sns(topics=_TOPIC), fetch=lambda _: made.public_bytes(serialization.Encoding.PEM), clock=time.time)
    public, padding, algorithm = key.public_key(), PKCS1v15(), hashes.SHA256()
    headers = [(b"content-type", b"text/plain; charset=UTF-8"), (b"x-amz-sns-message-type", b"Notification")]
    return _checked(check, headers, body), lambda: public.verify(signature, text, padding, algorithm)


def _least(runs: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the CPU of each call in microseconds."""
    found = dict.fromkeys(runs, float("inf"))
    for _ in range(_ROUNDS):
        for name, run in runs.items():
            began = time.process_time_ns()
            for _ in range(_REQUESTS):
                run()
            found[name] = min(found[name], (time.process_time_ns() - began) / _REQUESTS / 1000)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, return 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.web_hooks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as one object on the last line")
    options = parser.parse_args(arguments)
    os.environ[_VARIABLE] = _SECRET
    body = hashlib.sha256(b"").hexdigest().encode() * 32
    pairs = {
        "GitHub, 2 KiB": (*_github(body), "its HMAC-SHA256"),
        f"Twilio, a form of {len(_FORM)} fields": (*_twilio(), "its HMAC-SHA1"),
        "Amazon SNS, a notification": (*_sns(), "its RSA-2048 check"),
    }
    runs = {name: ours for name, (ours, _, _) in pairs.items()}
    runs |= {f"{name}: alone": peer for name, (_, peer, _) in pairs.items()}
    found = _least(runs)
    report = Report("web_hooks", machine())
    report.section("the check of one request, CPU of one thread")
    for name, (_, _, peer_name) in pairs.items():
        ours, peer = found[name], found[f"{name}: alone"]
        aim = peer / max(_AIM_MICROSECONDS, peer)
        report.add(Figure(name, ours, peer, peer_name, peer / ours, aim, "µs a request"))
    report.note(f"The aim is {_AIM_MICROSECONDS:g} µs, or the arithmetic alone where that takes longer.")
    report.print(as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

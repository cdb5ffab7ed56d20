"""Check messages of Amazon SNS: a recorded one, and others signed by a certificate made here. Nothing is fetched."""

from __future__ import annotations

import base64
import codecs
import contextlib
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from hypothesis import given
from hypothesis import strategies as st

from forebay_contrib.web_hooks.sns import Sns
from forebay_contrib.web_hooks.sns_check import SnsCheck, _has_each_name_once, fetch
from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.receivers.http.requests.refusals import RefusedError
from receiver_runtime.sources.source_registry import parse_source
from tests.support.polling import joined
from tests.unit.receiver_runtime.receivers.http.http_client import listening
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_TOPIC = "arn:aws:sns:us-east-1:123456789012:MyTopic"
_CERTIFICATE = "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-010a507c1833636cd94bdb98bd93083a.pem"
_NOW = datetime(2026, 5, 2, 12, tzinfo=UTC)
_HEADERS = ((b"x-amz-sns-message-type", b"Notification"),)
# Members and their form: docs.aws.amazon.com/sns/latest/dg/http-notification-json.html and the pages beside it.
_NOTIFICATION = {
    "Type": "Notification",
    "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
    "TopicArn": _TOPIC,
    "Subject": "My First Message",
    "Message": "Hello\nworld! ü",
    "Timestamp": "2026-05-02T12:00:00.000Z",
    "UnsubscribeURL": "https://sns.us-east-1.amazonaws.com/?Action=Unsubscribe",
}
_ADDRESS = f"https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn={_TOPIC}&Token=2336412f37"
_SUBSCRIPTION = {
    "Type": "SubscriptionConfirmation",
    "MessageId": "165545c9-2a5c-472c-8df2-7ff2be2b3b1b",
    "Token": "2336412f37",
    "TopicArn": _TOPIC,
    "Message": "You have chosen to subscribe to the topic.",
    "SubscribeURL": _ADDRESS,
    "Timestamp": "2026-05-02T12:00:00.000Z",
}
_KEY = rsa.generate_private_key(65537, 2048)

_RECORDED = (
    r"{"
    r'"Type" : "Notification",'
    r'"MessageId" : "95841c0a-329b-5910-bcc0-4a45a34aa6c7",'
    r'"TopicArn" : "arn:aws:sns:us-east-1:041977924901:test",'
    r'"Message" : "A Test Banana:\uD83C\uDF4C",'
    r'"Timestamp" : "2019-11-20T19:10:09.894Z",'
    r'"SignatureVersion" : "1",'
    r'"Signature" : "DRcI8zgRFKXD/N679D3v9q8uYEt0HYJYUNQoGsNZ3JF6x5mmoEG2e9u+5MwwS2tkOsvwQQZg3vfM8bpiNMcvz'
    r"qIruZPA4b+MRjyHOPqHEPMmIeM8VsZaqJJVSXErQp/q9xJka6JNOzIKA34TjR5WaDJjuHBgNVaftimlPvpeqKTWSQ9UPdw0wh9Fj"
    r"1fDlGqr8eVs9LhhAx7EKSNgG1lNuJykf5x4fMq/3SQv30wmtQZkVVYBIUMZ1lqjgWK6mH/GatdqFSQHs0LN1yl2SYqPYr0NeykXl"
    r'NyLtwmobg4dwmcNIhlmghJo8/6krC8HBFovKaqgpsa95D1tpbQ9dW38Dg==",'
    r'"SigningCertURL" : "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-6aad65c2f9911b05cd'
    r'53efda11f913f9.pem",'
    r'"UnsubscribeURL" : "https://sns.us-east-1.amazonaws.com/?Action=Unsubscribe&SubscriptionArn=arn:aws:'
    r'sns:us-east-1:041977924901:test:5b4ab24c-a248-4b55-84ef-7143a86f483f"'
    r"}"
)
_RECORDED_CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIFazCCBFOgAwIBAgIQDnuRfDcLJCFd0+nXpG2L3DANBgkqhkiG9w0BAQsFADBG
MQswCQYDVQQGEwJVUzEPMA0GA1UEChMGQW1hem9uMRUwEwYDVQQLEwxTZXJ2ZXIg
Q0EgMUIxDzANBgNVBAMTBkFtYXpvbjAeFw0xOTAyMDUwMDAwMDBaFw0yMDAxMjMx
MjAwMDBaMBwxGjAYBgNVBAMTEXNucy5hbWF6b25hd3MuY29tMIIBIjANBgkqhkiG
9w0BAQEFAAOCAQ8AMIIBCgKCAQEArvAsTqmW94EiC9gelZrEdR3Y2jJJwLOaRnxK
oY/J/CBUEGGzfqaUBXwWnjVOImzirE57j/5ItnpW9k5kByIs7aPDuiaqaCn6Oous
FqQXyem8DJp5WoFZSPhKDtLVRaOzlbMgsDIYVpcqOWfubpj7oD7/nWwICtPX7eVa
jUkbaCcQExS1GY83qoL4GUpeUPN+PQ9ExNupjvi/p6lLBx2vPpcYDs2QFkT12ol6
hxUCI9LRbNM/InWVP7qr9iBS3eMIP9jpr4oV7D2keztIaonLVe93psXzSh3YJm/d
lnbFlIxseBrAMrUgrJE0MXcpgiCv8HrdAYfIB6XBaGA5TdXIcwIDAQABo4ICfTCC
AnkwHwYDVR0jBBgwFoAUWaRmBlKge5WSPKOUByeWdFv5PdAwHQYDVR0OBBYEFH+5
YRwjoZnCPO5z41lYfsedlqomMBwGA1UdEQQVMBOCEXNucy5hbWF6b25hd3MuY29t
MA4GA1UdDwEB/wQEAwIFoDAdBgNVHSUEFjAUBggrBgEFBQcDAQYIKwYBBQUHAwIw
OwYDVR0fBDQwMjAwoC6gLIYqaHR0cDovL2NybC5zY2ExYi5hbWF6b250cnVzdC5j
b20vc2NhMWIuY3JsMCAGA1UdIAQZMBcwCwYJYIZIAYb9bAECMAgGBmeBDAECATB1
BggrBgEFBQcBAQRpMGcwLQYIKwYBBQUHMAGGIWh0dHA6Ly9vY3NwLnNjYTFiLmFt
YXpvbnRydXN0LmNvbTA2BggrBgEFBQcwAoYqaHR0cDovL2NydC5zY2ExYi5hbWF6
b250cnVzdC5jb20vc2NhMWIuY3J0MAwGA1UdEwEB/wQCMAAwggEEBgorBgEEAdZ5
AgQCBIH1BIHyAPAAdgDuS723dc5guuFCaR+r4Z5mow9+X7By2IMAxHuJeqj9ywAA
AWi7Mu+5AAAEAwBHMEUCICjzfKhUDa04qWsE9ylpT3uVQR1lkQoOK3BL/jmBqm68
AiEA2x/7MUblEQNBKWtWhLmFtRv2a2KPBpUvN1JCFvlx5FIAdgCHdb/nWXz4jEOZ
X73zbv9WjUdWNv9KtWDBtOr/XqCDDwAAAWi7MvCPAAAEAwBHMEUCIDc9rV+Lz9Mx
8rpwT38zwxyxlU81FFe6/S23FDx/UqedAiEApAItYGLRBnC0YlXe5OCF5fsL9HWy
gV0fhTs6r3K09twwDQYJKoZIhvcNAQELBQADggEBAAz9vw2lMiEDgxN/jCju2gH+
mkDSPyvKMBc9vPnLySBqpiu73cnvDlXWe1OXnyHXjAXWlrHlHQs5sIX6cfipUDbC
siY7b2mt/uqASWMa1Qm6ROzd9J4peXYQGJEOaOBuIbDyzphlGCJc/fMwdVjU6FfH
A2NL3DZnNw5r26FydzfN0HWu9B9UuvNrQ7v9XqvoBOA1QkWZpB3Hcnmu2KGNFugL
5MFqgeb5yYxXORIDFATQVJRvxf43L/StvA8D3OjNiCqw057tuviFwo0WABYv1K2e
9fuuyR7idsWT2+veCDK6gLdWN5hEalYIYPbgeWuhAh6CZqfPdURGbDhf2ygruhE=
-----END CERTIFICATE-----
"""


def certificate(
    key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey = _KEY,
    *,
    name: str = "sns.amazonaws.com",
    begins: datetime = _NOW - timedelta(days=1),
    ends: datetime = _NOW + timedelta(days=1),
) -> bytes:
    authority = rsa.generate_private_key(65537, 2048)
    names = [x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, one)]) for one in (name, "Amazon RSA 2048 M01")]
    made = x509.CertificateBuilder(names[1], names[0], key.public_key(), x509.random_serial_number(), begins, ends)
    return made.sign(authority, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


_PEM = certificate()


def signed(
    message: Mapping[str, Any], *, version: str = "2", key: rsa.RSAPrivateKey = _KEY, **changed: object
) -> dict[str, Any]:
    """Sign as the guide says: names and values of these members, a line each, in the order of their names."""
    whole = {**message, "SignatureVersion": version, "SigningCertURL": _CERTIFICATE, **changed}
    names = ["Message", "MessageId", "Subject", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"]
    text = "".join(f"{name}\n{whole[name]}\n" for name in names if whole.get(name) is not None)
    algorithm = hashes.SHA256() if version == "2" else hashes.SHA1()
    return {**whole, "Signature": base64.b64encode(key.sign(text.encode(), PKCS1v15(), algorithm)).decode()}


@dataclass
class Amazon:
    """Answers what the check asks for, and remembers it."""

    answers: dict[str, bytes | OSError] = field(default_factory=lambda: {_CERTIFICATE: _PEM, _ADDRESS: b"<ok/>"})
    asked: list[str] = field(default_factory=list)

    def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        answer = self.answers[url]
        if isinstance(answer, OSError):
            raise answer
        return answer


def checked(check: SnsCheck, message: Mapping[str, Any] | bytes) -> None:
    body = message if isinstance(message, bytes) else json.dumps(message, ensure_ascii=False).encode()
    request = check.begin(_HEADERS, b"")
    if (work := request.work_before(body)) is not None:
        work()
    request.check(body)


def made(amazon: Amazon, now: datetime = _NOW) -> SnsCheck:
    return SnsCheck(Sns(topics=_TOPIC), clock=now.timestamp, fetch=amazon.fetch)


def refused(amazon: Amazon, message: Mapping[str, Any] | bytes, now: datetime = _NOW, *, status: int = 401) -> str:
    with pytest.raises(RefusedError) as caught:
        checked(made(amazon, now), message)
    assert caught.value.refused.status == status
    return caught.value.refused.detail


def test_a_message_that_sns_signed_is_good() -> None:
    # Recorded in 2019, with its certificate, by CPAN's AWS::SNS::Verify, whose tests have both.
    body = _RECORDED.encode()
    amazon = Amazon({json.loads(body)["SigningCertURL"]: _RECORDED_CERTIFICATE.encode()})
    sent = datetime(2019, 11, 20, 19, 10, 9, tzinfo=UTC)
    check = SnsCheck(Sns(topics="arn:aws:sns:us-east-1:041977924901:test"), clock=sent.timestamp, fetch=amazon.fetch)
    checked(check, body)
    with pytest.raises(RefusedError, match="Signature: it is not good"):
        checked(check, body.replace(b"Banana", b"banana"))
    assert len(amazon.asked) == 1
    late = SnsCheck(
        Sns(topics="arn:aws:sns:us-east-1:041977924901:test", tolerance="1000d"),
        clock=(sent + timedelta(days=70)).timestamp,
        fetch=amazon.fetch,
    )
    with pytest.raises(RefusedError, match="SigningCertURL: the certificate counts from 2019-02-05"):
        checked(late, body)


@pytest.mark.parametrize("version", ["1", "2"])
@pytest.mark.parametrize("message", [_NOTIFICATION, {**_NOTIFICATION, "Subject": None}, _SUBSCRIPTION])
def test_each_signed_member_counts(message: Mapping[str, Any], version: str) -> None:
    good = signed(message, version=version)
    check = made(Amazon())
    checked(check, good)
    for name in ("Message", "MessageId", "Subject", "Token", "SubscribeURL", "Timestamp"):
        changed = "2026-05-02T12:00:01.000Z" if name == "Timestamp" else f"{good.get(name)}x"
        if name in good:
            with pytest.raises(RefusedError, match="Signature: it is not good"):
                checked(check, {**good, name: changed})
    with pytest.raises(RefusedError, match="Signature: it is not good"):
        checked(check, {**good, "SignatureVersion": "1" if version == "2" else "2"})


def test_a_byte_order_mark_is_no_part_of_a_message() -> None:
    checked(made(Amazon()), codecs.BOM_UTF8 + json.dumps(signed(_NOTIFICATION)).encode())


def test_a_certificate_is_fetched_once_and_only_eight_are_kept() -> None:
    amazon = Amazon()
    check = made(amazon)
    for number in range(9):
        url = _CERTIFICATE.replace("-010", f"-{number}")
        amazon.answers[url] = _PEM
        for _ in range(2):
            checked(check, signed(_NOTIFICATION, SigningCertURL=url))
    assert len(amazon.asked) == 9
    checked(check, signed(_NOTIFICATION, SigningCertURL=_CERTIFICATE.replace("-010", "-8")))
    assert len(amazon.asked) == 9
    checked(check, signed(_NOTIFICATION, SigningCertURL=_CERTIFICATE.replace("-010", "-0")))
    assert len(amazon.asked) == 10


@pytest.mark.parametrize(
    "url",
    [
        _CERTIFICATE.replace("https", "http"),
        _CERTIFICATE.replace("us-east-1", "eu-west-1"),
        _CERTIFICATE.replace(".com/", ".com.cn/"),
        _CERTIFICATE.replace(".com/", ".com:8443/"),
        _CERTIFICATE.replace("https://", "https://a@"),
        _CERTIFICATE.replace("sns.us-east-1.amazonaws.com", "sns.us-east-1.amazonaws.com.evil.example"),
        _CERTIFICATE.replace("sns.us-east-1.amazonaws.com", "sns.us-east-1.amazonaws.com@evil.example"),
        _CERTIFICATE.replace("sns.", "SNS."),
        _CERTIFICATE.replace("/Simple", "/bucket/Simple"),
        _CERTIFICATE.replace("/Simple", "/../Simple"),
        f"{_CERTIFICATE}?a=1",
        f"{_CERTIFICATE}\n",
        "https://sns.us-east-1.amazonaws.com/",
        "file:///etc/passwd",
        "",
    ],
)
def test_a_certificate_of_another_address_is_not_fetched(url: str) -> None:
    amazon = Amazon()
    assert refused(amazon, signed(_NOTIFICATION, SigningCertURL=url)).startswith("SigningCertURL: ")
    assert not amazon.asked


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (certificate(name="evil.example"), "is no name of SNS"),
        (certificate(name="sns.amazonaws.com.evil.example"), "is no name of SNS"),
        (certificate(ec.generate_private_key(ec.SECP256R1())), "its key is no RSA key of 2048 bits"),
        (certificate(rsa.generate_private_key(65537, 1024)), "its key is no RSA key of 2048 bits"),
        (certificate(ends=_NOW - timedelta(hours=1)), "the certificate counts from"),
        (certificate(begins=_NOW + timedelta(hours=1)), "the certificate counts from"),
        (certificate(rsa.generate_private_key(65537, 2048)), "it is not good for this message"),
        (b"<html>", "SigningCertURL: "),
        (b"", "SigningCertURL: "),
    ],
)
def test_a_certificate_that_is_not_snss_is_not_taken(answer: bytes, said: str) -> None:
    assert said in refused(Amazon({_CERTIFICATE: answer}), signed(_NOTIFICATION))


def test_what_is_not_expected_is_refused_before_anything_is_fetched() -> None:
    amazon = Amazon()
    good = signed(_NOTIFICATION)
    assert "is no topic of this stream" in refused(amazon, signed({**_NOTIFICATION, "TopicArn": f"{_TOPIC}2"}))
    assert "3901 s ago, tolerance is 3900 s" in refused(amazon, good, _NOW + timedelta(seconds=3901))
    assert "3901 s ahead" in refused(amazon, good, _NOW - timedelta(seconds=3901))
    assert "is no time" in refused(amazon, {**good, "Timestamp": "now"})
    for bad in (b"", b"{}", b"[]", b"null", b"\xff", b"[" * 5000, json.dumps({**good, "Message": 1}).encode()):
        assert refused(amazon, bad).startswith("body: it is no message of SNS")
    assert refused(amazon, {**good, "Message": "x" * (2 * 2**20)}).startswith("body: ")
    assert not amazon.asked


def test_text_that_could_be_cut_otherwise_is_refused() -> None:
    # Its signature is good for this text too, except for a message that ends elsewhere.
    message = {**_NOTIFICATION, "Subject": None, "Message": "a\nMessageId\nb"}
    good = signed(message)
    checked(made(Amazon()), good)
    other = {**good, "Message": "a", "MessageId": f"b\nMessageId\n{message['MessageId']}"}
    assert refused(Amazon(), other).startswith("Signature: ")


def test_a_member_that_comes_twice_is_refused() -> None:
    good = json.dumps(signed(_NOTIFICATION))
    for name in ("Message", "\\u004dessage", "UnsubscribeURL"):
        body = good.replace("{", f'{{"{name}": "another", ', 1).encode()
        assert "a member comes twice" in refused(Amazon(), body)


@given(st.dictionaries(st.text(), st.text(), min_size=1), st.booleans())
def test_names_that_differ_are_told_by_their_quotes(members: dict[str, str], is_ascii: bool) -> None:
    text = json.dumps(members, ensure_ascii=is_ascii)
    assert _has_each_name_once(text.encode())
    again = json.dumps({min(members): '"'}, ensure_ascii=not is_ascii)
    assert not _has_each_name_once(f"{text[:-1]},{again[1:]}".encode())
    assert not _has_each_name_once(f"{again[:-1]},{text[1:]}".encode())


def test_a_subscription_is_confirmed_once() -> None:
    amazon = Amazon()
    check = made(amazon)
    for _ in range(3):
        checked(check, signed(_SUBSCRIPTION))
    assert amazon.asked == [_CERTIFICATE, _ADDRESS]
    checked(check, signed({**_SUBSCRIPTION, "Type": "UnsubscribeConfirmation", "MessageId": "2"}))
    assert amazon.asked == [_CERTIFICATE, _ADDRESS]
    # Two that came before the first one was confirmed.
    body = json.dumps(signed({**_SUBSCRIPTION, "MessageId": "3"})).encode()
    works = [check.begin(_HEADERS, b"").work_before(body) for _ in range(2)]
    for work in works:
        assert work is not None
        work()
    assert amazon.asked == [_CERTIFICATE, _ADDRESS, _ADDRESS]


def test_a_subscription_that_is_not_signed_is_not_confirmed() -> None:
    amazon = Amazon()
    good = signed(_SUBSCRIPTION)
    refused(amazon, {**good, "SubscribeURL": good["SubscribeURL"] + "&a"})
    refused(amazon, signed(_SUBSCRIPTION, key=rsa.generate_private_key(65537, 2048)))
    for url in (
        _ADDRESS.replace("ConfirmSubscription", "Unsubscribe"),
        _ADDRESS.replace("sns.us-east-1", "sqs.us-east-1"),
        _ADDRESS.replace("https", "http"),
        f"{_ADDRESS}&Action=Unsubscribe",
    ):
        assert refused(amazon, signed({**_SUBSCRIPTION, "SubscribeURL": url})).startswith("SubscribeURL: ")
    assert set(amazon.asked) == {_CERTIFICATE}


def test_amazon_out_of_reach_is_503_and_not_asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    amazon = Amazon({_CERTIFICATE: ConnectionError("no way")})
    check = made(amazon)
    now = [100.0]
    monkeypatch.setattr("forebay_contrib.web_hooks.sns_check.time.monotonic", lambda: now[0])
    for said in ("no way", "a moment ago", "a moment ago"):
        with pytest.raises(RefusedError, match=said) as caught:
            checked(check, signed(_NOTIFICATION))
        assert (caught.value.refused.status, caught.value.refused.retry_after) == (503, 5)
    assert len(amazon.asked) == 1
    now[0] += 11
    amazon.answers[_CERTIFICATE] = _PEM
    checked(check, signed(_NOTIFICATION))


def test_raw_and_foreign_requests_are_refused_by_their_heads() -> None:
    check = made(Amazon())
    with pytest.raises(RefusedError, match="turn raw message delivery off"):
        check.begin([(b"x-amz-sns-rawdelivery", b"true")], b"")
    with pytest.raises(RefusedError, match="only Amazon SNS sends"):
        check.begin([], b"")


def test_a_server_takes_sns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    amazon = Amazon()
    threads = []

    def asked(url: str) -> bytes:
        threads.append(threading.current_thread().name)
        return amazon.fetch(url)

    monkeypatch.setattr(SnsCheck.__init__, "__kwdefaults__", {"clock": _NOW.timestamp, "fetch": asked})
    sent = {"Content-Type": "text/plain; charset=UTF-8", "x-amz-sns-message-type": "Notification"}
    with listening(tmp_path, verify=Sns(topics=_TOPIC), key_from="body:/MessageId") as one:
        for _ in range(2):
            answer = one.post(json.dumps(signed(_SUBSCRIPTION)).encode(), sent)
            assert (answer.status, answer.json()) == (200, {})
        body = json.dumps(signed(_NOTIFICATION)).encode()
        assert one.post(body, sent).json() == {"records": 1, "duplicates": 0}
        assert one.post(body, sent).json() == {"records": 0, "duplicates": 1}
        assert one.post(body.replace(b"world", b"World"), sent).status == 401
        large = json.dumps(signed({**_NOTIFICATION, "MessageId": "2", "Message": "x" * 200_000})).encode()
        assert one.post(large, sent).json() == {"records": 1, "duplicates": 0}
        amazon.answers[_CERTIFICATE.replace("-010", "-9")] = OSError("no way")
        answer = one.post(
            json.dumps(signed(_NOTIFICATION, SigningCertURL=_CERTIFICATE.replace("-010", "-9"))).encode(), sent
        )
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert one.bodies() == [body, large]
    assert {name.rpartition("_")[0] for name in threads} == {"http check"}


def test_few_requests_wait_for_amazon_and_a_refused_one_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    amazon = Amazon()
    may_answer = threading.Event()

    def asked(url: str) -> bytes:
        found = amazon.fetch(url)
        assert may_answer.wait(30)
        return found

    monkeypatch.setattr(SnsCheck.__init__, "__kwdefaults__", {"clock": _NOW.timestamp, "fetch": asked})
    monkeypatch.setattr("receiver_runtime.receivers.http.body_reader._MOST_TO_CHECK", 1)
    sent = {"Content-Type": "text/plain", "x-amz-sns-message-type": "Notification"}
    room: dict[str, Any] = {"max_body_bytes": "8KiB", "max_record_bytes": "8KiB", "max_waiting_bytes": "8KiB"}
    body = json.dumps(signed(_NOTIFICATION)).encode()
    with listening(tmp_path, verify=Sns(topics=_TOPIC), **room) as one, ThreadPoolExecutor(1) as pool:
        first = pool.submit(one.post, body, sent)
        eventually(lambda: bool(amazon.asked), "the first one is being checked")
        answer = one.post(body, sent)
        assert (answer.status, "1 others wait to be checked" in answer.json()["detail"]) == (503, True)
        may_answer.set()
        assert first.result(30).status == 200
        large = json.dumps(signed({**_NOTIFICATION, "TopicArn": f"{_TOPIC}2", "Message": "x" * 3000})).encode()
        assert [one.post(large, sent).status for _ in range(5)] == [401] * 5
        assert one.post(body, sent).status == 200
        assert one.bodies() == [body] * 2


class _Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/good")
            self.end_headers()
            return
        self.send_response(404 if self.path == "/none" else 200)
        self.end_headers()
        size = {"/good": 10, "/most": 2**16, "/large": 2**16 + 1}.get(self.path, 0)
        with contextlib.suppress(ConnectionError):
            self.wfile.write(b"x" * size)

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def test_what_is_fetched_is_small_and_comes_from_the_address_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}"
            assert [len(fetch(f"{address}{path}")) for path in ("/good", "/most")] == [10, 2**16]
            for path in ("/large", "/moved", "/none"):
                with pytest.raises(OSError, match=r"more than 65536 bytes|HTTP Error (302|404)"):
                    fetch(f"{address}{path}")
        finally:
            server.shutdown()
            joined(serving)
    with pytest.raises(OSError, match="refused"):
        fetch(f"{address}/good")


def test_it_is_stored_as_itself_and_names_what_a_host_must_have() -> None:
    source = Http(listen="127.0.0.1:0", verify=Sns(topics=[_TOPIC]))
    stored = source.model_dump(mode="json")
    assert stored["verify"]["kind"] == "sns"
    assert parse_source(stored) == source
    assert source.plugins == {"forebay.http_protocols": ("sns",), "forebay.web_hooks": ("sns",)}
    with pytest.raises(ValueError, match="registers 'telegram'"):
        parse_source({**stored, "verify": {"kind": "telegram"}})
    with pytest.raises(ValueError, match="is no topic: give its ARN"):
        Sns(topics="MyTopic")

"""Check the messages of Amazon SNS, and confirm its subscriptions.

A message names the certificate that signed it. The certificate is fetched once, from SNS's own address in the topic's
region, by HTTPS; that address is what makes it trustworthy. A subscription is confirmed only after its message was
checked. Nothing here stores a record.
"""

from __future__ import annotations

import binascii
import json
import re
import threading
import time
import urllib.request
from base64 import b64decode
from datetime import UTC, datetime
from http import HTTPStatus
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec
import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from forebay_contrib.web_hooks.sns import TOPIC, Sns
from receiver_runtime.receivers.http.requests.protocol import CheckedRequest, RequestCheck
from receiver_runtime.receivers.http.requests.pushed import header
from receiver_runtime.receivers.http.requests.refusals import AWAY_RETRY_SECONDS, RefusedError, refusal
from receiver_runtime.sources.fields.text_encoding import UTF8_MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from receiver_runtime.receivers.http.requests.pushed import Headers

_log = structlog.get_logger(__name__)

_LONGEST_MESSAGE = 2 * 2**20  # bytes: SNS sends at most 256 KiB, of which JSON makes up to six times as much
_LONGEST_ANSWER = 64 * 2**10  # bytes of a certificate, or of the answer to a confirmation
_FETCH_SECONDS = 4.0  # how long one fetch may take: two are made for one request
_MOST_CERTIFICATES = 8
_MOST_KNOWN = 64  # failed addresses and confirmed messages that are remembered
_FAILED_SECONDS = 10.0  # how long an address that failed is not tried again
_LOG_SECONDS = 60.0  # how often a failure is logged, at most
_LEAST_BITS = 2048  # of a key
_CERTIFICATE_PATH = re.compile(r"/SimpleNotificationService-[A-Za-z0-9]{1,64}\.pem")
_CERTIFICATE_NAME = re.compile(r"sns[a-z0-9.-]*\.amazonaws\.com(\.cn)?")
_HASHES: Mapping[str, hashes.HashAlgorithm] = {"1": hashes.SHA1(), "2": hashes.SHA256()}  # noqa: S303  version 1 of SNS
_NOTIFICATION = ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type")
_CONFIRMATION = ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type")
_SIGNED = {
    "Notification": _NOTIFICATION,
    "SubscriptionConfirmation": _CONFIRMATION,
    "UnsubscribeConfirmation": _CONFIRMATION,
}


class _Message(msgspec.Struct, rename="pascal", frozen=True):
    """Hold what SNS sends, as far as it is checked."""

    type: str
    message_id: str
    topic_arn: str
    message: str
    timestamp: str
    signature_version: str
    signature: str
    signing_cert_url: str = msgspec.field(name="SigningCertURL")
    subject: str | None = None
    token: str | None = None
    subscribe_url: str | None = msgspec.field(name="SubscribeURL", default=None)


_MESSAGE = msgspec.json.Decoder(_Message)
_TEXTS = msgspec.json.Decoder(dict[str, str])
_QUOTES_OF_MEMBER = 4
_PADDING = PKCS1v15()


class _Certificate(NamedTuple):
    key: RSAPublicKey
    begins: datetime
    ends: datetime


def fetch(url: str) -> bytes:
    """Return what is at an address; follow no redirect, and take at most 64 KiB and a few seconds. Raises OSError."""
    until = time.monotonic() + _FETCH_SECONDS
    opener = urllib.request.build_opener(_NoRedirect)
    found = b""
    with opener.open(url, timeout=_FETCH_SECONDS) as answer:
        while piece := answer.read1(_LONGEST_ANSWER):
            found += piece
            if len(found) > _LONGEST_ANSWER or time.monotonic() > until:
                raise OSError(f"more than {_LONGEST_ANSWER} bytes, or {_FETCH_SECONDS:g} s")
    return found


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object, **__: object) -> None:
        """Return no request: the redirect is then an error."""


class SnsCheck(RequestCheck):
    """Check requests; see the module. Safe from any thread."""

    def __init__(
        self, declared: Sns, *, clock: Callable[[], float] = time.time, fetch: Callable[[str], bytes] = fetch
    ) -> None:
        self._topics = frozenset(declared.topics)
        self._tolerance = declared.tolerance
        self._clock = clock
        self._fetch = fetch
        self._lock = threading.Lock()
        # Each with its newest entries last, and bounded.
        self._certificates: dict[str, _Certificate] = {}
        self._failed: dict[str, float] = {}
        self._confirmed: dict[str, None] = {}
        self._log_from = 0.0

    def begin(self, headers: Headers, query: bytes) -> CheckedRequest:
        """See ``RequestCheck``. The head is not signed: it only saves reading the body of a foreign request."""
        del query
        if not header(headers, b"x-amz-sns-message-type"):
            if header(headers, b"x-amz-sns-rawdelivery"):
                raise _refused("x-amz-sns-rawdelivery: raw messages are not signed: turn raw message delivery off")
            raise _refused("x-amz-sns-message-type: there is none: only Amazon SNS sends to this stream")
        return _SnsRequest(self)

    def parsed(self, body: bytes) -> _Message:
        """Return the message in a body, whose topic and time are right; its signature is not checked."""
        try:
            message = _MESSAGE.decode(body.removeprefix(UTF8_MARK) if len(body) <= _LONGEST_MESSAGE else b"")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _refused(f"body: it is no message of SNS: {error!s:.200}") from None
        if message.topic_arn not in self._topics:
            raise _refused(
                f"TopicArn: {message.topic_arn!r:.300} is no topic of this stream: declare it, or unsubscribe"
            )
        try:
            at = datetime.fromisoformat(message.timestamp).timestamp()
        except (ValueError, OverflowError):
            raise _refused(f"Timestamp: {message.timestamp!r:.40} is no time") from None
        seconds = self._clock() - at
        if abs(seconds) > self._tolerance:
            raise _refused(
                f"Timestamp: {message.timestamp:.40} is {abs(seconds):.0f} s {'ago' if seconds > 0 else 'ahead'}, "
                f"tolerance is {self._tolerance:g} s: compare the clocks"
            )
        return message

    def knows(self, message: _Message) -> bool:
        """Return whether nothing has to be fetched for this message."""
        return message.signing_cert_url in self._certificates and (
            message.type == "Notification" or message.message_id in self._confirmed
        )

    def check(self, message: _Message, body: bytes) -> None:
        """Check a message's signature by its certificate."""
        certificate = self._certificates.get(message.signing_cert_url)
        algorithm = _HASHES.get(message.signature_version)
        names = _SIGNED.get(message.type)
        if certificate is None:
            # Not asked for yet, or others came since.
            raise _unreachable("the certificate is not here")
        if algorithm is None or names is None:
            raise _refused(
                f"Type, SignatureVersion: {message.type!r:.40} in version {message.signature_version!r:.20} is not "
                "checked here"
            )
        now = datetime.fromtimestamp(self._clock(), UTC)
        if not certificate.begins <= now <= certificate.ends:
            raise _refused(f"SigningCertURL: the certificate counts from {certificate.begins} to {certificate.ends}")
        try:
            certificate.key.verify(
                b64decode(message.signature, validate=True), _signed_text(message, names), _PADDING, algorithm
            )
        except (InvalidSignature, binascii.Error, ValueError):
            raise _refused("Signature: it is not good for this message") from None
        try:
            if not _has_each_name_once(body):
                json.loads(body, object_pairs_hook=_check_names)
        except (ValueError, RecursionError) as error:
            # Parsers differ in which one of two members counts, and only one was checked.
            raise _refused(f"body: {error!s:.200}") from None

    def do_work(self, message: _Message, body: bytes) -> None:
        """Fetch the certificate, check the message, and confirm the subscription if it asks for that, once."""
        self._learn_certificate(message)
        self.check(message, body)
        if message.type == "Notification" or message.message_id in self._confirmed:
            return
        if message.type == "SubscriptionConfirmation":
            self._ask(_confirmation_of(message))
            _log.info("a subscription of Amazon SNS was confirmed", topic=message.topic_arn)
        else:
            _log.warning("a subscription of Amazon SNS was ended", topic=message.topic_arn)
        self._remember(self._confirmed, message.message_id, None, _MOST_KNOWN)

    def _learn_certificate(self, message: _Message) -> None:
        url = message.signing_cert_url
        if url in self._certificates:
            return
        if not _is_from_sns(url, message.topic_arn) or not _CERTIFICATE_PATH.fullmatch(url, url.index("/", 8)):
            raise _refused(f"SigningCertURL: {url!r:.300} is no certificate of SNS in the topic's region")
        try:
            certificate = _certificate(self._ask(url))
        except ValueError as error:
            raise _refused(f"SigningCertURL: {error!s:.200}") from None
        self._remember(self._certificates, url, certificate, _MOST_CERTIFICATES)

    def _ask(self, url: str) -> bytes:
        """Fetch an address that was checked. A failed one is not tried again for some seconds."""
        host = urlsplit(url).hostname
        if time.monotonic() < self._failed.get(url, 0.0):
            raise _unreachable(f"{host} could not be asked a moment ago")
        try:
            return self._fetch(url)
        except (OSError, HTTPException) as error:
            now = time.monotonic()
            self._remember(self._failed, url, now + _FAILED_SECONDS, _MOST_KNOWN)
            if now >= self._log_from:
                # Anyone can name a certificate that is not there.
                self._log_from = now + _LOG_SECONDS
                _log.warning("Amazon SNS could not be asked", host=host, error=str(error))
            raise _unreachable(f"{host} could not be asked ({error!s:.200})") from None

    def _remember(self, known: dict[str, Any], name: str, value: object, most: int) -> None:
        with self._lock:
            known.pop(name, None)
            while len(known) >= most:
                del known[next(iter(known))]
            known[name] = value


class _SnsRequest(CheckedRequest):
    __slots__ = ("_check", "_message")

    def __init__(self, check: SnsCheck) -> None:
        self._check = check
        self._message: _Message | None = None

    def work_before(self, body: bytes) -> Callable[[], None] | None:
        """See ``CheckedRequest``."""
        message = self._message = self._check.parsed(body)
        return None if self._check.knows(message) else lambda: self._check.do_work(message, body)

    def check(self, body: bytes) -> None:
        """See ``CheckedRequest``."""
        self._check.check(self._message or self._check.parsed(body), body)


def _signed_text(message: _Message, names: Sequence[str]) -> bytes:
    values = {
        "Message": message.message,
        "MessageId": message.message_id,
        "Subject": message.subject,
        "SubscribeURL": message.subscribe_url,
        "Timestamp": message.timestamp,
        "Token": message.token,
        "TopicArn": message.topic_arn,
        "Type": message.type,
    }
    for name, value in values.items():
        # Else the same text could be cut into other members.
        if name != "Message" and value is not None and "\n" in value:
            raise ValueError(name)
    return "".join([f"{name}\n{values[name]}\n" for name in names if values[name] is not None]).encode()


def _has_each_name_once(body: bytes) -> bool:
    """Return whether an object of texts, as SNS sends, has no name twice. False: look at it by a slower parser."""
    try:
        members = _TEXTS.decode(body.removeprefix(UTF8_MARK))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    # Two quotes around each name and each value; those within texts are escaped.
    quotes = body.replace(b"\\\\", b"").replace(b'\\"', b"").count(b'"')
    return quotes == _QUOTES_OF_MEMBER * len(members)


def _check_names(members: Sequence[tuple[str, object]]) -> None:
    names = [name for name, _ in members]
    if len(set(names)) < len(names):
        raise ValueError("a member comes twice")


def _is_from_sns(url: str, topic: str) -> bool:
    """Return whether an address is SNS's own in the region of a topic."""
    match = TOPIC.fullmatch(topic)
    assert match is not None
    partition, region = match.groups()
    return url.startswith(f"https://sns.{region}.amazonaws.com{'.cn' if partition == 'aws-cn' else ''}/")


def _confirmation_of(message: _Message) -> str:
    """Return the address that confirms a subscription. It was signed: this keeps to what it is for."""
    url = message.subscribe_url or ""
    if not _is_from_sns(url, message.topic_arn) or parse_qs(urlsplit(url).query).get("Action") != [
        "ConfirmSubscription"
    ]:
        raise _refused(f"SubscribeURL: {url!r:.300} confirms no subscription at SNS in the topic's region")
    return url


def _certificate(data: bytes) -> _Certificate:
    """Return a certificate's key and time. Raises ValueError."""
    found = x509.load_pem_x509_certificate(data)
    key = found.public_key()
    names = [str(one.value) for one in found.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)]
    if not any(map(_CERTIFICATE_NAME.fullmatch, names)):
        raise ValueError(f"{names!r:.100} is no name of SNS")
    if not isinstance(key, RSAPublicKey) or key.key_size < _LEAST_BITS:
        raise ValueError("its key is no RSA key of 2048 bits or more")
    return _Certificate(key, found.not_valid_before_utc, found.not_valid_after_utc)


def _refused(detail: str) -> RefusedError:
    return refusal(HTTPStatus.UNAUTHORIZED, detail, www_authenticate="Signature")


def _unreachable(detail: str) -> RefusedError:
    return refusal(HTTPStatus.SERVICE_UNAVAILABLE, f"{detail}: send again", retry_after=AWAY_RETRY_SECONDS)

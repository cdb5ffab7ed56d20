"""Check the signature of a request: an HMAC over what its sender sent, as the source declares it (``Hmac``).

A request is refused before its body is read if its head alone shows that no signature can be good. Comparisons take the
same time wherever two signatures differ. This module never reads from a connection, and no message of it holds a secret
or the signature that would be good.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from base64 import b64encode
from binascii import a2b_qp
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote_to_bytes

from receiver_runtime.receivers.http.requests.protocol import CheckedRequest, RequestCheck
from receiver_runtime.receivers.http.requests.pushed import header, media_type
from receiver_runtime.receivers.http.requests.refusals import RefusedError, refusal
from receiver_runtime.sources.fields.hmac_signature import IN_HEADER, IN_SIGNATURE, PART

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from receiver_runtime.receivers.http.requests.pushed import Headers
    from receiver_runtime.sources.fields.hmac_signature import Hmac

_FORM = "application/x-www-form-urlencoded"
_MOST_FIELDS = 1000  # of a form, or of a query: no sender signs more
_AND, _IS = b"\xff", b"\xfe"
_SEPARATED = bytes.maketrans(b"&=+", _AND + _IS + b" ")
_LEAST = b"\0"
_QUOTED_PRINTABLE = bytes.maketrans(b"&=+%", _AND + _LEAST + b" =")
_NO_SEPARATORS = bytes(octet for octet in range(256) if octet not in b"&=\r\n")
_NO_SIGNS = bytes(octet for octet in range(256) if octet not in _AND + _LEAST)
_LONGEST_TIMESTAMP = 12  # digits of seconds since 1970


class SignatureCheck(RequestCheck):
    """Check requests; see the module. Safe from any thread.

    Raises:
        SecretError: a secret is missing, or is not written as declared.
    """

    def __init__(self, declared: Hmac, *, clock: Callable[[], float] = time.time) -> None:
        self._declared = declared
        self._clock = clock
        self._header = declared.header.lower().encode()
        self._prefix = declared.prefix
        self._id = _header_of(declared.id_from)
        self._timestamp_header = _header_of(declared.timestamp_from)
        self._timestamp_part = _timestamp_part(declared.timestamp_from)
        # Text and the names of parts, in turn.
        self._payload = [
            piece if index % 2 else piece.encode() for index, piece in enumerate(PART.split(declared.payload))
        ]
        # A keyed hash of each secret, which is copied for a request: making one takes longer than hashing a small body.
        self._keyed = [hmac.new(key, digestmod=declared.algorithm) for key in declared.read_keys()]

    def begin(self, headers: Headers, query: bytes) -> SignedRequest:
        """See ``RequestCheck``."""
        name = self._declared.header
        given = header(headers, self._header)
        if not given:
            raise _refused(f"{name}: there is none: sign the request, or send it to another stream")
        separator = self._declared.separator
        parts = [part.strip() for part in given.split(separator)] if separator else [given]
        signatures = [part.removeprefix(self._prefix) for part in parts if part.startswith(self._prefix)]
        if not signatures:
            raise _refused(f"{name}: it holds no signature that begins with {self._prefix!r}: send one")
        pieces: list[bytes | str] = []
        for piece in self._payload:
            if isinstance(piece, bytes):
                pieces.append(piece)
            elif piece == "id":
                pieces.append(_signed_header(headers, *self._id))
            elif piece == "timestamp":
                pieces.append(self._timestamp(headers, parts))
            elif piece == "url":
                pieces.append(self._url(query))
            else:
                pieces.append(piece)
        return SignedRequest(self._keyed, self._declared, pieces, signatures, headers, query)

    def _timestamp(self, headers: Headers, parts: Sequence[str]) -> bytes:
        if self._timestamp_part:
            name = self._declared.header
            found = [part for part in parts if part.startswith(self._timestamp_part)]
            if len(found) != 1:
                raise _refused(f"{name}: it has {len(found)} parts {self._timestamp_part!r}: send one")
            text = found[0].removeprefix(self._timestamp_part)
        else:
            name, _ = self._timestamp_header
            text = _signed_header(headers, *self._timestamp_header).decode("latin-1")
        if not (text.isascii() and text.isdigit() and len(text) <= _LONGEST_TIMESTAMP):
            raise _refused(f"{name}: {text!r:.40} is no time: send seconds since 1970")
        seconds = self._clock() - int(text)
        if abs(seconds) > self._declared.tolerance:
            raise _refused(
                f"{name}: {text} is {abs(seconds):.0f} s {'ago' if seconds > 0 else 'ahead'}, tolerance is "
                f"{self._declared.tolerance:g} s: sign the request when it is sent, and compare the clocks"
            )
        return text.encode()

    def _url(self, query: bytes) -> bytes:
        url = (self._declared.url or "").partition("?")[0].encode()
        return b"%s?%s" % (url, query) if query else url


class SignedRequest(CheckedRequest):
    """Hold one request's signatures, and what is signed except its body."""

    __slots__ = ("_declared", "_headers", "_keyed", "_pieces", "_query", "_signatures")

    def __init__(
        self,
        keyed: Sequence[hmac.HMAC],
        declared: Hmac,
        pieces: Sequence[bytes | str],
        signatures: Sequence[str],
        headers: Headers,
        query: bytes,
    ) -> None:
        self._keyed = keyed
        self._declared = declared
        self._pieces = pieces
        self._signatures = signatures
        self._headers = headers
        self._query = query

    def check(self, body: bytes) -> None:
        """See ``CheckedRequest``."""
        is_hex = self._declared.encoding == "hex"
        given = [(one.lower() if is_hex else one).encode("latin-1") for one in self._signatures]
        pieces = [piece if isinstance(piece, bytes) else self._part(piece, body) for piece in self._pieces]
        good = False
        # All are computed and compared, so that the time that it takes tells nothing about them.
        for keyed in self._keyed:
            mac = keyed.copy()
            for piece in pieces:
                mac.update(piece)
            expected = mac.hexdigest().encode() if is_hex else b64encode(mac.digest())
            for one in given:
                good |= hmac.compare_digest(expected, one)
        if not good:
            raise _refused(
                f"{self._declared.header}: no signature there is good for this body and the secrets of this stream: "
                "compare the secret with the sender's, and send the body as it was signed"
            )

    def _part(self, name: str, body: bytes) -> bytes:
        if name == "body":
            return body
        kind, _ = media_type(header(self._headers, b"content-type"))
        if kind == _FORM:
            return _form(body)
        parameter = self._declared.body_hash_parameter or ""
        hashes = _parameters(self._query).get(parameter, [])
        digest = hashlib.sha256(body).hexdigest()
        if len(hashes) != 1 or not hmac.compare_digest(digest.encode(), hashes[0].lower().encode()):
            raise _refused(f"{parameter}: the query does not have the SHA-256 of this body, once: send it")
        return b""


def _header_of(place: str | None) -> tuple[str, bytes]:
    """Return the name of the header at a place as it is declared, and as headers are found."""
    name = place.removeprefix(IN_HEADER) if place and place.startswith(IN_HEADER) else ""
    return name, name.lower().encode()


def _timestamp_part(place: str | None) -> str:
    return f"{place.removeprefix(IN_SIGNATURE)}=" if place and place.startswith(IN_SIGNATURE) else ""


def _signed_header(headers: Headers, name: str, lower: bytes) -> bytes:
    value = header(headers, lower)
    if not value:
        raise _refused(f"{name}: there is none, and it is signed: send it")
    return value.encode("latin-1")


def _form(body: bytes) -> bytes:
    """Return the names and values of a form as they are signed: sorted, each pair once, without anything between.

    A form of the usual look is read by a few passes over all of it, in a fifth of the time that its fields would take.
    """
    if (signed := _usual_form(body)) is not None:
        return signed
    text = unquote_to_bytes(body.translate(_SEPARATED))
    separators = body.count(b"&"), body.count(b"=")
    if separators[0] >= _MOST_FIELDS or separators != (text.count(_AND), text.count(_IS)):
        raise _refused(f"body: it is no form in UTF-8 of at most {_MOST_FIELDS} fields: correct it")
    pairs = {field.partition(_IS)[::2] for field in text.split(_AND) if field}
    # Further signs are part of the value, also where values are sorted.
    return b"".join([name + value for name, value in sorted((name, value.replace(_IS, b"=")) for name, value in pairs)])


def _usual_form(body: bytes) -> bytes | None:
    """Return the same for a form of one ``name=value`` after the other; None: it has another look, and may be good."""
    separators = body.translate(None, _NO_SEPARATORS)
    fields = len(separators) // 2 + 1
    if separators != (b"=&" * fields)[:-1] or fields > _MOST_FIELDS:
        return None
    # It is unquoted as quoted-printable, which is the same with another sign, and read in C. Each quoted octet has two
    # fewer then. What is wrong shows in the length, or is a line end, which no form of the usual look has.
    text = a2b_qp(body.translate(_QUOTED_PRINTABLE))
    if len(text) != len(body) - 2 * body.count(b"%"):
        return None
    if text.translate(None, _NO_SIGNS) != separators.translate(_QUOTED_PRINTABLE):
        return None
    # Within a field the octet that is less than all others stands behind its name, so fields sort as their pairs do.
    return b"".join(sorted(set(text.split(_AND)))).replace(_LEAST, b"")


def _parameters(query: bytes) -> dict[str, list[str]]:
    try:
        return parse_qs(query.decode(), max_num_fields=_MOST_FIELDS, errors="strict")
    except ValueError:
        return {}


def _refused(detail: str) -> RefusedError:
    return refusal(HTTPStatus.UNAUTHORIZED, detail, www_authenticate="Signature")

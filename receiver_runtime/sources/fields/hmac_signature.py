"""Declare how a request's signature is checked: an HMAC over its body, by a secret that both sides know.

Only the declaration and its checks; ``receiver_runtime.receivers.http.requests.signatures`` checks requests.
"""

from __future__ import annotations

import re
from base64 import b64decode
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from receiver_runtime.sources.fields.secret import Secret, SecretError
from receiver_runtime.sources.fields.several import Secrets  # noqa: TC001  pydantic evaluates it
from receiver_runtime.sources.fields.units import parse_duration
from receiver_runtime.sources.fields.verification import Verification

HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: What stands before the name of a header, or of a part of the signature's own header, where a field says a place.
IN_HEADER = "header:"
IN_SIGNATURE = "signature:"
#: A part of ``payload`` that differs with each request.
PART = re.compile(r"\{(\w+)\}")
_PARTS = frozenset({"body", "form", "id", "timestamp", "url"})


def check_header_place(place: str) -> str:
    """Return ``"header:NAME"``. Raises ValueError."""
    if not place.startswith(IN_HEADER) or not HEADER_NAME.fullmatch(place.removeprefix(IN_HEADER)):
        raise ValueError(f"{place!r} names no header: give it as 'header:X-Request-Id'")
    return place


class Hmac(Verification):
    """Say how senders sign their requests: by an HMAC in a header. One without a good signature is refused with 401.

    The body counts as it was received, before it is decompressed.

    Args:
        secrets: secrets, by reference (``EnvVar("NAME")``, ``"env:NAME"``, ``"file:/PATH"``). Each holds a secret, or
            several, one per line. A signature by any of them is good, so that a new one can replace an old one.
        header: the name of the header that holds the signature.
        algorithm: the hash.
        encoding: how the signature is written.
        payload: what is signed: text, with ``{body}``, ``{id}``, ``{timestamp}`` and ``{url}`` in place of these.
            ``{form}`` is the names and values of a form, sorted and joined.
        prefix: what stands before each signature in its header. Signatures with another prefix are passed over.
        separator: what stands between several parts of the header; by default it is one part.
        id_from: where ``{id}`` is, as ``"header:NAME"``.
        timestamp_from: where ``{timestamp}`` is, in seconds since 1970: ``"header:NAME"``, or ``"signature:t"`` for the
            part ``t=`` of the signature's header.
        tolerance: how far a timestamp may be from the receiver's clock, in either direction.
        secret_encoding: how a secret is written.
        secret_prefix: what is no part of a secret, where it begins so.
        url: the URL that senders were given. ``{url}`` is this, with the request's own query.
        protocols: the protocols that go with these senders, such as one that answers what they ask before they send.
        challenge_secret: what a sender shows when it asks, by reference, where one of these protocols needs it.
        body_hash_parameter: the parameter of the query that holds the SHA-256 of a body that is no form, in hex.
    """

    check_class: ClassVar[str] = "receiver_runtime.receivers.http.requests.signatures:SignatureCheck"

    kind: Literal["hmac"] = "hmac"
    secrets: Annotated[Secrets, Field(min_length=1)]
    header: str
    algorithm: Literal["sha256", "sha1", "sha384", "sha512"] = "sha256"
    encoding: Literal["hex", "base64"] = "hex"
    payload: str = "{body}"
    prefix: str = ""
    separator: str = ""
    id_from: str | None = None
    timestamp_from: str | None = None
    tolerance: Annotated[float, BeforeValidator(parse_duration), Field(gt=0)] = 300.0
    secret_encoding: Literal["text", "base64", "hex"] = "text"  # noqa: S105  no secret
    secret_prefix: str = ""
    url: str | None = None
    challenge_secret: Secret | None = None
    body_hash_parameter: str | None = None

    @field_validator("header")
    @classmethod
    def _check_header(cls, header: str) -> str:
        if not HEADER_NAME.fullmatch(header):
            raise ValueError(f"{header!r} is no name of a header: give one as 'X-Signature'")
        return header

    @field_validator("id_from")
    @classmethod
    def _check_id_from(cls, place: str | None) -> str | None:
        return None if place is None else check_header_place(place)

    @field_validator("timestamp_from")
    @classmethod
    def _check_timestamp_from(cls, place: str | None) -> str | None:
        if place is None or (place.startswith(IN_SIGNATURE) and place != IN_SIGNATURE):
            return place
        return check_header_place(place)

    @field_validator("payload")
    @classmethod
    def _check_payload(cls, payload: str) -> str:
        unknown = [name for name in PART.findall(payload) if name not in _PARTS]
        if unknown or re.search(r"[{}]", PART.sub("", payload)):
            known = ", ".join(f"{{{name}}}" for name in sorted(_PARTS))
            raise ValueError(f"{payload!r} is no payload: write text with some of {known}, as '{{timestamp}}.{{body}}'")
        return payload

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        parts = set(PART.findall(self.payload))
        if not parts & {"body", "form"}:
            raise ValueError(f"payload: {self.payload!r} signs no body: add {{body}}")
        for name, value in (("id", self.id_from), ("timestamp", self.timestamp_from)):
            if (name in parts) != (value is not None):
                raise ValueError(
                    f"{name}_from and {{{name}}} in payload go together: without both, anyone could change it"
                )
        if ("url" in parts) != (self.url is not None):
            raise ValueError("url and {url} in payload go together: give both or none")
        if ("form" in parts) != (self.body_hash_parameter is not None):
            raise ValueError(
                "body_hash_parameter and {form} in payload go together: a body that is no form has only it"
            )
        if "form" in parts and self.url is None:
            raise ValueError("{form} in payload needs {url}: the query has the hash of a body that is no form")
        if self.timestamp_from is not None and self.timestamp_from.startswith(IN_SIGNATURE) and not self.separator:
            raise ValueError("timestamp_from: the signature's header has one part: give separator too")
        return self

    def read_keys(self) -> list[bytes]:
        """Read the secrets, and return the keys that they hold: a line each, so that an old one and a new one count.

        Raises:
            SecretError: a secret is missing, or is not written as declared.
        """
        return [key for secret in self.secrets for key in self._keys_of(secret)]

    def check_secrets(self) -> None:
        """See ``Verification``."""
        self.read_keys()

    def _keys_of(self, secret: Secret) -> list[bytes]:
        texts = [line.strip().removeprefix(self.secret_prefix) for line in secret.resolve().splitlines()]
        try:
            keys = [_key(text, self.secret_encoding) for text in texts if text]
        except ValueError:
            raise SecretError(
                f"a secret of signatures is no {self.secret_encoding}: copy it from the sender, a line each, into "
                f"{secret}"
            ) from None
        if not keys or not all(keys):
            raise SecretError(f"there is no secret of signatures: write one, or several in a line each, into {secret}")
        return keys


def _key(text: str, encoding: str) -> bytes:
    if encoding == "base64":
        return b64decode(text, validate=True)
    return bytes.fromhex(text) if encoding == "hex" else text.encode()

"""Check what a declaration of signatures may say: what is checked must be signed."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.sources.fields.hmac_signature import Hmac
from receiver_runtime.sources.source import SourceError
from receiver_runtime.sources.source_registry import parse_source

_LEAST: dict[str, Any] = {"secrets": "env:A", "header": "X-Signature"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"secrets": []}, "at least 1 item"),
        ({"secrets": "a literal"}, "a secret is given by reference"),
        ({"header": "a header"}, "no name of a header"),
        ({"payload": "{timestamp}", "timestamp_from": "header:a"}, "signs no body"),
        ({"payload": "{nonce}.{body}"}, "no payload"),
        ({"payload": "{{body}"}, "no payload"),
        ({"timestamp_from": "header:X-Time"}, "go together"),
        ({"payload": "{timestamp}.{body}"}, "go together"),
        ({"id_from": "header:X-Id"}, "go together"),
        ({"payload": "{id}.{body}"}, "go together"),
        ({"payload": "{id}.{body}", "id_from": "X-Id"}, "names no header"),
        ({"payload": "{timestamp}.{body}", "timestamp_from": "signature:"}, "names no header"),
        ({"payload": "{timestamp}.{body}", "timestamp_from": "signature:t"}, "give separator too"),
        ({"payload": "{url}{body}"}, "go together"),
        ({"url": "https://a"}, "go together"),
        ({"payload": "{url}{form}", "url": "https://a"}, "go together"),
        ({"payload": "{form}", "body_hash_parameter": "h"}, "needs {url}"),
        ({"tolerance": 0}, "greater than 0"),
        ({"algorithm": "md5"}, "'sha256'"),
    ],
)
def test_a_wrong_declaration_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Hmac.model_validate(_LEAST | fields)
    assert said in str(caught.value)
    assert "a literal" not in str(caught.value)


@pytest.mark.parametrize(
    "place", ["X-Id", "header:", "header:a b", "body:id", "body:", "body:/a~2", "form:", "query:id"]
)
def test_a_place_of_no_key_is_refused(place: str) -> None:
    with pytest.raises(ValidationError, match=r"names no header|no place of a key"):
        Http(listen="127.0.0.1:0", key_from=place)


def test_one_secret_and_a_duration_are_taken_as_people_write_them() -> None:
    fields = {"payload": "{timestamp}.{body}", "timestamp_from": "header:X-Time", "tolerance": "10m"}
    made = Hmac.model_validate(_LEAST | fields)
    assert [str(secret) for secret in made.secrets] == ["env:A"]
    assert made.tolerance == 600.0


@pytest.mark.parametrize(
    ("verify", "said"),
    [
        ({"secrets": "a literal", "header": "X"}, r"\Averify\.hmac\.secrets\.0: a secret is given by reference[^;]*\Z"),
        ({"kind": "github", "secrets": "env:A"}, "give the sender's class, or leave kind out"),
        ({"kind": ["a"]}, "is no way to verify requests"),
        ({"kind": "telegram"}, "registers 'telegram'"),
    ],
)
def test_a_stored_declaration_that_is_wrong_is_refused(verify: object, said: str) -> None:
    with pytest.raises(SourceError, match=said) as caught:
        parse_source({"kind": "http", "listen": "127.0.0.1:0", "verify": verify})
    assert "a literal" not in str(caught.value)

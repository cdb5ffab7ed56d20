"""Check the declaration of an HTTP source."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from receiver_runtime.receivers.http.declaration import Http
from receiver_runtime.sources.fields.tcp import Tls
from receiver_runtime.sources.source import Guarantee
from receiver_runtime.sources.source_registry import parse_source


def test_it_is_stored_and_parsed_again_without_secrets() -> None:
    source = Http(
        listen="[::]:8080",
        tokens=["env:A", "file:/run/b"],
        tls=Tls(certificate_file="/c.pem", key_file="/k.pem"),
        headers="X-GitHub-Event",
        max_body_bytes="1MiB",
        request_timeout="5s",
    )
    assert parse_source(source.model_dump(mode="json")) == source
    assert source.model_dump(mode="json")["tokens"] == ["env:A", "file:/run/b"]
    assert source.headers == ("x-github-event",)
    assert source.listen_address == ("::", 8080)
    assert source.address == "https://[::]:8080"
    assert source.is_listener
    assert Http.guarantees() == (Guarantee.AT_LEAST_ONCE_DEDUPLICATED,)


def test_one_token_may_be_given_as_text() -> None:
    assert Http(listen="127.0.0.1:0", tokens="env:A") == Http(listen="127.0.0.1:0", tokens=["env:A"])


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"listen": "8080"}, "0.0.0.0:9999"),
        ({"listen": "127.0.0.1:70000"}, "no address"),
        ({"tokens": ["s3cret"]}, "by reference"),
        ({"headers": ["Authorization"]}, "holds secrets"),
        ({"headers": ["a b"]}, "no name of a header"),
        ({"tls": {}}, "certificate_file"),
        ({"tls": {"certificate_file": "/c.pem", "verify": False}}, "a client's"),
        ({"max_body_bytes": "1GiB"}, "less than or equal"),
        ({"max_waiting_bytes": "1KiB"}, "no room"),
        ({"request_timeout": 0}, "greater than 0"),
        ({"colour": "red"}, "there is no field 'colour': use listen, tokens"),
        ({"port": 8080}, "did you mean listen?"),
    ],
)
def test_invalid_fields_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Http.model_validate({"listen": "127.0.0.1:0"} | fields)
    assert says in str(raised.value)
    assert "s3cret" not in str(raised.value)

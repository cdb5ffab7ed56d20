from __future__ import annotations

from typing import Any

import pytest

from receiver_runtime.sources.source import SourceError
from receiver_runtime.sources.source_registry import parse_source

GIVEN: dict[str, Any] = {"kind": "nats_jetstream", "servers": "127.0.0.1:4222", "stream": "ORDERS", "durable": "d"}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("servers", "localhost", "servers: 'localhost' is no server"),
        ("stream", "a.b", "stream: 'a.b' is no name"),
        ("durable", "", "durable: '' is no name"),
        ("subject", "a..b", r"subject: 'a\.\.b' is no subject"),
        ("start", "soon", "start: "),
        ("ack_wait", "0s", "ack_wait: "),
        ("password", "hunter2", "password: a secret is given by reference"),
        ("username", "u", "a username and its password go together"),
        ("credentials_file", "x.creds", "credentials_file: 'x.creds' is no whole path"),
        ("streams", "x", "streams: nats_jetstream has no such field"),
    ],
)
def test_invalid_fields_are_named(field: str, value: object, message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        parse_source({**GIVEN, field: value})
    assert "hunter2" not in str(caught.value)

from __future__ import annotations

from typing import Any

import pytest

from receiver_runtime.sources.source import SourceError
from receiver_runtime.sources.source_registry import parse_source

GIVEN: dict[str, Any] = {"kind": "redis_streams", "host": "127.0.0.1", "streams": ["orders"], "group": "g"}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("streams", [], "streams: no stream key is named"),
        ("streams", ["a", "a"], "streams: a stream key is named twice"),
        ("group", "", "group: "),
        ("start", "soon", "start: "),
        ("claim_after", "0s", "claim_after: "),
        ("password", "hunter2", "password: a secret is given by reference"),
        ("username", "u", "a username without its password"),
        ("tls", {"server_hostname": "x"}, "give that as host"),
        ("stream", "x", "stream: redis_streams has no such field"),
    ],
)
def test_invalid_fields_are_named(field: str, value: object, message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        parse_source({**GIVEN, field: value})
    assert "hunter2" not in str(caught.value)

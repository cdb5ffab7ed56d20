from __future__ import annotations

from typing import Any

import pytest

from forebay import Stream
from forebay.sources import ZeroMQ
from orchestration.declarations.declaration_error import DeclarationError
from receiver_runtime.sources.source import SourceError
from receiver_runtime.sources.source_registry import parse_source

GIVEN: dict[str, Any] = {"kind": "zeromq", "endpoints": "tcp://127.0.0.1:5556", "socket": "sub"}
KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("endpoints", [], "endpoints: no endpoint is named: give at least one"),
        ("endpoints", ["tcp://a:1", "tcp://a:1"], "an endpoint is named twice"),
        ("endpoints", "127.0.0.1:5556", "endpoints: '127.0.0.1:5556' is no endpoint: give 'tcp://HOST:PORT'"),
        ("endpoints", "tcp://a", "'tcp://a' is no endpoint"),
        ("endpoints", "tcp://a;b:1", "is no endpoint"),
        ("endpoints", "udp://a:1", "is no endpoint"),
        ("endpoints", "ipc://feed.sock", "with a path from the root"),
        ("endpoints", "ipc:///" + 107 * "x", "the path has more than 107 bytes"),
        ("endpoints", "tcp://a:65536", "has a port above 65535"),
        ("endpoints", "tcp://*:5556", r"an address to listen at: give the senders' host and port, or bind=True"),
        ("endpoints", "tcp://a:*", "an address to listen at"),
        ("endpoints", "tcp://a:0", "an address to listen at"),
        ("socket", "rep", "socket: .*'sub' or 'pull'"),
        ("topics", ["a", "a"], "topics: a topic is named twice"),
        ("high_water_mark", 0, "high_water_mark: "),
        ("max_record_bytes", "1GiB", "max_record_bytes: "),
        ("curve_server_key", "short", "curve_server_key: 'short' is no public key: give 40 characters"),
        ("curve_secret_key", "hunter2", "curve_secret_key: a secret is given by reference"),
        ("curve_secret_key", "env:KEY", "give curve_server_key too"),
        ("topic", "x", "topic: zeromq has no such field"),
    ],
)
def test_what_is_wrong_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        parse_source({**GIVEN, field: value})
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"socket": "pull", "topics": "a"}, r"topics=\('a',\): only a SUB socket has topics"),
        ({"bind": True, "curve_server_key": KEY}, "curve_server_key: a socket that listens is the server itself"),
    ],
)
def test_fields_that_do_not_go_together(fields: dict[str, object], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        parse_source({**GIVEN, **fields})


@pytest.mark.parametrize(
    ("endpoint", "bind"),
    [
        ("tcp://[::1]:5556", False),
        ("ipc:///run/feed.sock", False),
        ("ipc://@feed", True),
        ("tcp://*:5556", True),
        ("tcp://eth0:*", True),
    ],
)
def test_what_is_an_endpoint(endpoint: str, bind: bool) -> None:
    source = ZeroMQ(endpoints=endpoint, socket="pull", bind=bind)
    assert source.address == endpoint
    assert source.is_listener is bind


def test_several_receivers_would_each_store_all_that_is_published() -> None:
    with pytest.raises(DeclarationError, match=r"stream 's': receivers=2: .*use socket='pull'"):
        Stream("s", ZeroMQ(endpoints="tcp://a:1", socket="sub"), receivers=2)
    assert Stream("s", ZeroMQ(endpoints="tcp://a:1", socket="pull"), receivers=2).receivers == 2
    assert Stream("s", ZeroMQ(endpoints="tcp://*:1", socket="sub", bind=True), receivers="per_host").receivers

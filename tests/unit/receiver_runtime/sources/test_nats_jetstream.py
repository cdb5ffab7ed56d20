from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from receiver_runtime.sources.base import SourceError
from receiver_runtime.sources.nats_jetstream import NatsJetStream
from receiver_runtime.sources.secret import EnvVar
from receiver_runtime.sources.source_registry import parse_source

GIVEN: dict[str, Any] = {"kind": "nats_jetstream", "servers": "127.0.0.1:4222", "stream": "ORDERS", "durable": "d"}


def test_a_declaration_comes_back_from_its_json() -> None:
    source = NatsJetStream(
        servers="a:4222, b:4222",
        stream="ORDERS",
        durable="d",
        username="u",
        password=EnvVar("NATS_PASSWORD"),
        ack_wait="1m",
    )
    again = parse_source(source.model_dump(mode="json"))
    assert again == source
    assert isinstance(again, NatsJetStream)
    assert again.ack_wait == 60
    assert again.address == "a:4222,b:4222/ORDERS"


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
def test_what_is_wrong_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        parse_source({**GIVEN, field: value})
    assert "hunter2" not in str(caught.value)


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_the_declaration_needs_no_client() -> None:
    done = run("import sys, forebay.sources; forebay.sources.NatsJetStream; assert 'nats' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_a_missing_extra_is_one_sentence() -> None:
    done = run(
        "import sys\n"
        "sys.modules['nats'] = None\n"
        "from receiver_runtime.receiver_registry import make_receiver\n"
        "from receiver_runtime.sources.nats_jetstream import NatsJetStream\n"
        "from receiver_runtime.sources.base import SourceError\n"
        "try:\n"
        "    make_receiver(NatsJetStream(servers='a:1', stream='t', durable='g'))\n"
        "except SourceError as error:\n"
        "    print(error)\n"
    )
    assert "pip install 'forebay[nats]'" in done.stdout, done.stderr
    assert done.stdout.count("\n") == 1

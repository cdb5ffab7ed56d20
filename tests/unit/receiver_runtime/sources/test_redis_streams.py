from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from receiver_runtime.sources.base import SourceError
from receiver_runtime.sources.redis_streams import RedisStreams
from receiver_runtime.sources.secret import EnvVar
from receiver_runtime.sources.source_registry import parse_source

GIVEN: dict[str, Any] = {"kind": "redis_streams", "host": "127.0.0.1", "streams": ["orders"], "group": "g"}


def test_a_declaration_comes_back_from_its_json() -> None:
    source = RedisStreams(
        host="redis", streams="orders", group="g", username="u", password=EnvVar("REDIS_PASSWORD"), claim_after="5m"
    )
    again = parse_source(source.model_dump(mode="json"))
    assert again == source
    assert isinstance(again, RedisStreams)
    assert (again.streams, again.claim_after) == (("orders",), 300)
    assert again.address == "redis:6379/0/orders"


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
def test_what_is_wrong_is_named(field: str, value: object, message: str) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        parse_source({**GIVEN, field: value})
    assert "hunter2" not in str(caught.value)


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_the_declaration_needs_no_client() -> None:
    done = run("import sys, forebay.sources; forebay.sources.RedisStreams; assert 'redis' not in sys.modules")
    assert done.returncode == 0, done.stderr


def test_a_missing_extra_is_one_sentence() -> None:
    done = run(
        "import sys\n"
        "sys.modules['redis'] = None\n"
        "from receiver_runtime.receiver_registry import make_receiver\n"
        "from receiver_runtime.sources.redis_streams import RedisStreams\n"
        "from receiver_runtime.sources.base import SourceError\n"
        "try:\n"
        "    make_receiver(RedisStreams(host='a', streams='t', group='g'))\n"
        "except SourceError as error:\n"
        "    print(error)\n"
    )
    assert "pip install 'forebay[redis]'" in done.stdout, done.stderr
    assert done.stdout.count("\n") == 1

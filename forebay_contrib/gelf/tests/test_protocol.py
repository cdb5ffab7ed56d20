"""Test what a sender of GELF over HTTP hears, and what becomes of its messages."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING

import pytest

from tests.unit.receiver_runtime.receivers.http.http_client import Listening, listening
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

GOOD = b'{"version":"1.1","host":"h","short_message":"\xc3\xbc","_a":[1,  2]}'
# Without the time, which would be in the names of tests: each process of a run must collect the same ones.
ZIPPED = gzip.compress(GOOD, mtime=0)
NO_TYPE: Mapping[str, str] = {}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    with listening(tmp_path_factory.mktemp("gelf"), protocols="gelf", max_record_bytes=2000) as made:
        yield made


@pytest.mark.parametrize(
    ("body", "headers", "rows"),
    [
        (GOOD, NO_TYPE, [GOOD]),
        (GOOD + b"\r\n", {"Content-Type": "application/x-www-form-urlencoded"}, [GOOD]),
        (b'{\n"short_message":\n"over lines"}', NO_TYPE, [b'{\n"short_message":\n"over lines"}']),
        (GOOD + b"\n\r\n" + b'{"message":"old"}\n', NO_TYPE, [GOOD, b'{"message":"old"}']),
        # The first one is a value by itself, and none that fits.
        (b'{"short_message":1}\n' + GOOD, NO_TYPE, [GOOD]),
        (ZIPPED, {"Content-Encoding": "gzip"}, [GOOD]),
        (zlib.compress(GOOD), {"Content-Encoding": "gzip,deflate"}, [GOOD]),
        (zlib.compress(GOOD), NO_TYPE, [GOOD]),
        (ZIPPED, NO_TYPE, [GOOD]),
        (b"\xef\xbb\xbf" + GOOD, {"Content-Type": "application/json"}, [GOOD]),
        (GOOD.decode().encode("utf-16-le"), {"Content-Type": "application/json; charset=utf-16le"}, [GOOD]),
    ],
)
def test_a_message_is_a_row_as_it_was_sent(
    server: Listening, body: bytes, headers: Mapping[str, str], rows: list[bytes]
) -> None:
    before = len(server.bodies())
    answer = server.post(body, headers, path="/gelf")
    assert (answer.status, answer.body) == (202, b"")
    # It is registered when it is answered.
    assert server.bodies()[before:] == rows


@pytest.mark.parametrize(
    ("body", "headers", "status", "words"),
    [
        (b"", NO_TYPE, 400, "it is empty"),
        (b"no json", NO_TYPE, 400, "message 0: JSON is malformed"),
        (b'{"host":"h"}', NO_TYPE, 400, "short_message is missing"),
        (b'{\n"host":"h"}', NO_TYPE, 400, "short_message is missing"),
        (b'{"host":"","short_message":"m"}', NO_TYPE, 400, "host is empty"),
        (b'{"host":null,"short_message":"m"}', NO_TYPE, 400, "Expected `str`, got `null` - at `$.host`"),
        (b'{"short_message":"' + b"x" * 2000 + b'"}', NO_TYPE, 413, "max_record_bytes is 2000"),
        (b"[" * 100_000, NO_TYPE, 413, "max_record_bytes"),
        (zlib.compress(bytes(2**26)), NO_TYPE, 413, "max_body_bytes"),
        (GOOD, {"Content-Encoding": "nothing"}, 415, "'nothing'"),
        (GOOD, {"Content-Type": "application/json; charset=nothing"}, 415, "nothing"),
    ],
)
def test_what_is_no_message_is_refused_with_its_reason(
    server: Listening, body: bytes, headers: Mapping[str, str], status: int, words: str
) -> None:
    before = len(server.bodies()), len(server.rig.dead_letters())
    answer = server.post(body, headers, path="/gelf")
    assert answer.status == status
    assert words in answer.body.decode()
    assert (len(server.bodies()), len(server.rig.dead_letters())) == before


def test_one_that_is_no_message_refuses_no_other(server: Listening) -> None:
    before = len(server.bodies()), len(server.rig.dead_letters())
    bad = [b'{"host":"h"}', b'{"short_message":"\xff"}', b'{"short_message":"a"}{', b'{"_a":"' + b"x" * 2000 + b'"}']
    answer = server.post(b"\n".join([GOOD, *bad, GOOD]), NO_TYPE, path="/gelf")
    assert answer.status == 202
    assert server.bodies()[before[0] :] == [GOOD, GOOD]
    eventually(lambda: len(server.rig.dead_letters()) == before[1] + 4, "the dead letters")
    assert {data for _, _, data in server.rig.dead_letters()[before[1] :]} == set(bad)

"""Fuzz what the client reads of others: a receiver's answers, and the files of its spool after a crash."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from tempfile import TemporaryDirectory

from forebay.client.channel_requests import Answer, ChannelRequests, NoAnswerError
from forebay.client.errors import SendError, SpoolDamagedError
from forebay.client.framing import JsonLines
from forebay.client.segment import frame_of, path_of
from forebay.client.spool import Spool
from forebay.client.spool_state import SpoolState, read_state
from tests.fuzz.target import fuzzed

_OK = b"HTTP/1.1 200 OK\r\nForebay-Offset: 7\r\nContent-Length: %d\r\n\r\n%s"
_BODY = b'{"records": 7, "duplicates": 0, "dead_letters": 1}'
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n"
_CHUNKED = b"HTTP/1.1 409 Conflict\r\nTransfer-Encoding: chunked\r\nforebay-offset: 3\r\n\r\n3\r\n{}\n\r\n0\r\n\r\n"
_POSITION = b'HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n{"channel": "a", "offset": 123}'
_WORDS = [
    b"Forebay-Offset: ",
    b"Retry-After: ",
    b"\r\n\r\n",
    b"Thu, 01 Jan 1970 00:00:00 GMT",
    b"-1",
    b"1e9",
    b"\xff",
    b"9" * 30,
]


class _Answered(ChannelRequests):
    """Have one answer, whatever is asked."""

    def __init__(self, answer: bytes) -> None:
        super().__init__("http://127.0.0.1:9/v1/s", "a", token=None, timeout=2.0)
        self._answer = answer

    def _connected(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self._socket = ours
        # It stays open, so that what is asked can be written.
        self._theirs = theirs
        theirs.settimeout(2.0)
        theirs.send(self._answer[: 2**16])
        theirs.shutdown(socket.SHUT_WR)
        return ours

    def close(self) -> None:
        super().close()
        self._theirs.close()


@fuzzed(
    "channel_answer",
    valid=[_OK % (len(_BODY), _BODY), _BUSY, _CHUNKED, _POSITION, b"HTTP/1.1 100 Continue\r\n\r\n" + _BUSY],
    words=_WORDS,
    attacks=[b"HTTP/1.1 100 Continue\r\n\r\n" * 2000, b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 9000, b"H" * 60_000],
)
def test_any_answer_is_bounded_or_none(data: bytes) -> None:
    for ask in ("send", "position"):
        requests = _Answered(data)
        try:
            answer = (
                requests.position() if ask == "position" else requests.send(b"1\n", offset=0, content_type="text/plain")
            )
        except (NoAnswerError, SendError):
            continue
        finally:
            requests.close()
        assert isinstance(answer, Answer)
        assert answer.offset is None or 0 <= answer.offset < 2**63
        assert answer.retry_after is None or 0 <= answer.retry_after <= 300
        assert len(answer.reason) <= 500
        assert answer.duplicates >= 0
        assert answer.dead_letters >= 0


_FRAMES = b"".join(frame_of(b'{"n":%d}\n' % number * count, count) for number, count in ((1, 1), (2, 3), (3, 1)))


@fuzzed(
    "spool_segment",
    valid=[b"forebay1" + _FRAMES, b"forebay1"],
    words=[b"forebay1", b"\0" * 12, frame_of(b"1\n", 1), b"\xff\xff\xff\xff"],
    attacks=[b"forebay1" + b"\0" * 100_000, b"forebay1" + b"\xff" * 100_000],
)
def test_a_segment_after_a_crash_has_whole_records_or_is_refused(data: bytes) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        SpoolState("a", "json").write(folder)
        path_of(folder, 0).write_bytes(data)
        try:
            spool = Spool(folder, "a", JsonLines(), most_bytes=2**20)
        except SpoolDamagedError:
            # Such damage is no torn tail: nothing was cut.
            assert path_of(folder, 0).read_bytes() == data
            return
        assert spool.end <= len(data)
        end = spool.append(b"9\n", 1)
        index = 0
        while index < end:
            batch = spool.read(index, until=end, most_bytes=100)
            assert batch.first == index
            assert batch.body.count(b"\n") >= batch.count > 0
            index = batch.end
        assert batch.body.endswith(b"9\n")
        spool.close()


@fuzzed(
    "spool_state",
    valid=[
        json.dumps({"channel": "a", "records": "json", "shift": 1, "refused": [1, 2], "unsent_from": None}).encode()
    ],
    words=[b"null", b"true", b"1e9", b"-1", b"NaN", b"9" * 20],
    attacks=[b"[" * 100_000, b'{"a":' * 50_000],
)
def test_a_state_is_whole_or_refused(data: bytes) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "state.json").write_bytes(data)
        try:
            state = read_state(folder)
        except SpoolDamagedError:
            return
        assert state is not None
        state.write(folder)
        assert read_state(folder) == state

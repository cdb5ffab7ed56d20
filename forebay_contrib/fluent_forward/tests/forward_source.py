"""Fluent Forward for the conformance suite: senders that send a chunk again until it is acknowledged."""

from __future__ import annotations

import gzip
import itertools
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import zstandard

from forebay_contrib.fluent_forward.declaration import FluentForward
from forebay_contrib.fluent_forward.tests.forward_client import ForwardClient, encode, event_time, packed
from tests.conformance.acknowledged_senders import ANSWER_SECONDS, AcknowledgedSenders

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.testing.source_rig import SourceRig

_TIME = event_time(1_767_225_600, 5)


@dataclass(frozen=True)
class Chunk:
    """A message that is sent until it is acknowledged; ``records`` are what it becomes."""

    records: tuple[bytes, ...]
    message: bytes
    chunk: str


def chunk_of(records: Sequence[bytes], *values: Any, **option: Any) -> Chunk:  # noqa: ANN401  what MessagePack has
    """Build a chunk: its records as JSON, the values behind its tag, and its option."""
    chunk = uuid.uuid4().hex
    return Chunk(tuple(records), encode(["app.log", *values, {"chunk": chunk, **option}]), chunk)


class ForwardSenders(AcknowledgedSenders[Chunk, ForwardClient]):
    """See ``AcknowledgedSenders``."""

    def __init__(self, database_url: str) -> None:
        self._modes = itertools.count()
        super().__init__(database_url)

    def source(self, **changes: Any) -> FluentForward:  # noqa: ANN401  fields of the source
        return FluentForward(**{"listen": "127.0.0.1:0", **changes})

    def _request(self, records: Sequence[bytes]) -> Chunk:
        entries = [[_TIME, msgspec.json.decode(record)] for record in records]
        match next(self._modes) % 3:
            case 0:
                return chunk_of(records, entries, size=len(entries))
            case 1:
                return chunk_of(records, packed(*entries))
        return chunk_of(records, gzip.compress(packed(*entries)), compressed="gzip")

    def send_odd(self) -> int:
        """Send every mode and form of a time, names that are there twice, nearly a megabyte, and what is no record."""
        large = b'{"y":"%s"}' % (b"y" * 900_000)
        twice = b"\x82\xa1a\x01\xa1a\x02"
        odd = [
            chunk_of([b"{}"], 1_767_225_600, {}),
            chunk_of([b'{"a":null}'], 1_767_225_600.5, {"a": None}),
            chunk_of([b'{"a":[1,{"b":"\xc3\xbc"}],"c":"bytes"}'], [[None, {"a": [1, {"b": "ü"}], "c": b"bytes"}]]),
            chunk_of([b'{"a":1,"a":2}'], b"\x92\x01" + twice),
            chunk_of([large], [[_TIME, msgspec.json.decode(large)]]),
            chunk_of([b'{"a":1}'], zstandard.compress(packed([_TIME, {"a": 1}])), compressed="zstd"),
            chunk_of([b'{"good":1}'], [[_TIME, {"good": 1}], [_TIME, "bad"], ["bad", {}], [_TIME, {"b": b"\xff"}]]),
            chunk_of([], []),
            chunk_of([], b"\xc1"),
        ]
        for chunk in odd:
            self._put(chunk)
        return sum(len(chunk.records) for chunk in odd)

    def check(self, rig: SourceRig) -> None:
        """Check that each record came once."""
        rows = rig.rows()
        assert sorted(row["record"].encode() for row in rows) == sorted(self.sent)
        assert {(row["tag"], row["sender"], row["metadata"]) for row in rows} <= {("app.log", "127.0.0.1", None)}
        assert rig.failed_checks() == []

    def _open(self, port: int) -> ForwardClient | None:
        try:
            return ForwardClient(port, seconds=ANSWER_SECONDS)
        except OSError:
            self.failures += 1
            return None

    def _post(self, connection: ForwardClient, chunk: Chunk) -> bool:
        try:
            connection.socket.sendall(chunk.message)
            answer = connection.receive()
        except OSError:
            answer = None
        if answer is None:
            self.failures += 1
            return False
        assert answer == {"ack": chunk.chunk}
        return True

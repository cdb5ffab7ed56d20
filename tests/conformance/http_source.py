"""HTTP for the conformance suite: senders that send a request again until it is answered with 200."""

from __future__ import annotations

import gzip
import http.client
import json
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import zstandard

from receiver_runtime.receivers.http.declaration import Http
from tests.conformance.acknowledged_senders import ANSWER_SECONDS, AcknowledgedSenders

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from forebay.testing.source_rig import SourceRig

_LINES = "application/x-ndjson"


@dataclass(frozen=True)
class Request:
    """A request that is sent until it is answered."""

    records: tuple[bytes, ...]
    body: bytes
    headers: Mapping[str, str]
    key: str = field(default_factory=lambda: uuid.uuid4().hex)


def lines(records: Sequence[bytes]) -> Request:
    """Build a request from JSON records, one per line."""
    return Request(tuple(records), b"\n".join(records), {"Content-Type": _LINES})


class HttpSenders(AcknowledgedSenders[Request, http.client.HTTPConnection]):
    """See ``AcknowledgedSenders``."""

    def source(self, **changes: Any) -> Http:  # noqa: ANN401  fields of the source
        return Http(**{"listen": "127.0.0.1:0", **changes})

    def _request(self, records: Sequence[bytes]) -> Request:
        return lines(records)

    def _open(self, port: int) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)

    def send_odd(self) -> int:
        """Send empty values, bytes of every kind, nearly a megabyte, arrays, compressed bodies, and invalid JSON."""
        large = b'"%s"' % (b"y" * 900_000)
        odd = [
            Request((b"null",), b" null ", {"Content-Type": "application/json"}),
            Request((b'""',), b'""', {"Content-Type": "application/json; charset=utf-8"}),
            Request((bytes(range(256)),), bytes(range(256)), {"Content-Type": "application/octet-stream"}),
            Request((b"a=1&b=%20",), b"a=1&b=%20", {"Content-Type": "application/x-www-form-urlencoded"}),
            Request((large,), large, {"Content-Type": "application/json"}),
            Request((b"[1]", b"{}", b'"\xc3\xbc"'), b'[[1] , {},\n"\xc3\xbc"]', {"Content-Type": "application/json"}),
            Request((b"one", b" two"), b"one\r\n\n two\n", {"Content-Type": "text/plain"}),
            Request((b"{}",), gzip.compress(b"{}\n"), {"Content-Type": _LINES, "Content-Encoding": "gzip"}),
            Request((b"{}",), zstandard.compress(b"{}\n"), {"Content-Type": _LINES, "Content-Encoding": "zstd"}),
            Request((b'{"good": 1}',), b'{"good": 1}\n{"bad": \n', {"Content-Type": _LINES}),
        ]
        for request in odd:
            self._put(request)
        return sum(len(request.records) for request in odd)

    def check(self, rig: SourceRig) -> None:
        """Check that each record came once: repeated requests carried a key."""
        assert sorted(row["body"] for row in rig.rows()) == sorted(self.sent)
        assert rig.failed_checks() == []

    def _post(self, connection: http.client.HTTPConnection, request: Request) -> bool:
        try:
            headers = {**request.headers, "Idempotency-Key": request.key}
            connection.request("POST", "/v1/s0", request.body, headers)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException):
            self.failures += 1
            return False
        if response.status == 200:
            counts = json.loads(answer)
            assert counts["records"] + counts["duplicates"] == len(request.records), (counts, request)
            return True
        assert response.status in {429, 503}, (response.status, answer)
        assert int(response.headers["Retry-After"]) > 0
        self.failures += 1
        return False

"""Run an HTTP receiver with everything real below it except the database, and send requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from receiver_runtime.process.receiver_registry import make_receiver
from receiver_runtime.receivers.http.acknowledgement import Acknowledgement, Stored, WaitingRequest
from receiver_runtime.receivers.http.declaration import Http
from tests.unit.receiver_runtime.receivers.http.channels.channel_log import ChannelBlockLog
from tests.unit.receiver_runtime.rig import Rig, rig
from tests.unit.receiver_runtime.support import eventually

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pytest

    from receiver_runtime.block_path.text_check import RowCheck

JSON = {"Content-Type": "application/json"}
LINES = {"Content-Type": "application/x-ndjson"}
SECONDS = 30.0


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class Listening:
    """A receiver that listens, and the port of its newest start."""

    rig: Rig
    log: ChannelBlockLog
    context: ssl.SSLContext | None = None

    @property
    def port(self) -> int:
        said = [reason for reason in self.rig.reporter.reasons if reason.startswith("listening on ")]
        # Behind it may be a note.
        return int(said[-1].partition(";")[0].rpartition(":")[2])

    def connect(self) -> http.client.HTTPConnection:
        if self.context is not None:
            return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=SECONDS, context=self.context)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        on: http.client.HTTPConnection | None = None,
    ) -> Answer:
        """Send a request, on its own connection unless one is given."""
        connection = on or self.connect()
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, dict(response.headers.items()), response.read())
        finally:
            if on is None:
                connection.close()

    def post(
        self,
        body: bytes,
        headers: Mapping[str, str] = JSON,
        *,
        path: str = "/v1/orders",
        on: http.client.HTTPConnection | None = None,
    ) -> Answer:
        return self.ask("POST", path, body, headers, on=on)

    def raw(self, data: bytes, *, to_the_end: bool = True) -> bytes:
        """Send bytes unchanged; return what comes until the other side closes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS) as connection:
            with contextlib.suppress(ConnectionError):
                # The answer may come before all bytes were read.
                connection.sendall(data)
            found = b""
            with contextlib.suppress(ConnectionError):
                while piece := connection.recv(65536):
                    found += piece
                    if not to_the_end:
                        break
            return found

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the registered blocks, in order."""
        made = self.rig
        return [
            row
            for block in made.log.chain(1)
            for batch in made.store.read_batches(
                made.rows.paths[block.handle.segment_id],
                block.handle.offset,
                block.handle.length,
                block.handle.crc32c,
            )
            for row in batch.to_pylist()
        ]

    def bodies(self) -> list[bytes]:
        return [row["body"] for row in self.rows()]


class HandedIn:
    """Counts the requests whose records wait to be registered, or already are, so that a test can wait for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests = 0
        hand_in = Acknowledgement.hand_in

        def counted(acknowledgement: Acknowledgement, waiting: WaitingRequest) -> asyncio.Future[Stored]:
            future = hand_in(acknowledgement, waiting)
            self.requests += 1
            return future

        monkeypatch.setattr(Acknowledgement, "hand_in", counted)

    def wait_for(self, requests: int) -> None:
        eventually(lambda: self.requests >= requests, f"{requests} requests under way")


@contextmanager
def listening(
    root: Path,
    *,
    context: ssl.SSLContext | None = None,
    settings: Mapping[str, Any] | None = None,
    stream_name: str = "orders",
    row_check: RowCheck | None = None,
    **fields: Any,  # noqa: ANN401  fields of the source
) -> Iterator[Listening]:
    receiver = make_receiver(Http.model_validate({"listen": "127.0.0.1:0"} | fields))
    log = ChannelBlockLog()
    with rig(root, receiver, log=log, stream_name=stream_name, row_check=row_check, **(settings or {})) as made:
        one = Listening(made, log, context)
        eventually(lambda: any(reason.startswith("listening on ") for reason in made.reporter.reasons), "listening")
        yield one

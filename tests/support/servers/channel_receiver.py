"""Stand for a receiver's side of channels, with faults by wish: for tests of the client that need no driver log.

It has the rules of the protocol in the shortest form: what is registered is a list of records for each channel. The
client is tested against the real receiver too.
"""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from tests.support.polling import joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass
class Reply:
    """Hold an answer."""

    status: int
    body: dict[str, object] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class ChannelReceiver:
    """Hold channels, and what a test wants to go wrong.

    Args:
        before: called with each POST's channel, offset and records. A reply is sent in place of the receiver's.
        before_position: called with each GET. A reply is sent in place of the receiver's.
        cuts_above: requests with more bytes are cut.
        drop_answer: called after each POST was registered. True: the connection is cut without an answer.
    """

    channels: dict[str, list[bytes]] = field(default_factory=dict)
    before: Callable[[str, int, list[bytes]], Reply | None] = lambda *_: None
    before_position: Callable[[], Reply | None] = lambda: None
    drop_answer: Callable[[], bool] = lambda: False
    cuts_above: int = 2**40
    asked: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    url: str = ""

    def post(self, channel: str, offset: int, records: list[bytes]) -> Reply:
        """Register records."""
        if (reply := self.before(channel, offset, records)) is not None:
            return reply
        with self.lock:
            known = self.channels.setdefault(channel, [])
            position = len(known)
            if offset > position:
                return Reply(409, {"detail": "gap"}, {"Forebay-Offset": str(position)})
            new = records[position - offset :]
            known.extend(new)
            counts: dict[str, object] = {"records": len(new), "duplicates": len(records) - len(new)}
            return Reply(200, counts, {"Forebay-Offset": str(max(position, offset + len(records)))})


@contextmanager
def channel_receiver() -> Iterator[ChannelReceiver]:
    """Run one on a free port."""
    receiver = ChannelReceiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_GET(self) -> None:
            channel = self.path.rpartition("/")[2]
            with receiver.lock:
                offset = len(receiver.channels.get(channel, []))
                receiver.asked.append(self.path)
            self._answer(receiver.before_position() or Reply(200, {"channel": channel, "offset": offset}))

        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            body = self.rfile.read(length)
            if len(body) < length or length > receiver.cuts_above:
                self.close_connection = True
                return
            assert self.headers["Content-Type"] == "application/x-ndjson"
            records = body.removesuffix(b"\n").split(b"\n")
            reply = receiver.post(self.headers["Forebay-Channel"], int(self.headers["Forebay-Offset"]), records)
            if receiver.drop_answer():
                self.close_connection = True
            else:
                self._answer(reply)

        def _answer(self, reply: Reply) -> None:
            body = json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in {**reply.headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_port}/v1/s"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        joined(thread)

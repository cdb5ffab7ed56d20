"""Serve a bucket in memory that has no conditional put: it ignores the condition, or refuses such a request.

A process of its own, because deltalake holds Python's lock while it waits for an answer. It prints its port, and ends
when its input does.
"""

from __future__ import annotations

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit


class Objects(BaseHTTPRequestHandler):
    """Answer as S3 does, without signatures."""

    objects: ClassVar[dict[str, bytes]] = {}
    refuses = "refuse" in sys.argv

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.refuses and self.headers.get("If-None-Match"):
            self._answer(501, b"<Error><Code>NotImplemented</Code></Error>")
            return
        self.objects[urlsplit(self.path).path] = data
        self._answer(200)

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if "list-type" in parts.query:
            bucket, prefix = parts.path.rstrip("/") + "/", parse_qs(parts.query).get("prefix", [""])[0]
            found = "".join(
                f"<Contents><Key>{key.removeprefix(bucket)}</Key><Size>{len(data)}</Size>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
                for key, data in sorted(self.objects.items())
                if key.startswith(bucket + prefix)
            )
            self._answer(200, f"<ListBucketResult>{found}</ListBucketResult>".encode())
        elif parts.path in self.objects:
            self._answer(200, self.objects[parts.path])
        else:
            self._answer(404)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self.objects.pop(urlsplit(self.path).path, None)
        self._answer(204)

    def do_POST(self) -> None:
        """Delete several, one request for all of them: deltalake asks so."""
        self._answer(501)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("ETag", "x")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Objects)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()
